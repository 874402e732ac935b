"""KeptParts: the archived parts of one container of a store that is only read."""

from __future__ import annotations

from functools import partial

from recovery.archived_parts_listing import FoundPart
from recovery.tier2_scan import retried
from segmentstore.contracts.archive_metadata import LIST_PARTS, ArchiveMetadata
from segmentstore.contracts.archived_parts import ArchivedPart
from tier2.archive.archived_parts_lists import ArchivedPartsLists


class KeptParts:
    """The parts of one container that its archive keeps, as its metadata have them."""

    def __init__(self, lists: ArchivedPartsLists, archive: ArchiveMetadata) -> None:
        self._lists = lists
        self._archive = archive
        self.kept = range(archive.first, archive.count)
        self.last_ms = archive.last_ms

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """As `PartListing` has it."""
        return await retried(partial(self._lists.find_sequence, sequence_number))

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """As `PartListing` has it."""
        return await retried(partial(self._lists.find_time, time_ms))

    async def at(self, index: int) -> ArchivedPart:
        """As `PartListing` has it."""
        return await retried(partial(self._lists.at, index))

    async def find_number(self, number: int) -> ArchivedPart | None:
        """The part of this number; None if it is not kept. O(log parts)."""
        low, high = self.kept.start, self.kept.stop
        while low < high:
            middle = (low + high) // 2
            if (await self.at(middle)).number < number:
                low = middle + 1
            else:
                high = middle
        found = await self.at(low) if low < self.kept.stop else None
        return found if found is not None and found.number == number else None

    async def uids(self) -> set[bytes]:
        """Of all parts that may have objects, and of the attempt under way. O(parts), 100 bytes
        each.
        """
        archive = self._archive
        found = {(await self.at(index)).uid for index in self.kept}
        if archive.attempt is not None:
            found.add(archive.attempt.uid)
        begin = archive.swept
        while begin < archive.first:
            end = min(archive.first, (begin // LIST_PARTS + 1) * LIST_PARTS)
            left = await retried(partial(self._lists.left_of, begin, end))
            found.update(part.uid for part in left)
            begin = end
        return found
