"""ContainerUpkeep: what a container does for callers that name no segment: flushes, checkpoints,
garbage, the mailbox; its log and its objects, for those that look after them.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from durablelog.catalog.key_store import KeySnapshot
from durablelog.durable_data_log import DurableDataLog
from segmentstore.config import StoreConfig
from segmentstore.container.container_load import ContainerLoad
from segmentstore.container.log_truncation import LogTruncation
from segmentstore.container.metadata_checkpoints import MetadataCheckpoints
from segmentstore.container.segment_calls import SegmentCalls
from segmentstore.container.written_catalog import written_catalog
from segmentstore.contracts.errors import SegmentStoreError, TierUnavailableError
from segmentstore.part_configs import unflushed_target
from storagewriter.storage_writer import StorageWriter
from tier2.archive.ledger_offloader import ArchiveDisabledError
from tier2.object_storage import StorageUnavailableError

if TYPE_CHECKING:
    from readindex.block_source import FetchWatch
    from segmentstore.container.archive_hold import ArchiveHold
    from segmentstore.container.log_archiver import LogArchiver
    from segmentstore.container.log_listing import LogListing
    from segmentstore.contracts.reports import ArchivedEntry, OffloadReport
    from storagewriter.garbage_pass import GarbagePass


class ContainerUpkeep(SegmentCalls):
    """Everything on the container's event loop; raises as `SegmentCalls`."""

    container_id: int
    _config: StoreConfig
    _log: DurableDataLog
    _writer: StorageWriter
    _checkpoints: MetadataCheckpoints
    _truncation: LogTruncation
    _archiver: LogArchiver | None
    _hold: ArchiveHold | None

    @abstractmethod
    def _throttle_changed(self) -> None:
        """Writers may have to wait less, or longer."""

    @property
    def epoch(self) -> int:
        """Of the log as opened by this container."""
        return self._log.epoch

    def resize_cache(self, cache_bytes: int) -> bool:
        """Have this share of the store's cache from now on.

        True: more is held, of which one turn drops a part; the caller calls again in the next.
        """
        self._writer.set_unflushed_target(unflushed_target(self._config, cache_bytes))
        more = self._read_index.resize_cache(cache_bytes)
        self._throttle_changed()
        return more

    async def written_catalog(self) -> KeySnapshot | None:
        """As `segmentstore.container.written_catalog.written_catalog`."""
        return await written_catalog(
            self.container_id,
            self._checkpoints,
            self._updater.changes,
            self._catalog,
            self._running,
        )

    def load(self) -> ContainerLoad:
        """How much it has to do. O(1)."""
        return ContainerLoad(
            bytes_appended=self._log.statistics().bytes_appended,
            bytes_read=self.bytes_read,
            unflushed_bytes=self._writer.statistics().unflushed_bytes,
            active_segments=len(self.segments),
        )

    async def flush(self, name: str | None = None) -> None:
        """Move what is committed by now, of one segment or of all, to Tier 2; waits while that is
        away.
        """
        if name is None:
            self.check_running()
            await self._writer.flush()
            return
        async with self.segment(name) as segment:
            await self._writer.flush(segment.segment_id)

    async def checkpoint(self) -> None:
        """Write a checkpoint, then truncate the log as far as Tier 2 allows.

        While a snapshot of the metadata fails there is no other: TierUnavailableError.
        """
        self.check_running()
        failing = None
        if await self._checkpoints.settled():
            await self._running().checkpoint()
            await self._checkpoints.settled()
        else:
            failing = self._checkpoints.health()
        self.check_running()
        await self._truncation.truncate_now()
        self._checkpoints.request_copy()
        self.check_running()
        if failing is not None:
            detail = f"container {self.container_id} writes no checkpoint: {failing}"
            raise TierUnavailableError("tier2", detail)

    async def settle(self, timeout_s: float) -> None:
        """Leave little to replay to the next opening, while calls go on: what was committed by now
        is in Tier 2, and the log begins with a checkpoint of it. No part is on its way to the
        archive, and none begins for `timeout_s`.

        Waits at most `timeout_s`, and not for a Tier 2 that is failing. What fails is reported
        where it fails; a stop may follow all the same.
        """
        if self._writer.is_failing:
            return
        with suppress(SegmentStoreError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                # In this order: a log begins with a checkpoint before which all is in Tier 2.
                await self.checkpoint()
                await self.flush()
                await self._truncation.truncate_now()
                await self._checkpoints.finish(timeout_s)
                if self._archiver is not None:
                    await self._archiver.pause(timeout_s)

    @property
    def is_kept_for_archive(self) -> bool:
        """Whether the log keeps parts for an archive that this owner does not have."""
        return self._archiver is None and self._hold is not None and self._hold.holds

    def _archiving(self) -> LogArchiver:
        """Raises ArchiveDisabledError."""
        self.check_running()
        if self._archiver is None:
            raise ArchiveDisabledError
        return self._archiver

    async def offload_prefix(self, before: int | None) -> OffloadReport:
        """As `LogArchiver.offload_prefix`. Raises ArchiveDisabledError."""
        # Not at the top: only a store with an archive pays for it.
        from segmentstore.contracts.reports import OffloadReport  # noqa: PLC0415

        parts = await self._archiving().offload_prefix(before)
        last = self.metadata.archive.last_sequence
        return OffloadReport(self.container_id, tuple(parts), last + 1)

    async def archived_parts(self) -> AsyncGenerator[ArchivedEntry, None]:
        """Of this container, oldest first. Raises as `offload_prefix`, and TierUnavailableError."""
        # Not at the top: only a store with an archive pays for it.
        from segmentstore.listed_entries import archived_entry  # noqa: PLC0415

        try:
            async with aclosing(self._archiving().lists.parts()) as found:
                async for place, part in found:
                    yield archived_entry(self.container_id, place, part)
        except StorageUnavailableError as error:
            raise TierUnavailableError("archive", str(error)) from error

    async def remove_archived(self, before: int) -> int:
        """As `LogArchiver.remove_prefix`. Raises ArchiveDisabledError, too."""
        return await self._archiving().remove_prefix(before)

    def list_log(self) -> LogListing:
        """What the log holds up to now."""
        # Not at the top: listings alone need it.
        from segmentstore.container.log_listing import LogListing  # noqa: PLC0415

        return LogListing(
            self.container_id, self._log, lambda: self.metadata.sequence_number, self.check_running
        )

    def begin_garbage_pass(self) -> GarbagePass:
        """A pass over all of Tier 2 for what this container does not need."""
        # Not at the top: searches alone need it.
        from storagewriter.garbage_pass import GarbagePass  # noqa: PLC0415

        return GarbagePass(
            self.metadata, self._writer.orphan_sweeper, self._writer.garbage_collector
        )

    async def process_mailbox(self) -> int:
        """Answer what jobs ask; give the number of answers. Raises TierUnavailableError."""
        self.check_running()
        try:
            return await self._writer.mailbox.drain()
        except StorageUnavailableError as error:
            raise TierUnavailableError("tier2", str(error)) from error

    def wake_mailbox(self) -> None:
        """Have the mailbox checked now, for a job that has put a message. O(1)."""
        self._writer.mailbox.pace.wake()

    def object_names(self) -> Iterable[str]:
        """Names of the objects in Tier 2 that segments have bytes in, as committed. A live view."""
        return self.metadata.objects.keys()

    def garbage_names(self) -> Iterable[str]:
        """Names of the objects in Tier 2 that wait for their deletion. A live view."""
        return self.metadata.garbage.keys()

    def watch_fetches(self, watch: FetchWatch) -> None:
        """Report each fetch from Tier 2 for a read."""
        self._read_index.watch(watch)
