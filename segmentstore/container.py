"""SegmentContainer: owner of a set of segments.

Builds one log's machinery, joins the parts, stops them together.

The parts know nothing of each other; what flows between them flows through here:

- the operation processor commits operations -> `_on_commit` tells the read index and the storage
  writer;
- the storage writer asks for bytes and commits what it uploaded -> this is its WriterDataSource;
- Tier 2 has moved on -> the log is truncated behind it, and whoever was throttled is looked at
  again;
- the cache has lost un-flushed bytes -> one rescan of the log brings them back, for all who wait
  (`LogRescan`);
- any part fails for good -> everything stops, and everybody who waits is told.

Life: new -> recovering -> running -> stopped; it never runs twice.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from durablelog.durable_data_log import DurableDataLog, LogFullError
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_processor import OperationProcessor, ProcessorConfig, ProcessorStatistics
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    OwnersOperation,
    ReplaceChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from durablelog.throttler import Load, Throttle, throttle
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.read_index import ReadIndex
from readindex.unflushed_reads import GoneError
from recovery.recovery_processor import RecoveryReport, recover
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    ForkedStoreError,
    NotPrimaryError,
    SegmentNotFoundError,
    SegmentStoreError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast
from segmentstore.log_rescan import LogRescan
from segmentstore.part_configs import read_index_config, writer_config
from storagewriter.data_source import NO_OTHER_STORES, OtherStores
from storagewriter.mailbox_pace import MailboxGroup
from storagewriter.metadata_backup import MetadataBackup
from storagewriter.storage_writer import StorageWriter
from tier2.block_reader import BlockReader
from tier2.object_storage import ObjectStorage, StorageUnavailableError

_log = logging.getLogger(__name__)

_LANDING_PATIENCE_S = 5.0
"""Longest that an ordinary close waits for uploads on their way, and as long again for a copy of
the metadata.
"""


class ContainerState(enum.Enum):
    """Where a container is in its life."""

    NEW = "new"
    RECOVERING = "recovering"
    RUNNING = "running"
    STOPPED = "stopped"


class SegmentContainer:
    """One container. Everything on one event loop; public calls come from the service."""

    def __init__(
        self,
        container_id: int,
        *,
        log: DurableDataLog,
        storage: ObjectStorage,
        cache: CacheStorage,
        addresses: CacheAddresses,
        config: StoreConfig,
        runtime: Runtime,
        store_id: str,
        made: bool = False,
        other_stores: OtherStores = NO_OTHER_STORES,
        export: Callable[[SegmentContainer], Awaitable[str]] | None = None,
        mailboxes: MailboxGroup | None = None,
    ) -> None:
        """`made`: the store was made in this very opening.

        `export` puts a snapshot of this container's catalog into Tier 2, and gives the name of its
        manifest. `mailboxes` are those of the store's containers in this process.
        """
        self.container_id = container_id
        self.store_id = store_id
        self.state = ContainerState.NEW
        self.failure: BaseException | None = None
        self.stop_cause: BaseException | None = None
        """Why it is being stopped, if nobody called `close`: what calls get from then on."""
        self.recovery: RecoveryReport | None = None
        self.metadata = ContainerMetadata(container_id)
        self.log = log
        log.on_room = self._log_room_changed
        self._config = config
        self._runtime = runtime
        self._made = made
        self._updater = MetadataUpdater(self.metadata)
        self._positions = LogPositions()
        self._reader = BlockReader(
            storage,
            container_id,
            runtime,
            extent_bytes=config.extent_bytes,
            object_size=self._object_size,
        )
        self.read_index = ReadIndex(
            self.metadata,
            cache,
            addresses,
            self._reader,
            self._refill,
            read_index_config(config, storage),
            runtime,
            unflushed_bytes=lambda: self.writer.unflushed_bytes,
            on_spilled=self._spilled,
        )
        self.writer = StorageWriter(
            self,
            storage,
            writer_config(config),
            runtime,
            on_advance=self._storage_advanced,
            on_failure=self._failed,
            other_stores=other_stores,
            export=partial(export, self) if export is not None else None,
            group=mailboxes,
        )
        self._rescan = LogRescan(
            log, self.metadata, self._positions, self.read_index, self.writer, self.check_primary
        )
        self.backup = MetadataBackup(self, storage, store_id, config.containers, runtime)
        self._processor: OperationProcessor | None = None
        self._truncating: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._made_room = False

    # --- life -------------------------------------------------------------------------------------

    async def start(self, view: SegmentStoreError | None = None) -> None:
        """Open the log (fencing whoever had it), recover, serve.

        On any failure everything is released again.

        With `view` the log is not ours, and reads alone are served: nothing is sequenced, flushed,
        deleted or answered. There is no processor then, and the storage writer ends before it
        begins; refused calls name `view` as the cause.
        """
        assert self.state is ContainerState.NEW
        self.state = ContainerState.RECOVERING
        try:
            await self.log.open()
            self.recovery = await recover(
                self.log, self._updater, self._positions, self._on_commit, self.read_index
            )
            if view is not None:
                await self._begin_view(view, self.recovery)
                return
            self._updater.begin_epoch()
            self._processor = OperationProcessor(
                log=self.log,
                updater=self._updater,
                positions=self._positions,
                config=ProcessorConfig(
                    queue_bytes_max=self._config.queue_bytes_max,
                    in_flight_bytes_max=self._config.in_flight_bytes_max,
                    checkpoint_operations=self._config.checkpoint_operations,
                    checkpoint_bytes=self._config.checkpoint_bytes,
                ),
                clock=self._runtime.clock,
                on_commit=self._on_commit,
                on_failure=self._failed,
                throttle=self._throttle,
                unflushed_of=self.writer.unflushed_bytes_of,
            )
            self._processor.note_replayed(
                self.recovery.operations_since_checkpoint,
                self.recovery.bytes_since_checkpoint,
                self.recovery.checkpoint_bytes,
            )
            if not self.recovery.operations:
                await self._refuse_a_lost_log()
                await self._processor.first_checkpoint()
            self.state = ContainerState.RUNNING
            self.writer.start()
            self.backup.start()
        except BaseException as error:
            self.failure = error
            # In a task of its own: whoever is cancelled once more here must not leave half of it
            # open.
            self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")
            await outlast(self._stopping)
            if not self._stopping.cancelled():
                self._stopping.exception()  # the first failure is the one to tell
            raise

    async def _begin_view(self, reason: SegmentStoreError, recovery: RecoveryReport) -> None:
        if not recovery.operations:
            await self._refuse_a_lost_log()
        self.writer.check_log()
        await self.writer.stop(reason)
        self.stop_cause, self.state = reason, ContainerState.RUNNING

    async def _refuse_a_lost_log(self) -> None:
        """The log holds nothing.

        If it ever held something, an owner of it would in time delete what a restore wants.

        A log may hold nothing because the making of the store was cut off: of that one Tier 2 has
        no copy. A log in memory holds nothing at every opening, by design.
        """
        if self._made or self._config.tier1 == "memory":
            return
        try:
            copy = await self.backup.find_copy()
        except StorageUnavailableError as error:
            raise TierUnavailableError("tier2", str(error)) from error
        if copy is not None:
            # Or a new owner has begun it since we looked.
            await self.log.check_primary()
            detail = (
                f"the log is gone, and tier2 has {copy}: nothing was deleted, see docs/restore.md"
            )
            raise DataCorruptionError(f"log of container {self.container_id}", detail)

    async def stop(self) -> None:
        """Let what was taken become durable, then stop.

        Works under full throttle and after a failure. Idempotent.
        """
        if self.state is ContainerState.RUNNING and self._processor is not None:
            await self._processor.close(self.stop_cause)
            await self.writer.land(_LANDING_PATIENCE_S)
            await self.backup.finish(_LANDING_PATIENCE_S)
        if self._stopping is None:
            if self.state is ContainerState.STOPPED:
                return
            self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")
        await asyncio.shield(self._stopping)

    def _failed(self, error: BaseException) -> None:
        """A part has failed for good: stop everything else. Called on the loop, from anywhere."""
        if (
            self.failure is not None
            or self._stopping is not None
            or self.state is ContainerState.STOPPED
        ):
            return
        self.failure = error
        _log.error("container %d stops: %s", self.container_id, describe(error))
        if self._processor is not None:
            self._processor.fail(error)
        self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")

    async def _stop_parts(self) -> None:
        self.state = ContainerState.STOPPED
        await self.writer.stop(self.stop_cause)
        await self.backup.stop()
        if self._truncating is not None:
            await asyncio.wait([self._truncating])
        if self._processor is not None:
            self._processor.fail(
                self.failure or self.stop_cause or ContainerStoppedError(self.container_id)
            )
        await self.read_index.close()
        await self._reader.close()
        await self.log.close()

    def forked(self, process_id: int) -> None:
        """This process is a fork of the owner's: from here on no call does anything, and nothing is
        stopped either.
        """
        self.failure = ForkedStoreError(process_id)
        self.state = ContainerState.STOPPED

    @property
    def processor(self) -> OperationProcessor:
        """The running processor.

        Raises ContainerStoppedError or NotPrimaryError when there is none to serve.
        """
        processor = self._processor
        if processor is None or self.state is not ContainerState.RUNNING:
            raise self.stopped_error()
        return processor

    def check_running(self) -> None:
        """Raise ContainerStoppedError or NotPrimaryError unless the container serves."""
        if self.state is not ContainerState.RUNNING:
            raise self.stopped_error()

    def stopped_error(self) -> ContainerStoppedError | NotPrimaryError | ForkedStoreError:
        """What a call on this container gets when it does not run."""
        if isinstance(self.failure, ForkedStoreError):
            return self.failure
        if isinstance(self.failure, NotPrimaryError):
            return NotPrimaryError(self.container_id, "this owner was fenced")
        return ContainerStoppedError(self.container_id, self.failure or self.stop_cause)

    # --- names ------------------------------------------------------------------------------------

    def find(self, name: str) -> SegmentMetadata:
        """The segment of this name. Raises SegmentNotFoundError."""
        segment_id = self.metadata.names.get(name)
        if segment_id is None:
            raise SegmentNotFoundError(name)
        return self.metadata.segments[segment_id]

    async def read_segment(
        self, segment_id: int, offset: int, length_max: int, wait: float | None
    ) -> bytes:
        """Read by id. Raises what `ReadIndex.read` raises, and ContainerStoppedError."""
        self.check_running()
        return await self.read_index.read(segment_id, offset, length_max, wait)

    # --- WriterDataSource -------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the log as opened by this container."""
        return self.log.epoch

    async def read_unflushed(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> Sequence[Sequence[bytes] | GoneError]:
        """Committed bytes for an upload, from wherever they lie."""
        return await self.read_index.read_unflushed(ranges)

    async def commit(self, operation: OwnersOperation) -> None:
        """An operation of the storage writer, through the log, past the throttle."""
        await self.processor.submit(operation, own=True)

    async def check_primary(self) -> None:
        """Raise NotPrimaryError, and stop, if another owner has opened the log;
        TierUnavailableError if nobody can tell.
        """
        try:
            await self.log.check_primary()
        except NotPrimaryError as error:
            self._failed(error)
            raise

    def object_in_use(self, name: str) -> bool:
        """True while a read, or a consolidation, has the object open, or an upload of it is not all
        committed.
        """
        return self._reader.in_use(name) or self.writer.in_use(name)

    def _object_size(self, name: str) -> int | None:
        live = self.metadata.objects.get(name)
        return live.record.size if live is not None else None

    # --- what flows -------------------------------------------------------------------------------

    def _on_commit(self, operations: Sequence[Operation]) -> None:
        """Committed operations, live or replayed, in order: the read index first, then the storage
        writer.
        """
        index = self.read_index
        for operation in operations:
            if type(operation) is AppendOperation:
                index.append(operation.segment_id, operation.offset, operation.data)
            else:
                self._on_other_commit(operation)
        self.writer.add(operations)

    def _on_other_commit(self, operation: Operation) -> None:
        index = self.read_index
        if isinstance(operation, StorageUpdateOperation):
            # Segments deleted while their bytes were on the way to Tier 2 are passed over here as
            # in the metadata.
            segments = self.metadata.segments
            for segment_id in {segment_id for segment_id, _ in operation.chunks}:
                if segment_id in segments:
                    index.storage_advanced(segment_id)
            for target_id, source_id in operation.links:
                if target_id in segments:
                    index.merge_linked(target_id, source_id)
        elif isinstance(operation, ReplaceChunksOperation):
            for segment_id, _, _ in operation.replacements:
                if segment_id in self.metadata.segments:
                    index.replaced(segment_id)
        elif isinstance(operation, MergeOperation):
            index.merged(operation.target_id, operation.source_id)
        elif isinstance(operation, TruncateOperation):
            index.truncated(operation.segment_id)
        elif isinstance(operation, SealOperation):
            index.sealed(operation.segment_id)
        elif isinstance(operation, DeleteOperation):
            index.deleted(operation.segment_id)
        elif isinstance(operation, CheckpointOperation):
            # Its place is known once this turn is over: perhaps everything before it is in Tier 2
            # already.
            asyncio.get_running_loop().call_soon(self._begin_truncation)
            if self.state is ContainerState.RECOVERING:
                index.adopt_merges()

    def _throttle(self) -> Throttle:
        config = self._config
        asked = throttle(
            Load(
                cache=self.read_index.pressure,
                unflushed=self.writer.unflushed_bytes / config.unflushed_bytes_max,
                log=1.0 if self.log.full else 0.0,
            )
        )
        if not asked.delay_s:
            return asked
        if self.log.full and not self.log.short:
            return asked  # for the moment until the next file is there: no flush helps
        # Writers must never wait for bytes that nobody moves: a cache may refuse long before the
        # targets.
        self.writer.hurry()
        if self.log.full:
            # What room is left in the log is not for callers.
            return replace(asked, relief_bytes=self.log.relief_bytes)
        unflushed = self.writer.unflushed_bytes
        room_held = int(
            config.tail_bytes_max * (1.0 - self.read_index.pressure)
        )  # the cache may refuse
        room = min(config.unflushed_bytes_max - unflushed, room_held)
        # Half the mean: of segments that use about the same none goes before the others.
        fair = unflushed // (2 * max(1, self.writer.pending_segments))
        return replace(asked, room_bytes=room, fair_bytes=fair)

    def _storage_advanced(self) -> None:
        """Tier 2 has more than before: writers may go on, the log may be cut."""
        if self._processor is not None:
            self._processor.relieve()
        self._begin_truncation()
        if self.log.short:
            self._make_room()

    def _spilled(self) -> None:
        if self._processor is not None:
            self._processor.relieve()

    async def _refill(self, wanted: Mapping[int, int]) -> None:
        """Bring back un-flushed bytes that memory and cache have lost.

        The read index asks for one at a time.
        """
        await self._rescan.run(wanted)

    # --- the log's head ---------------------------------------------------------------------------

    def _log_room_changed(self) -> None:
        if self._processor is None or self.state is not ContainerState.RUNNING:
            return
        if self.log.short:
            self._make_room()
        else:
            self._made_room = False
            self._processor.relieve()
            # One that found no room may find it now.
            self._begin_truncation()

    def _make_room(self) -> None:
        """The log's disk is full: flush, then write a checkpoint where one lets more be truncated,
        then truncate.
        """
        assert self._processor is not None
        self.writer.hurry()
        if self._positions.newer_would_free(self.writer.first_unflushed_sequence()):
            # Once, even if nothing was logged since: the checkpoint may be in an older file than
            # what comes.
            self._processor.checkpoint_soon(even_if_empty=not self._made_room)
            self._made_room = True
        self._begin_truncation()

    async def checkpoint(self) -> None:
        """Write a checkpoint, then truncate the log as far as Tier 2 allows."""
        await self.processor.checkpoint()
        while (running := self._truncating) is not None:
            await asyncio.wait([running])
        self._begin_truncation()
        if (begun := self._truncating) is not None:
            await asyncio.shield(begun)
        self.backup.request(now=True)
        self.check_running()

    def _begin_truncation(self) -> None:
        if (
            self._truncating is not None
            or self.state is not ContainerState.RUNNING
            or self._processor is None
        ):
            return
        if self._positions.truncation_point(self.writer.first_unflushed_sequence()) is None:
            return
        self._truncating = own_task(self._truncate_log(), name=f"truncate-{self.container_id}")

    async def _truncate_log(self) -> None:
        try:
            point = self._positions.truncation_point(self.writer.first_unflushed_sequence())
            if point is not None:
                sequence_number, address = point
                await self.log.truncate(address)
                self._positions.truncated(sequence_number)
                self.backup.request()
        except LogFullError as error:
            # Health says so; the log asks again when it looks for room.
            _log.warning("container %d: %s", self.container_id, error)
        except Exception as error:  # noqa: BLE001 - a log that cannot say what it holds must not be written on
            self._failed(error)
        finally:
            self._truncating = None

    # --- numbers ----------------------------------------------------------------------------------

    def processor_statistics(self) -> ProcessorStatistics | None:
        """The operation processor's numbers, once there is one."""
        return self._processor.statistics() if self._processor is not None else None

    def health(self) -> list[str]:
        """What is wrong, one sentence each; empty when all is well."""
        findings = []
        if self.failure is not None:
            findings.append(f"container {self.container_id} is stopped: {describe(self.failure)}")
        log = self.log.health()
        if log is not None and self.failure is None:
            findings.append(f"container {self.container_id}: {log}")
        writer = self.writer.health()
        if writer is not None:
            findings.append(f"container {self.container_id}: {writer}")
        backup = self.backup.health.describe()
        if backup is not None:
            findings.append(f"container {self.container_id}: {backup}")
        if self._processor is not None and self.state is ContainerState.RUNNING:
            throttled_by = self._processor.statistics().throttled_by
            if throttled_by:
                findings.append(
                    f"container {self.container_id}: writers are held back by {throttled_by}"
                )
        return findings
