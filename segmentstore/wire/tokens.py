"""Delegation tokens: what the Controller signs, and the wire server checks.

A token is a JWT, signed with HS512 by a key that both have. Its claims are those of Pravega 0.13:
`sub` is the user, `aud` is "segmentstore", `iat` and `exp` are times; each other claim is a
resource, and its permission. Times are in seconds since 1970 UTC.

Needs the extra `server`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission

AUDIENCE: Final = "segmentstore"
LIFETIME_S: Final = 600
"""How long a token of ours is valid."""
KEY_BYTES_MIN: Final = 32
_ALGORITHM: Final = "HS512"
_KEY_BYTES: Final = 64
_NOT_RESOURCES: Final = frozenset({"sub", "aud", "iat", "exp", "nbf", "iss", "jti"})
_ANYTHING: Final = "*"


class InvalidTokenError(Exception):
    """A token that was not signed with the key, or has no sound claims. The caller's move."""


class ExpiredTokenError(Exception):
    """A token whose time is over. The caller's move: ask the Controller for another one.

    The operator's, if that is refused, too: set the clocks of both hosts.
    """

    def __init__(self, late_s: float) -> None:
        super().__init__(
            f"the token expired {max(late_s, 0.0):.0f} s ago by this host's clock: ask the "
            "Controller for another one. If that is refused, too, the clocks of this host and of "
            f"the Controller's differ by more than {LIFETIME_S} s: the operator sets them"
        )


class Grants(NamedTuple):
    """What a token that is sound allows."""

    resources: Mapping[str, Permission]
    """By the part of the claim's name that is compared with names of segments."""
    expires_s: float | None
    """None: never."""

    def allow(self, segment: str, permission: Permission) -> bool:
        """Whether a segment may be used so."""
        return any(
            granted >= permission and _matches(resource, segment)
            for resource, granted in self.resources.items()
        )

    def check_time(self, now_s: float) -> None:
        """Raise ExpiredTokenError if the time is over."""
        if self.expires_s is not None and now_s >= self.expires_s:
            raise ExpiredTokenError(now_s - self.expires_s)


class TokenKey:
    """Signs and checks tokens."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError for a key that is too short, or is no shared secret."""
        if len(key) < KEY_BYTES_MIN:
            raise ConfigError("token_key_file", f"the key has less than {KEY_BYTES_MIN} bytes")
        # HMAC pads a key with zeros to the size of a block, so signatures are the same. PyJWT
        # warns of keys that are shorter than this.
        self._key = key.ljust(_KEY_BYTES, b"\0")
        try:
            self.sign("", {}, 0)
        except jwt.InvalidKeyError:
            raise ConfigError("token_key_file", "the key is one of a pair of keys") from None

    def __repr__(self) -> str:
        return "TokenKey()"

    def sign(
        self,
        user: str,
        resources: Mapping[str, Permission],
        now_s: int,
        lifetime_s: int | None = LIFETIME_S,
    ) -> str:
        """A token for resources, by Pravega's names: `prn::/scope:s/stream:t`. None: for ever."""
        claims: dict[str, Any] = {name: given.name for name, given in resources.items()}
        claims |= {"sub": user, "aud": AUDIENCE, "iat": now_s}
        if lifetime_s is not None:
            claims["exp"] = now_s + lifetime_s
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM)

    def check(self, token: str, now_s: float) -> Grants:
        """What a token allows. Raises InvalidTokenError, ExpiredTokenError."""
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=[_ALGORITHM],
                audience=AUDIENCE,
                # Times are compared below, with the time that was handed in.
                options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
            grants = _grants(claims)
        except Exception:  # noqa: BLE001 - whatever the library raises, the token is the reason
            # Without the cause, which may repeat parts of the token.
            raise InvalidTokenError from None
        grants.check_time(now_s)
        return grants


def _grants(claims: Mapping[str, Any]) -> Grants:
    expires_s = claims.get("exp")
    if not (expires_s is None or type(expires_s) in {int, float}):
        raise InvalidTokenError
    resources = {
        _resource(name): Permission[given]
        for name, given in claims.items()
        if name not in _NOT_RESOURCES and type(given) is str and given in Permission.__members__
    }
    return Grants(resources, expires_s)


def _resource(claim: str) -> str:
    """`prn::/scope:s/stream:t` becomes `s/t`, the beginning of the names of its segments."""
    return claim.replace("prn::", "").replace("/scope:", "").replace("stream:", "")


def _matches(resource: str, segment: str) -> bool:
    return (
        resource in {_ANYTHING, segment}
        or (resource.endswith("/") and segment.startswith(resource))
        or segment.startswith(f"{resource}/")
    )
