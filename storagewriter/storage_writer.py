"""StorageWriter: takes committed operations, and moves their bytes to Tier 2.

Theory of operation. `add` is called with every committed operation, in the same turn of the event
loop that commits it to the metadata. `FlushLoop` uploads what is due. A segment's chunks are
committed in the order of its bytes. Only the committed operation makes bytes visible in Tier 2. An
upload that is cut off leaves at most an object that nothing refers to. Beside the flushes run the
parts that keep Tier 2 in order: consolidation, deletion of garbage, sweeps for orphans, the
mailbox.

Tier 2 failing shows in `health` and holds the log, nothing else. The log failing (not primary,
stopped, outcome unknown) ends the writer. Its container ends too, and recovery continues from the
log.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, KeysView, Sequence
from collections.abc import Set as AbstractSet

from durablelog.operations import Operation
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import OwnedTaskGroup, own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.weighted_gate import WeightedGate
from storagewriter.chunk_linker import ChunkLinker
from storagewriter.chunk_releaser import ChunkReleaser
from storagewriter.config import StorageWriterConfig, StorageWriterStatistics
from storagewriter.consolidator import Consolidator, rewrite_gate
from storagewriter.data_source import NO_OTHER_STORES, OtherStores, WriterDataSource
from storagewriter.flush_loop import FlushLoop
from storagewriter.garbage_collector import GarbageCollector
from storagewriter.mailbox_pace import MailboxGroup
from storagewriter.object_uploader import ObjectUploader
from storagewriter.orphan_sweeper import OrphanSweeper
from storagewriter.request_processor import RequestProcessor
from storagewriter.wall_clock import SteadyWallClock
from tier2.object_storage import ObjectStorage

_LOG_ENDED = (AppendOutcomeUnknownError, ContainerStoppedError, NotPrimaryError)

_DRAIN_CHECK_S = 0.1
"""How often a close checks whether Tier 2 has begun to fail."""


LATE_S = 30.0
"""How far beyond `flush_age_s` bytes may be before health says so, at least: an upload takes its
time.
"""


def _nothing(*_: object) -> None:
    pass


class StorageWriter:
    """The storage writer of one container; everything on the container's event loop.

    `on_advance()` is called soon after segments' storage lengths moved or segments went (once for
    many): fewer bytes are un-flushed, and the log may be truncated further. `on_failure(error)` is
    called once if something unforeseen stops the writer, kept as `failure`. `export` and `group` as
    of `RequestProcessor`, `rewrites` as of `Consolidator`.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        *,
        on_advance: Callable[[], None] = _nothing,
        on_failure: Callable[[BaseException], None] = _nothing,
        other_stores: OtherStores = NO_OTHER_STORES,
        export: Callable[[], Awaitable[str]] | None = None,
        group: MailboxGroup | None = None,
        rewrites: WeightedGate | None = None,
    ) -> None:
        self._on_failure = on_failure
        self.failure: BaseException | None = None
        self.garbage_collector = GarbageCollector(
            source, storage, config, runtime, other_stores.shared_with
        )
        self.chunk_releaser = ChunkReleaser(source, config, runtime)
        self._source = source
        self._config = config
        self._drained_some = asyncio.Event()
        self._executor = runtime.executor("storagewriter", 1)
        self._uploader = ObjectUploader(
            source, storage, config, runtime, self._executor, other_stores.mark
        )
        self.wall_clock = SteadyWallClock(runtime)
        aging = dataclasses.replace(runtime, clock=self.wall_clock)
        self.orphan_sweeper = OrphanSweeper(
            source,
            storage,
            config,
            aging,
            self.in_flight_names,
            self.garbage_collector.notice,
            other_stores,
        )
        self.consolidator = Consolidator(
            source,
            storage,
            config,
            runtime,
            self._uploader,
            self._executor,
            rewrites or rewrite_gate(config.consolidation_bytes),
            may_run=lambda: not self._flushes.is_over_target,
            on_garbage=self._notice_released,
        )
        self.mailbox = RequestProcessor(
            source,
            storage,
            config,
            aging,
            self._uploader,
            self.orphan_sweeper,
            self._executor,
            on_garbage=self._notice_released,
            export=export,
            group=group,
        )
        self._linker = ChunkLinker(source, config, runtime)
        self._flushes = FlushLoop(
            source,
            self._uploader,
            self._linker,
            config,
            side_by_side=not storage.is_local,
            on_advance=on_advance,
            on_settled=self._settled,
            on_ended=self._drained_some.set,
        )
        self._pending, self._uploads = self._flushes.pending, self._flushes.uploads
        self._task: asyncio.Task[None] | None = None
        self._stopping = self._stopped = False

    # --- the container's side ---------------------------------------------------------------------

    def add(self, operations: Sequence[Operation]) -> None:
        """Take operations just committed to the metadata, in order, live or in replay. < 1 us per
        append.

        What Tier 2 has already is passed over. After the writer stopped nothing happens.
        """
        if not self._stopped:
            self._flushes.add(operations)

    def start(self) -> None:
        """Begin to flush; after replay.

        Raises DataCorruptionError if the log lacks bytes that Tier 2 lacks too.
        """
        assert self._task is None, "a writer starts once"
        assert not self._stopped, "a writer that was stopped does not start again"
        self.check_log()
        name = f"storage writer {self._source.metadata.container_id}"
        self._task = own_task(self._run(), name=name, on_failure=self._ended)

    def check_log(self) -> None:
        """After replay.

        Raises DataCorruptionError if the log lacks bytes that Tier 2 lacks too. `start` does it.
        """
        self._pending.start()

    def set_unflushed_target(self, target_bytes: int) -> None:
        """Flush everything pending from now on once it has so many bytes: there is more, or less,
        room for it. O(1).
        """
        self._flushes.set_target(target_bytes)

    async def drain(self, timeout_s: float) -> None:
        """Begin no more uploads, and let those on their way end: cut off, each would leave an
        orphan in Tier 2.

        Waits at most `timeout_s`, and not for a Tier 2 that is failing. For an ordinary close,
        before `stop`.
        """
        self._uploads.draining = self.consolidator.draining = self.mailbox.draining = True
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while self._is_draining() and loop.time() < give_up:
            self._drained_some.clear()
            timer = loop.call_later(_DRAIN_CHECK_S, self._drained_some.set)
            try:
                await self._drained_some.wait()
            finally:
                timer.cancel()

    @property
    def is_failing(self) -> bool:
        """Whether a tier does not answer, so that nothing gets to Tier 2 now."""
        return self._uploader.failing() is not None

    def _is_draining(self) -> bool:
        """Something is on its way that is worth waiting for."""
        if self._stopped:
            return False
        uploading = self._uploads.count and self._uploader.failing() is None
        return bool(uploading) or (
            self.consolidator.uploading and self.consolidator.health.describe() is None
        )

    async def stop(self, cause: BaseException | None = None) -> None:
        """Cancel what runs and wait for it; those who wait for a flush get an error, which names
        `cause`. Idempotent.
        """
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._close(cause)
        await self.consolidator.close()
        self._executor.shutdown(wait=False)

    async def flush(self, segment_id: int | None = None) -> None:
        """Return when all bytes committed by now (of one segment with what was merged into it, or
        of all) are in Tier 2.

        An unknown segment has none. Waits as long as it takes; raises ContainerStoppedError, or
        TierUnavailableError if Tier 2 was failing, only if the writer stops.
        """
        if self._stopped:
            raise self._stop_error()
        await self._flushes.flush(segment_id)

    def request_flush(self) -> None:
        """Flush what is pending now, if no upload is under way: a caller is held back by it.

        O(dirty segments) of a pointer each then; the task makes them due, in slices.
        """
        if not self._stopped:
            self._flushes.request()

    @property
    def unflushed_bytes(self) -> int:
        """Committed bytes not in Tier 2, those on their way included."""
        return self._pending.unflushed_bytes

    @property
    def settled_bytes(self) -> int:
        """Bytes that have left `unflushed_bytes` since the writer was made."""
        return self._pending.settled_bytes

    @property
    def is_flushing(self) -> bool:
        """Whether bytes are on their way, or go as soon as something sees to it."""
        return self._uploads.count > 0 or self._flushes.is_over_target

    def unflushed_bytes_of(self, segment_id: int) -> int:
        """Those of one segment, without what was merged into it. O(1)."""
        aggregator = self._pending.dirty.get(segment_id)
        return aggregator.pending_bytes if aggregator is not None else 0

    @property
    def pending_segments(self) -> int:
        """Segments with bytes that are not in Tier 2."""
        return len(self._pending.dirty)

    @property
    def segments_due(self) -> int:
        """Of these, those that an upload has, or that the next ones take."""
        return len(self._pending.ready) + len(self._pending.busy)

    def first_unflushed_sequence(self) -> int | None:
        """The log may be truncated at a checkpoint below this; None: at any.

        Never too high, amortized O(log n).
        """
        return self._pending.first_sequence_number()

    def flush_order(self) -> list[int]:
        """Segments that have bytes for Tier 2 and are in no upload, about in the order in which
        they go. O(these).
        """
        return self._pending.in_order()

    def busy_segments(self) -> AbstractSet[int]:
        """Segments that an upload has, or is reading. A live view."""
        return self._pending.busy

    @property
    def unflushed_age_s(self) -> float:
        """Seconds since the oldest byte that is not in Tier 2 was committed, or replayed by this
        owner; 0.0 if none is.
        """
        first = self._pending.first_time()
        return 0.0 if first is None else asyncio.get_running_loop().time() - first

    def _late(self) -> str | None:
        """A flush that does not get on, whatever the cause, shows in the age of what waits for
        it.
        """
        age, due = self.unflushed_age_s, self._config.flush_age_s
        if self._stopped or age <= due + max(due, LATE_S):
            return None
        pending = self._pending
        return (
            f"the oldest bytes that are not in tier2 are {age:.0f} s old, flush_age_s is {due:g}:"
            f" {pending.unflushed_bytes:,} bytes of {len(pending.dirty):,} segments "
            f"wait, {self._uploads.count} uploads under way"
        )

    def health(self) -> str | None:
        """None while healthy, else one sentence."""
        if self.failure is not None:
            return f"storage writer stopped by {type(self.failure).__name__}: {self.failure}"
        return (
            self._uploader.failing()
            or self._late()
            or self.garbage_collector.health.describe()
            or self.chunk_releaser.health.describe()
            or self._linker.health.describe()
            or self.consolidator.describe()
            or self.mailbox.describe()
            or self.wall_clock.describe()
        )

    @property
    def in_flight_names(self) -> KeysView[str]:
        """Names of objects that may be in Tier 2 and are not in the metadata yet, for an upload is
        under way. A live view.
        """
        return self._uploader.in_flight.keys()

    def in_use(self, name: str) -> bool:
        """Whether an object is being consolidated, or reported by operations of which one may still
        come.

        An object forgotten between two of these would come to life again by the second, without its
        bytes.
        """
        return self.consolidator.in_use(name) or name in self._uploader.in_flight

    def statistics(self) -> StorageWriterStatistics:
        """Numbers as of now. O(1)."""
        return StorageWriterStatistics(
            segments_pending=len(self._pending.dirty),
            unflushed_bytes=self._pending.unflushed_bytes,
            unflushed_age_s=self.unflushed_age_s,
            uploads_in_flight=self._uploads.count,
            upload_bytes_in_flight=self._uploads.bytes_in_flight,
            objects_written=self._uploads.objects,
            blocks_written=self._uploads.blocks,
            bytes_written=self._uploads.bytes_written,
            links=self._linker.links,
            upload_failures=self._uploader.health.failures,
            name_collisions=self._uploader.collisions,
            consolidations=self.consolidator.consolidations,
            consolidated_objects=self.consolidator.sources,
            bytes_copied=self.consolidator.bytes_copied,
            bytes_rewritten=self.consolidator.bytes_rewritten,
            replacements_refused=self.consolidator.refused,
            consolidation_failures=self.consolidator.failures,
            garbage_waiting=len(self._source.metadata.garbage),
            garbage_deleted=self.garbage_collector.deleted,
            garbage_failures=self.garbage_collector.health.failures,
            sweeps=self.orphan_sweeper.sweeps,
            sweep_failures=self.orphan_sweeper.health.failures,
            orphans_found=self.orphan_sweeper.orphans_found,
            orphan_bytes=self.orphan_sweeper.orphan_bytes,
            uploads_aborted=self.orphan_sweeper.uploads_aborted,
            messages_waiting=self.mailbox.waiting,
            messages_answered=self.mailbox.answered,
            proposals_committed=self.mailbox.proposals_committed,
            proposals_refused=self.mailbox.proposals_refused,
            mailbox_failures=self.mailbox.health.failures,
            wall_clock_jumps=self.wall_clock.jumps,
        )

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with OwnedTaskGroup() as group:
                self._begin_parts(group)
                await self._flushes.run(group)
        except BaseExceptionGroup as errors:
            self._fail(_first(errors))

    def _ended(self, error: BaseException) -> None:
        """The task ended by what no part raised.

        Without it no flush ends: waiting callers must be notified of it.
        """
        if not self._stopping:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._close(error)
        if not isinstance(error, _LOG_ENDED):
            self._on_failure(error)

    def _begin_parts(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self.garbage_collector.run())
        group.create_task(self.chunk_releaser.run())
        group.create_task(self.orphan_sweeper.run())
        group.create_task(self.mailbox.run())
        if self._config.consolidation:
            group.create_task(self.consolidator.run())

    def _settled(self) -> None:
        self._notice_released()
        self.consolidator.notice()

    def _notice_released(self) -> None:
        """There may be objects to delete, or chunks to release."""
        self.garbage_collector.notice()
        self.chunk_releaser.notice()

    # --- the end ----------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        if not self._stopped:
            self._stopped = True
            self.failure = error
            self.mailbox.pace.group.leave(self.mailbox.pace)
            self._flushes.waiters.fail(self._stop_error())

    def _stop_error(self) -> SegmentStoreError:
        if isinstance(self.failure, ContainerNotServedError):
            return self.failure.again()
        failing = self._uploader.health.describe()
        if failing is not None and self.failure is None:
            return TierUnavailableError("tier2", failing)
        return ContainerStoppedError(self._source.metadata.container_id, self.failure)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the group: the first that is not a group itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
