"""ContainerParts: the machinery of one container, built and joined.

The parts know nothing of each other; what flows between them flows through here:

- the operation processor commits operations -> `CommitDispatch` passes them to the read index and
  the storage writer;
- the storage writer asks for bytes and commits what it uploaded -> `WriterSource`;
- Tier 2 has moved on -> `LogTruncation` cuts the log behind it, and throttled callers are checked
  again;
- the cache has lost un-flushed bytes -> one rescan of the log brings them back, for all who wait
  (`LogRescan`);
- any part fails for good -> `_failed`: the container stops everything, and notifies all callers
  that wait.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.durable_data_log import DurableDataLog
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_processor import OperationProcessor
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.read_index import ReadIndex
from segmentstore.config import StoreConfig
from segmentstore.container.active_segments import ActiveSegments
from segmentstore.container.archive_hold import ArchiveHold
from segmentstore.container.commit_dispatch import CommitDispatch
from segmentstore.container.container_upkeep import ContainerUpkeep
from segmentstore.container.eviction import Eviction
from segmentstore.container.log_truncation import LogTruncation
from segmentstore.container.metadata_checkpoints import (
    MetadataCheckpoints,
    active_metadata_bytes_max,
    active_segments_max,
)
from segmentstore.container.partial_segments import PartialSegments
from segmentstore.container.write_throttle import WriteThrottle
from segmentstore.container.writer_source import WriterSource
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.weighted_gate import WeightedGate
from segmentstore.log_rescan import LogRescan
from segmentstore.part_configs import read_index_config, writer_config
from storagewriter.data_source import NO_OTHER_STORES, OtherStores
from storagewriter.mailbox_pace import MailboxGroup
from storagewriter.storage_writer import StorageWriter
from tier2.block_reader import BlockReader
from tier2.object_storage import ObjectStorage

if TYPE_CHECKING:
    from segmentstore.container.log_archiver import LogArchiver
    from tier2.archive.archive_place import ArchivePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResources:
    """What a container is given by its store."""

    log: DurableDataLog
    storage: ObjectStorage
    cache: CacheStorage
    addresses: CacheAddresses
    cache_bytes: int
    """Its share of the cache."""
    config: StoreConfig
    runtime: Runtime
    store_id: str
    created: bool = False
    """The store was made in this very opening."""
    other_stores: OtherStores = NO_OTHER_STORES
    export: Callable[[ContainerParts], Awaitable[str]] | None = None
    """Puts a snapshot of this container's catalog into Tier 2, and gives the name of its manifest.
    """
    mailboxes: MailboxGroup | None = None
    """Of the store's containers in this process, like `rewrites`."""
    rewrites: WeightedGate | None = None
    catalog: MetadataCatalog
    archive: ArchivePlace | None = None
    """Sealed parts of the log go there."""


class ContainerParts(ContainerUpkeep):
    """Each method of joining needs the parts of those before it."""

    def __init__(self, container_id: int, given: ContainerResources) -> None:
        self.container_id = container_id
        self.store_id = given.store_id
        self.metadata = ContainerMetadata(container_id)
        self.segments = self.metadata.segments
        self.segment_ids = self.metadata.names
        self._config = given.config
        self._runtime = given.runtime
        self._log = given.log
        self._catalog = given.catalog
        self._updater = MetadataUpdater(self.metadata, given.config.attributes_per_segment_max)
        self._positions = LogPositions(given.log.part_of)
        self._processor: OperationProcessor | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._join_reading(given)
        source = WriterSource(
            given.store_id,
            self.metadata,
            given.log,
            self._read_index,
            self._active,
            processor=self._running,
            in_use=lambda name: self._reader.in_use(name) or self._writer.in_use(name),
            on_fenced=self._failed,
        )
        self._check_primary = source.check_primary
        self._join_writing(given, source)
        self._join_archive(given.archive, source)
        self._join_log(source)

    def _join_reading(self, given: ContainerResources) -> None:
        """The read index, and what decides which segments are in memory."""
        config = given.config
        self._reader = BlockReader(
            given.storage,
            self.container_id,
            given.runtime,
            extent_bytes=config.writer.extent_bytes,
            object_size=self._object_size,
        )
        self._eviction = Eviction(
            self._updater,
            active_segments_max(config),
            self._request_room,
            self._evicted,
        )
        self._partial = PartialSegments(
            self._updater,
            given.catalog,
            active_metadata_bytes_max(config),
            self._eviction.evict,
            self._failed,
        )
        self._read_index = ReadIndex(
            self.metadata,
            given.cache,
            given.addresses,
            self._reader,
            self._refill,
            read_index_config(config, given.storage, given.cache_bytes),
            given.runtime,
            read_log=given.log.read_ranges,
            unflushed_bytes=lambda: self._writer.unflushed_bytes,
            on_spilled=self._throttle_changed,
            know_chunk=self._partial.know_chunk,
        )
        self._active = ActiveSegments(
            self._updater,
            given.catalog,
            self._eviction,
            self._partial,
            config.processor.queue_bytes_max,
            self._failed,
        )

    def _join_writing(self, given: ContainerResources, source: WriterSource) -> None:
        """What brings bytes and metadata to Tier 2."""
        export = given.export
        self._writer = StorageWriter(
            source,
            given.storage,
            writer_config(given.config, given.cache_bytes),
            given.runtime,
            on_advance=self._storage_advanced,
            on_failure=self._failed,
            other_stores=given.other_stores,
            export=partial(export, self) if export is not None else None,
            group=given.mailboxes,
            rewrites=given.rewrites,
        )
        self._checkpoints = MetadataCheckpoints(
            source,
            given.storage,
            given.catalog,
            self._updater,
            self._positions,
            given.config,
            given.runtime,
            on_snapshot=self._snapshot_ended,
            on_written=self._metadata_written,
            on_failure=self._failed,
        )

    def _join_archive(self, archive: ArchivePlace | None, source: WriterSource) -> None:
        """What keeps the log until its archive has it."""
        self._archiver: LogArchiver | None = None
        self._hold: ArchiveHold | None = None
        config = self._config.archiving
        if not config.archive:
            self._hold = ArchiveHold(self.metadata, self._log, self._positions, self._runtime.clock)
        if archive is not None:
            from segmentstore.container.log_archiver import LogArchiver  # noqa: PLC0415

            self._hold = self._archiver = LogArchiver(
                source,
                self._log,
                self._positions,
                archive,
                config,
                replace(self._runtime, clock=self._writer.wall_clock),
                self._archive_advanced,
                self._failed,
            )

    def _join_log(self, source: WriterSource) -> None:
        """What follows from commits, and from room in the log."""
        self._rescan = LogRescan(
            self._log,
            self.metadata,
            self._positions,
            self._read_index,
            self._writer,
            source.check_primary,
        )
        self._truncation = LogTruncation(
            self.container_id,
            self._log,
            self._positions,
            self._writer,
            self._checkpoints.truncated,
            self._failed,
            self._hold,
        )
        self._log.on_room = self._truncation.room_changed
        self._dispatch = CommitDispatch(
            self.metadata,
            self._read_index,
            self._writer,
            self._eviction,
            self._truncation.begin,
        )
        self._throttle = WriteThrottle(
            self._log, self._read_index, self._writer, self._config, self._hold
        )

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """A part has failed for good. Called on the loop, from anywhere."""

    def _snapshot_ended(self, succeeded: bool) -> None:  # noqa: FBT001
        """A checkpoint by reference is a truncation point, or never will be; another may be
        taken.
        """
        self._truncation.begin()
        if self._processor is not None:
            if not succeeded:
                # Nothing else may come that asks for one: a full log takes no appends.
                self._processor.checkpoint_soon(even_if_empty=True)
            self._processor.checkpoint_source_ready()

    def _request_room(self, unflushed: bool, unwritten: bool) -> None:  # noqa: FBT001
        """Segments have to leave memory, and cannot: their bytes are not in Tier 2, or their
        metadata not in the catalog.
        """
        if unflushed:
            self._writer.request_flush()
        if unwritten and self._processor is not None:
            self._checkpoints.make_evictable()
            # What was replayed is not in the catalog, though a checkpoint followed it.
            self._processor.checkpoint_soon(even_if_empty=True)

    def _metadata_written(self) -> None:
        """What changed until the last checkpoint is in the catalog: it may leave memory."""
        self._eviction.written()
        self._partial.written()

    def _evicted(self, segment: SegmentMetadata) -> None:
        self._read_index.evicted(segment.segment_id)
        self._active.evicted(segment)

    def _storage_advanced(self) -> None:
        """Tier 2 has more than before: writers may go on, the log may be cut."""
        self._eviction.storage_advanced(self._writer.segments_due)
        self._throttle_changed()
        self._truncation.storage_advanced()
        if self._processor is not None and self._updater.changes.are_many:
            self._processor.checkpoint_soon(even_if_empty=True)

    def _archive_advanced(self) -> None:
        """The archive has more than before, or the log may delete what it has."""
        self._throttle_changed()
        self._truncation.begin()

    def _throttle_changed(self) -> None:
        if self._processor is not None:
            self._throttle.observe()
            self._processor.throttle_changed()

    async def _refill(self, wanted: Mapping[int, int]) -> None:
        """Bring back un-flushed bytes that memory and cache have lost.

        The read index asks for one at a time.
        """
        await self._rescan.run(wanted)

    def _object_size(self, name: str) -> int | None:
        live = self.metadata.objects.get(name)
        return live.record.size if live is not None else None
