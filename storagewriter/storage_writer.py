"""StorageWriter: takes committed operations and sees to it that their bytes come to Tier 2.

Theory of operation. `add` is called with every committed operation, in the same turn of the event loop
that commits it to the metadata; it only keeps books (`PendingSegments`) and wakes the writer when
something became due. One task looks at what is due, lets the plan choose (`flush_plan`), and starts a
flight for each object: read, upload, commit. A segment is in at most one flight, so its chunks come in
order by construction. Only the committed operation makes bytes visible in Tier 2; a flight cut short
anywhere leaves at most an object nobody refers to.

Tier 2 failing shows in `health` and holds the log, nothing else. The log failing (not primary, stopped,
outcome unknown) ends the writer: its container ends too, and recovery goes on from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from durablelog.operations import Operation, StorageUpdateOperation
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig, StorageWriterStatistics
from storagewriter.data_source import WriterDataSource
from storagewriter.flush_plan import ObjectPlan, plan_links, plan_object
from storagewriter.flush_waiters import FlushWaiters
from storagewriter.garbage_collector import GarbageCollector
from storagewriter.object_uploader import ObjectUploader
from storagewriter.pending_segments import PendingSegments
from tier2.object_storage import ObjectStorage

_LOG_ENDED = (AppendOutcomeUnknownError, ContainerStoppedError, NotPrimaryError)


_LANDING_LOOK_S = 0.1
"""How often a close looks whether Tier 2 has begun to fail."""


def _nothing(*_: object) -> None:
    pass


class StorageWriter:
    """The storage writer of one container; everything on the container's event loop.

    `on_advance()` is called soon after segments' storage lengths moved or segments went (once for many): fewer bytes
    are un-flushed, and the log may be truncated further.
    `on_failure(error)` is called once if something unforeseen stops the writer, kept as `failure`.
    """

    def __init__(
        self, source: WriterDataSource, storage: ObjectStorage, config: StorageWriterConfig, runtime: Runtime
    ) -> None:
        self.on_advance: Callable[[], None] = _nothing
        self.on_failure: Callable[[BaseException], None] = _nothing
        self.failure: BaseException | None = None
        self.garbage_collector = GarbageCollector(source, storage, config, runtime)
        self._source = source
        self._config = config
        self._executor = runtime.executor("storagewriter", 1)
        self._uploader = ObjectUploader(source, storage, config, runtime, self._executor)
        self._pending = PendingSegments(source, config)
        self._waiters = FlushWaiters()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._advanced = False
        self._flights = 0
        self._landing = False
        self._landed = asyncio.Event()
        self._flying_bytes = 0
        self._objects = self._blocks = self._bytes = self._links = 0

    # --- the container's side -----------------------------------------------------------------------

    def add(self, operations: Sequence[Operation]) -> None:
        """Take operations just committed to the metadata, in order, live or in replay. < 1 us per append.

        What Tier 2 has already is passed over. After the writer stopped nothing happens.
        """
        if self._stopped:
            return
        pending = self._pending
        pending.add(operations, asyncio.get_running_loop().time())
        if pending.touched:
            self._tell_waiters()
        if pending.news or self._advanced or (self._flights < self._config.uploads_max and self._is_over_target()):
            self._wake.set()

    def start(self) -> None:
        """Begin to flush; after replay. Raises DataCorruptionError if the log lacks bytes that Tier 2 lacks too."""
        assert self._task is None, "a writer starts once"
        assert not self._stopped, "a writer that was stopped does not start again"
        self._pending.start()
        self._task = asyncio.create_task(self._run(), name=f"storage writer {self._source.metadata.container_id}")

    async def land(self, patience_s: float) -> None:
        """Begin no more uploads, and let those on their way end: cut off, each would leave an orphan in Tier 2.

        Waits at most `patience_s`, and not for a Tier 2 that is failing. For an ordinary close, before `stop`.
        """
        self._landing = True
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience_s
        while (
            self._flights and not self._stopped and self._uploader.health.describe() is None and loop.time() < give_up
        ):
            self._landed.clear()
            timer = loop.call_later(_LANDING_LOOK_S, self._landed.set)
            try:
                await self._landed.wait()
            finally:
                timer.cancel()

    async def stop(self) -> None:
        """Cancel what runs and wait for it; those who wait for a flush get an error. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._close(None)
        self._executor.shutdown(wait=False)

    async def flush(self, segment_id: int | None = None) -> None:
        """Return when all bytes committed by now (of one segment with what was merged into it, or of all) are in Tier 2.

        An unknown segment has none. Waits as long as it takes; raises ContainerStoppedError, or
        TierUnavailableError if Tier 2 was failing, only if the writer stops.
        """
        if self._stopped:
            raise self._stop_error()
        wanted = self._pending.force(segment_id)
        self._wake.set()
        await self._waiters.wait(wanted)

    def hurry(self) -> None:
        """Flush what is pending now, if nothing is on its way: somebody is held back by it. O(dirty segments) then."""
        if not self._stopped and not self._flights and self._pending.dirty:
            self._pending.force(None)
            self._wake.set()

    @property
    def unflushed_bytes(self) -> int:
        """Committed bytes not in Tier 2, those on their way included."""
        return self._pending.unflushed_bytes

    def first_unflushed_sequence(self) -> int | None:
        """The log may be truncated at a checkpoint below this; None: at any. Never too high, amortized O(log n)."""
        return self._pending.first_sequence_number()

    def health(self) -> str | None:
        """None while healthy, else one sentence."""
        if self.failure is not None:
            return f"storage writer stopped by {type(self.failure).__name__}: {self.failure}"
        return self._uploader.health.describe() or self.garbage_collector.health.describe()

    def statistics(self) -> StorageWriterStatistics:
        """Numbers as of now. O(1)."""
        return StorageWriterStatistics(
            segments_pending=len(self._pending.dirty),
            unflushed_bytes=self._pending.unflushed_bytes,
            uploads_in_flight=self._flights,
            upload_bytes_in_flight=self._flying_bytes,
            objects_written=self._objects,
            blocks_written=self._blocks,
            bytes_written=self._bytes,
            links=self._links,
            upload_failures=self._uploader.health.failures,
            name_collisions=self._uploader.collisions,
            garbage_waiting=len(self._source.metadata.garbage),
            garbage_deleted=self.garbage_collector.deleted,
            garbage_failures=self.garbage_collector.health.failures,
        )

    # --- the task -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.garbage_collector.run())
                await self._flush_what_is_due(group)
        except BaseExceptionGroup as errors:
            error = _first(errors)
            self._close(error)
            if not isinstance(error, _LOG_ENDED):
                self.on_failure(error)

    async def _flush_what_is_due(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._pending.news = False
            if self._advanced:
                self._advanced = False
                self.on_advance()
            next_age = self._pending.collect_aged(loop.time())
            self._start_links(group)
            self._start_uploads(group)
            timer = loop.call_at(next_age, self._wake.set) if next_age is not None else None
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _start_links(self, group: asyncio.TaskGroup) -> None:
        links = plan_links(self._pending, self._source.metadata)
        if links:
            ids = list(dict.fromkeys(segment_id for link in links for segment_id in link))
            self._pending.take(ids)
            group.create_task(self._link(links, ids))

    def _start_uploads(self, group: asyncio.TaskGroup) -> None:
        config, pending = self._config, self._pending
        while self._flights < config.uploads_max and not self._landing:
            room = config.upload_bytes_max - self._flying_bytes
            plan = plan_object(pending, self._source.metadata, config, room)
            if plan is None:
                # Ready and yet no plan: it does not fit into what is in flight, so a landing will wake us.
                if pending.ready or not self._is_over_target() or not pending.force_largest_first():
                    return
                plan = plan_object(pending, self._source.metadata, config, room)
                if plan is None:
                    return
            pending.take(plan.segment_ids)
            self._flights += 1
            self._flying_bytes += plan.payload_bytes
            group.create_task(self._fly(plan))

    def _is_over_target(self) -> bool:
        return self._pending.unflushed_bytes - self._flying_bytes >= self._config.unflushed_target_bytes

    async def _fly(self, plan: ObjectPlan) -> None:
        try:
            update = await self._uploader.upload(plan)
            if update is not None:
                await self._source.commit(update)
        finally:
            self._flights -= 1
            self._flying_bytes -= plan.payload_bytes
            self._landed.set()
        if update is not None:
            self._objects += 1
            self._blocks += len(update.chunks)
            for segment_id, chunk in update.chunks:
                self._bytes += chunk.length
                segment = self._source.metadata.segments.get(segment_id)
                assert segment is None or segment.storage_length >= chunk.end_offset, (segment, chunk)
        self._land(plan.segment_ids)

    async def _link(self, links: Sequence[tuple[int, int]], segment_ids: Sequence[int]) -> None:
        await self._source.commit(StorageUpdateOperation(links=links))
        self._links += len(links)
        self._land(segment_ids)

    def _land(self, segment_ids: Sequence[int]) -> None:
        self._pending.release(segment_ids, asyncio.get_running_loop().time())
        self._tell_waiters()
        self._wake.set()

    def _tell_waiters(self) -> None:
        self._advanced = True
        self._waiters.settle(self._pending.touched, self._source.metadata)
        self._pending.touched.clear()
        self.garbage_collector.notice()

    # --- the end ------------------------------------------------------------------------------------

    def _close(self, error: BaseException | None) -> None:
        if not self._stopped:
            self._stopped = True
            self.failure = error
            self._waiters.fail(self._stop_error())

    def _stop_error(self) -> SegmentStoreError:
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
