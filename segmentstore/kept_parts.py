"""KeptParts: the archived parts of one container of a store that is only read.

The store's owner may remove parts meanwhile, and delete their objects and lists. So what is missing
is damage only if the metadata, read again, still have it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from recovery.archived_parts_listing import FoundPart, PartRemovedError
from segmentstore.contracts.archive_metadata import LIST_PARTS, ArchiveMetadata
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import TierUnavailableError
from tier2.archive.archive_errors import ARCHIVE_TIER
from tier2.archive.archived_parts_lists import ArchivedPartsLists, PartsListMissingError
from tier2.object_storage import StorageUnavailableError

_T = TypeVar("_T")

ReadAgain: TypeAlias = Callable[[], Awaitable[ArchiveMetadata]]
"""Gives the metadata as they are by now. Raises DataCorruptionError, TierUnavailableError."""


class KeptParts:
    """The parts of one container that its archive keeps, as its metadata have them."""

    def __init__(
        self,
        container_id: int,
        lists: ArchivedPartsLists,
        archive: ArchiveMetadata,
        again: ReadAgain | None = None,
    ) -> None:
        """Without `again` no owner changes them."""
        self._container_id = container_id
        self._lists = lists
        self._archive = archive
        self._again = again
        self._first_now = archive.first
        self.kept = range(archive.first, archive.count)
        self.last_ms = archive.last_ms

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """As `PartListing` has it."""
        return await self._read(partial(self._lists.find_sequence, sequence_number))

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """As `PartListing` has it."""
        return await self._read(partial(self._lists.find_time, time_ms))

    async def at(self, index: int) -> ArchivedPart:
        """As `PartListing` has it."""
        if index in self.kept and index < self._first_now:
            raise self._removed()
        return await self._read(partial(self._lists.at, index))

    async def first_now(self) -> int:
        """As `PartListing` has it. Costs the replay of the log."""
        if self._again is not None:
            self._first_now = max(self._first_now, (await self._again()).first)
        return self._first_now

    async def find_number(self, number: int) -> ArchivedPart | None:
        """The part of this number; None if it is not kept. O(log parts)."""
        low, high = self.kept.start, self.kept.stop
        while low < high:
            middle = (low + high) // 2
            part = await self._at_or_none(middle)
            if part is None or part.number < number:
                low = middle + 1
            else:
                high = middle
        found = await self._at_or_none(low) if low < self.kept.stop else None
        return found if found is not None and found.number == number else None

    async def uids(self) -> set[bytes]:
        """Of all parts that may have objects, and of the attempt under way. O(parts), 100 bytes
        each.
        """
        archive = self._archive
        found: set[bytes] = set()
        for index in self.kept:
            part = await self._at_or_none(index)
            if part is not None:
                found.add(part.uid)
        if archive.attempt is not None:
            found.add(archive.attempt.uid)
        begin = archive.swept
        while begin < archive.first:
            end = min(archive.first, (begin // LIST_PARTS + 1) * LIST_PARTS)
            with suppress(PartsListMissingError):  # Deleted meanwhile, like its parts.
                left = await _asked(partial(self._lists.left_of, begin, end))
                found.update(part.uid for part in left)
            begin = end
        return found

    async def _at_or_none(self, index: int) -> ArchivedPart | None:
        """None: it was removed meanwhile."""
        try:
            return await self.at(index)
        except PartRemovedError:
            return None

    async def _read(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await _asked(call)
        except PartsListMissingError as error:
            if await self.first_now() < error.end:
                raise
            raise self._removed() from error

    def _removed(self) -> PartRemovedError:
        count = self._first_now - self.kept.start
        return PartRemovedError(
            self._container_id, f"the archive's owner has removed {count} parts meanwhile"
        )


async def _asked(call: Callable[[], Awaitable[_T]]) -> _T:
    """What the archive gives. Raises TierUnavailableError, and what the call raises."""
    try:
        return await call()
    except StorageUnavailableError as error:
        raise TierUnavailableError(ARCHIVE_TIER, str(error)) from error
