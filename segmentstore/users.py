"""The users of a store's Controller: the file that names them, and what each may do. Pure.

A line is `name:hash:permissions`. The hash is scrypt's, with its parameters:
`scrypt$n$r$p$salt$key`, the last two in base64. Permissions are pairs of a resource and a word, in
Pravega's form: `prn::/scope:s/stream:t,READ;prn::/scope:s/*,READ_UPDATE`. A `*` stands for any
characters. Empty lines, and those that begin with `#`, are passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission

SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_SETTING: Final = "users_file"
_MEMORY_MAX: Final = 64 * MIB
"""What one check of a password may take."""
_ROUNDS_MAX: Final = 16


class PasswordHash(NamedTuple):
    """A password as it is kept. By default scrypt takes 16 MiB, and some 50 ms of one core."""

    salt: bytes
    key: bytes
    n: int = 1 << 14
    r: int = 8
    p: int = 1

    @classmethod
    def of(cls, password: str, salt: bytes) -> PasswordHash:
        """Of a new password; `salt` is random. As slow as a check."""
        return cls(salt, _scrypt(password, cls(salt, b"")))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """As it is in the file. Raises ValueError."""
        method, *numbers, salt, key = text.split("$")
        n, r, p = map(int, numbers)
        if method != "scrypt" or n < 2 or n & (n - 1) or r < 1 or not 1 <= p <= _ROUNDS_MAX:
            raise ValueError
        found = cls(_decoded(salt), _decoded(key), n, r, p)
        if 128 * n * r > _MEMORY_MAX or len(found.key) != _KEY_BYTES:
            raise ValueError
        return found

    def __str__(self) -> str:
        salt, key = (base64.b64encode(each).decode() for each in self[:2])
        return f"scrypt${self.n}${self.r}${self.p}${salt}${key}"

    def matches(self, password: str) -> bool:
        """Whether it is this password. Slow: for a thread."""
        return hmac.compare_digest(_scrypt(password, self), self.key)


NO_PASSWORD: Final = PasswordHash(bytes(SALT_BYTES), bytes(_KEY_BYTES))
"""Of a user that there is not: its check takes as long as another one."""


class User(NamedTuple):
    """A line of the file."""

    name: str
    password: PasswordHash
    permissions: tuple[tuple[re.Pattern[str], Permission], ...]

    def permission(self, resource: str) -> Permission | None:
        """The greatest that it has for a resource, as Pravega names it."""
        found = (given for pattern, given in self.permissions if pattern.fullmatch(resource))
        return max(found, default=None)


def parse_users(text: str) -> Mapping[str, User]:
    """The users of a file, by name. Raises ConfigError, which names the line and no secret."""
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        password, _, permissions = rest.partition(":")
        if not name or name in users:
            raise ConfigError(_SETTING, f"line {number} has no name, or one that was there")
        try:
            hashed = PasswordHash.parse(password)
        except (ValueError, binascii.Error):
            raise ConfigError(
                _SETTING, f"line {number} has no hash as `segmentstore users add` writes them"
            ) from None
        users[name] = User(name, hashed, _permissions(permissions, f"line {number}"))
    return users


def user_line(name: str, password: PasswordHash, permissions: str) -> str:
    """The line of a user. Raises ConfigError."""
    if not name or ":" in name or name.startswith("#") or not name.isprintable():
        raise ConfigError(_SETTING, f"{name!r} may not be a name: no colon, no # at its beginning")
    _permissions(permissions, repr(permissions))
    return f"{name}:{password}:{permissions.strip()}"


def _permissions(text: str, where: str) -> tuple[tuple[re.Pattern[str], Permission], ...]:
    found = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        resource, _, word = entry.rpartition(",")
        resource, word = resource.strip(), word.strip()
        if not resource.startswith("prn::") or word not in Permission.__members__:
            raise ConfigError(
                _SETTING, f"{where}: permissions are prn::RESOURCE,READ or READ_UPDATE, and ;"
            )
        pattern = ".*".join(map(re.escape, re.split(r"\*+", resource)))
        found.append((re.compile(pattern, re.DOTALL), Permission[word]))
    return tuple(found)


def _scrypt(password: str, hashed: PasswordHash) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=hashed.salt,
        n=hashed.n,
        r=hashed.r,
        p=hashed.p,
        maxmem=2 * _MEMORY_MAX,
        dklen=_KEY_BYTES,
    )


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
