"""MetadataTables: the little that the Controller needs of tables. `TableService` fits behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

ANY_VERSION: Final = -(2**63)
"""In a call: no condition. (Pravega: `TableKey.NO_VERSION`.)"""
NO_ROW: Final = -1
"""In a call: only if the key is absent. (Pravega: `TableKey.NOT_EXISTS`.)"""


class RowConflictError(Exception):
    """A key has another version than the call expects; nothing of its batch was done.

    Another process has changed the row, or an earlier write of unknown outcome was done: read it
    again.
    """


class MetadataRow(NamedTuple):
    """A key, its version, and its value."""

    key: bytes
    version: int
    value: bytes


class MetadataTables(Protocol):
    """Tables of keys in bytes' order. Raises SegmentStoreError where they cannot be reached."""

    async def create(self, table: str) -> None:
        """Nothing if it is there."""

    async def get(self, table: str, keys: Sequence[bytes]) -> list[MetadataRow | None]:
        """As acknowledged, in the order of the keys. None: absent."""

    async def update(self, table: str, rows: Sequence[MetadataRow]) -> list[int]:
        """Set all or none, each if it has the version given; give the new versions.

        Raises RowConflictError.
        """

    async def remove(self, table: str, keys: Sequence[bytes]) -> None:
        """Remove all or none, whatever they have."""

    async def confirm(self, table: str) -> None:
        """Return when the table cannot have been changed by another process before this call."""

    async def scan(self, table: str, after: bytes, limit: int) -> list[MetadataRow]:
        """The first rows, `limit` at most, with keys behind `after`."""
