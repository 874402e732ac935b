"""ArchiveDeletions: what leaves the log because the archive has it, and what leaves the archive.

Rules of this file:

- nothing is deleted, and nothing added, before the place is seen to have what the metadata say;
- the log gives up its copies by `HotCopiesDeleted`, a lag after the archive has had them;
- parts leave the archive from the oldest on: the pointer to the first one moves, then their objects
  are deleted, then the lists that had no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from durablelog.operations import ArchiveOperation
from segmentstore.container.hot_copy_ages import HotCopyAges
from segmentstore.container.writer_source import WriterSource
from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    ArchiveChange,
    FirstPartMoved,
    HotCopiesDeleted,
    PartsSwept,
)
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError
from segmentstore.contracts.runtime import Runtime
from tier2.archive.archive_config import ArchiveConfig
from tier2.archive.archived_parts_lists import ArchivedPartsLists
from tier2.archive.ledger_offloader import LedgerOffloader

_EXPIRED_AT_ONCE: Final = 4096
"""Parts that one operation takes out of the archive."""


class ArchiveDeletions:
    """Of one container, in the passes of its archiver."""

    def __init__(
        self,
        source: WriterSource,
        offloader: LedgerOffloader,
        lists: ArchivedPartsLists,
        config: ArchiveConfig,
        runtime: Runtime,
        on_deletable: Callable[[], None],
    ) -> None:
        """`on_deletable` is called when the log may delete more than before."""
        self._source = source
        self._metadata = source.metadata
        self._offloader = offloader
        self._lists = lists
        self._config = config
        self._runtime = runtime
        self._on_deletable = on_deletable
        self._ages = HotCopyAges()
        self.place_checked = False
        """This owner has seen that the archive has what the metadata say."""

    async def check_place(self) -> None:
        """Before anything is deleted or added: the place has what an earlier owner archived last.

        Raises DataCorruptionError: with another URL than before, or an archive that was deleted,
        the log's copies may be the only ones that can be found.
        """
        archive = self._metadata.archive
        if not self.place_checked and archive.kept:
            part = await self._lists.at(archive.count - 1)
            try:
                handle = await self._offloader.read_offloaded(part.ledger_id, part.uid)
            except LedgerNotFoundError as error:
                raise DataCorruptionError(
                    f"part {part.number} of the archive",
                    "it was archived, and is missing: `archive` names another place than before, "
                    "or its objects were deleted. Nothing is archived or deleted until it is there",
                ) from error
            await handle.close()
        self.place_checked = True

    async def delete_hot_copies(self) -> None:
        """Let the log delete what it retained and the archive has had for the lag."""
        archive, lag_s = self._metadata.archive, self._config.archive_deletion_lag_s
        last_ms = self._runtime.clock.time_ms() - int(lag_s * 1000)
        seen = self._ages.complete_for(lag_s, archive.count, asyncio.get_running_loop().time())
        index, newest = max(archive.hot_deleted_count, archive.first), None
        while index < archive.count:
            part = await self._lists.at(index)
            if part.offloaded_ms > last_ms and index >= seen:
                break
            index, newest = index + 1, part
        if newest is not None:
            await self._commit(HotCopiesDeleted(newest.number, index))
            self._on_deletable()

    async def expire(self) -> bool:
        """Take out of the archive what its retention does not keep; whether there is more."""
        config = self._config
        if not (config.archive_retention_s or config.archive_retention_bytes):
            return False
        archive = self._metadata.archive
        last_ms = self._runtime.clock.time_ms() - int(config.archive_retention_s * 1000)
        index, before = archive.first, archive.bytes_before
        end = min(archive.hot_deleted_count, archive.first + _EXPIRED_AT_ONCE)
        while index < end:
            part = await self._lists.at(index)
            left = archive.bytes_through - before - part.length
            is_old = bool(config.archive_retention_s) and part.last_ms <= last_ms
            if not (is_old or 0 < config.archive_retention_bytes <= left):
                break
            index, before = index + 1, before + part.length
        if index == archive.first:
            return False
        await self._commit(FirstPartMoved(index, before))
        return index == end < archive.hot_deleted_count

    async def sweep(self) -> None:
        """Delete the objects of parts that are no part of the archive any more."""
        while (swept := self._metadata.archive.swept) < (first := self._metadata.archive.first):
            end = min(first, (swept // LIST_PARTS + 1) * LIST_PARTS)
            for part in await self._lists.left_of(swept, end):
                await self._offloader.delete_offloaded(part.ledger_id, part.uid)
            await self._lists.delete_before(swept, end)
            await self._commit(PartsSwept(end))

    async def remove_before(self, sequence_number: int) -> int:
        """In a pass: as `remove_prefix`."""
        archive = self._metadata.archive
        found = await self._lists.find_sequence(sequence_number)
        index = archive.count if found is None else found.place
        try:
            await self.check_place()
        except DataCorruptionError:
            if index < archive.count:
                raise
        else:
            index = min(index, archive.hot_deleted_count)
        if index <= archive.first:
            return 0
        before = archive.bytes_through
        if index < archive.count:
            before = archive.bytes_before
            for each in range(archive.first, index):
                before += (await self._lists.at(each)).length
        await self._commit(FirstPartMoved(index, before))
        await self.sweep()
        return index - archive.first

    async def _commit(self, change: ArchiveChange) -> None:
        await self._source.commit(ArchiveOperation(change))
