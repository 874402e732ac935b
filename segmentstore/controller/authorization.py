"""Authorization of calls: the user, what it may do, and the token for its requests to the server.

Needs the extra `server`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.permission import Permission
from segmentstore.contracts.runtime import Runtime
from segmentstore.users import NO_PASSWORD, PasswordHash, User, parse_users
from segmentstore.wire.tokens import TokenKey

_log = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str | bytes]]

KEPT_S: Final = 60.0
"""How long a password that was right need not be checked again."""
_KEPT_MAX: Final = 1_000
_CHECKS_MAX: Final = 64
"""Passwords that are checked or wait for it. Wrong ones cost no more than one core."""
_GROUP_STREAM: Final = re.compile(r"(prn::/scope:[^/]+)/stream:_RG(.+)", re.DOTALL)
_MARK_STREAM: Final = re.compile(r"(prn::/scope:[^/]+/stream:)_MARK(.+)", re.DOTALL)
_GROUP: Final = re.compile(r"(prn::/scope:[^/]+)/reader-group:(.+)", re.DOTALL)
_STREAM: Final = re.compile(r"(prn::/scope:[^/]+)/stream:(.+)", re.DOTALL)
_TABLE: Final = re.compile(r"(prn::/scope:[^/]+)/key-value-table:(.+)", re.DOTALL)


class UnauthenticatedCallError(Exception):
    """The call names no user, or its credentials are wrong. The caller's move."""


class ForbiddenCallError(Exception):
    """The user may not do this. The operator's move."""


class BusyAuthorizerError(Exception):
    """Too many passwords are being checked. The caller's move: again, later."""


class Authorizer(Protocol):
    """Checks the caller of each call."""

    async def authorize(self, metadata: Metadata, resource: str, permission: Permission) -> str:
        """A delegation token for the resource, for answers that have one; empty: none is needed.

        `metadata` are the headers of the call. Raises UnauthenticatedCallError,
        ForbiddenCallError, BusyAuthorizerError.
        """


class AllowAll:
    """Without users everything is allowed, and no segment asks for a token."""

    async def authorize(
        self,
        metadata: Metadata,  # noqa: ARG002 - no caller has to name its user
        resource: str,  # noqa: ARG002
        permission: Permission,  # noqa: ARG002
    ) -> str:
        return ""


class UsersFile:
    """The users of a file, which is read again when it has changed.

    What cannot be read is logged, and the users before it stay in use.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = Path(path)
        try:
            self._stamp = self._stamp_now()
            self._users = self._read()
        except OSError as error:
            raise ConfigError("users_file", f"it cannot be read: {error.strerror}") from error
        self._failed: tuple[int, ...] | None = None
        """Of a file that could not be used, and was logged."""

    def current(self) -> Mapping[str, User]:
        """The users by name: the same object until the file has changed."""
        stamp: tuple[int, ...] = ()
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return self._users
            users = self._read()
        except (OSError, ConfigError) as error:
            if stamp != self._failed:
                self._failed = stamp
                _log.error("the users are not replaced: %s", error)
            return self._users
        self._stamp, self._users, self._failed = stamp, users, None
        return users

    def _read(self) -> Mapping[str, User]:
        try:
            return parse_users(self._path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise ConfigError("users_file", "it is not UTF-8") from None

    def _stamp_now(self) -> tuple[int, ...]:
        found = self._path.stat()
        return (found.st_mtime_ns, found.st_size, found.st_ino)


class UserAuthorizer:
    """Users of a file, with `authorization: Basic`, and tokens signed with a key."""

    def __init__(self, users: UsersFile, key: TokenKey, runtime: Runtime) -> None:
        self._users = users
        self._key = key
        self._clock = runtime.clock
        self._secret = runtime.random.randbytes(32)
        """Of this process: credentials are kept under a keyed hash of them."""
        self._right: OrderedDict[bytes, tuple[User, float]] = OrderedDict()
        """The user as it was in the file, and until when that holds; the oldest ones first."""
        self._checks: dict[tuple[bytes, PasswordHash], asyncio.Task[bool]] = {}
        self._executor = runtime.executor("passwords", 1)

    async def close(self) -> None:
        """Wait for the passwords that are being checked."""
        if self._checks:
            await asyncio.wait(self._checks.values())
        self._executor.shutdown()

    async def authorize(self, metadata: Metadata, resource: str, permission: Permission) -> str:
        user = await self._authenticate(metadata)
        granted = user.permission(_checked(resource))
        if granted is None or granted < permission:
            raise ForbiddenCallError(f"{permission.name} of {resource} is not allowed")
        return self._token(user, resource, granted)

    async def _authenticate(self, metadata: Metadata) -> User:
        header = next((value for name, value in metadata if name == "authorization"), "")
        name, password = _credentials(header)
        user = self._users.current().get(name)
        digest = _digest(self._secret, name, password)
        loop = asyncio.get_running_loop()
        kept = self._right.get(digest)
        if kept is not None and kept[1] > loop.time() and _same_password(kept[0], user):
            assert user is not None
            return user
        if not await asyncio.shield(self._check(digest, user, password)) or user is None:
            raise UnauthenticatedCallError("the user or the password is wrong")
        self._right.pop(digest, None)
        self._right[digest] = (user, loop.time() + KEPT_S)
        if len(self._right) > _KEPT_MAX:
            self._right.popitem(last=False)
        return user

    def _check(self, digest: bytes, user: User | None, password: str) -> asyncio.Task[bool]:
        """Calls with the same credentials share one check, unless the password was changed since
        that began.
        """
        hashed = NO_PASSWORD if user is None else user.password
        key = (digest, hashed)
        check = self._checks.get(key)
        if check is None:
            if len(self._checks) >= _CHECKS_MAX:
                raise BusyAuthorizerError("too many passwords are being checked")

            async def matches() -> bool:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._executor, hashed.matches, password)

            check = self._checks[key] = own_task(matches(), name="check password")
            check.add_done_callback(lambda _: self._checks.pop(key))
        return check

    def _token(self, user: User, resource: str, granted: Permission) -> str:
        """For what the user may do with the stream, not for the call alone: clients keep it."""
        resources: dict[str, Permission] = {}
        if (group := _GROUP.fullmatch(resource)) is not None:
            resource = f"{group[1]}/stream:_RG{group[2]}"
        if _GROUP_STREAM.fullmatch(resource) is not None:
            # A reader writes the state of its group.
            granted = Permission.READ_UPDATE
        table = _TABLE.fullmatch(resource)
        if (stream := _STREAM.fullmatch(resource)) is not None:
            resources[resource] = granted
            # The Java client asks for the token of a table as if that were a stream.
            table = _TABLE.fullmatch(f"{stream[1]}/key-value-table:{stream[2]}")
        if table is not None and (of_table := user.permission(table[0])) is not None:
            # The names of its segments begin so.
            resources[f"{table[1]}/stream:{table[2]}_kvtable"] = of_table
        if not resources:
            return ""
        return self._key.sign(user.name, resources, self._clock.time_ms() // 1000)


def _checked(resource: str) -> str:
    """The resource whose permission counts: a stream of the Controller's is its owner's."""
    if (group := _GROUP_STREAM.fullmatch(resource)) is not None:
        return f"{group[1]}/reader-group:{group[2]}"
    if (marks := _MARK_STREAM.fullmatch(resource)) is not None:
        return f"{marks[1]}{marks[2]}"
    return resource


def _credentials(header: str | bytes) -> tuple[str, str]:
    """The user and the password of a header. Raises UnauthenticatedCallError."""
    text = header.decode("latin-1") if isinstance(header, bytes) else header
    method, _, encoded = text.partition(" ")
    try:
        if method.lower() != "basic":
            raise ValueError
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (ValueError, binascii.Error):
        raise UnauthenticatedCallError("the call needs authorization: Basic") from None
    name, _, password = decoded.partition(":")
    return name, password


def _digest(secret: bytes, name: str, password: str) -> bytes:
    # The name has no colon.
    return hashlib.blake2b(f"{name}:{password}".encode(), key=secret, digest_size=32).digest()


def _same_password(kept: User, user: User | None) -> bool:
    return user is not None and kept.password == user.password
