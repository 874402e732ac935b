"""Permission of callers: the seam between the service and a list of users."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol


class Permission(enum.IntEnum):
    """What a call does to its resource; the greater one includes the other."""

    READ = 1
    READ_UPDATE = 2


class UnauthenticatedCallError(Exception):
    """The call names no user, or its credentials are wrong. The caller's move."""


class ForbiddenCallError(Exception):
    """The user may not do this. The operator's move."""


class Authorizer(Protocol):
    """Checks the caller of each call."""

    async def authorize(
        self, metadata: Sequence[tuple[str, str | bytes]], resource: str, permission: Permission
    ) -> str:
        """A delegation token for the resource, for answers that have one; empty: none is needed.

        `metadata` are the headers of the call. Raises UnauthenticatedCallError,
        ForbiddenCallError.
        """


class AllowAll:
    """Without users everything is allowed, and no segment asks for a token."""

    async def authorize(
        self,
        metadata: Sequence[tuple[str, str | bytes]],  # noqa: ARG002 - nobody is asked for
        resource: str,  # noqa: ARG002
        permission: Permission,  # noqa: ARG002
    ) -> str:
        return ""
