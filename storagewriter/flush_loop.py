"""FlushLoop: which segments of a container are flushed now, in which objects, and the callers that
wait for that (loop).

Theory of operation. `add` takes operations as they are committed. It only updates
`PendingSegments`, and wakes the loop when something became due. `run` checks what is due, lets the
plans choose (`link_plan`, `flush_plan`), and begins an upload for each object: read, upload, commit
(`UploadsInFlight`). What grows with the number of segments is done in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from durablelog.operations import Operation
from storagewriter.chunk_linker import ChunkLinker
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource
from storagewriter.flush_plan import ObjectPlanner, plan_full_object
from storagewriter.flush_waiters import FlushWaiters
from storagewriter.link_plan import LinkPlan, plan_links
from storagewriter.object_uploader import ObjectUploader
from storagewriter.pending_segments import PendingSegments
from storagewriter.uploads_in_flight import UploadsInFlight

SEGMENTS_OF_A_TURN: Final = 512
"""Passed over without letting others run: a millisecond or two."""


class FlushLoop:
    """Of one storage writer.

    `on_advance()` as of `StorageWriter`. `on_settled()` is called when storage lengths moved or
    segments were deleted, `on_ended()` when an object is not being uploaded any more.
    """

    def __init__(
        self,
        source: WriterDataSource,
        uploader: ObjectUploader,
        linker: ChunkLinker,
        config: StorageWriterConfig,
        *,
        side_by_side: bool,
        on_advance: Callable[[], None],
        on_settled: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._source = source
        self._linker = linker
        self._config = config
        self._on_advance = on_advance
        self._on_settled = on_settled
        self._on_ended = on_ended
        self.pending = PendingSegments(source, config)
        self.uploads = UploadsInFlight(
            source,
            self.pending,
            uploader,
            config,
            side_by_side=side_by_side,
            on_ended=self._upload_ended,
            release=self._release_some,
        )
        self.waiters = FlushWaiters()
        self._target_bytes = config.unflushed_target_bytes
        self._wake = asyncio.Event()
        self._advanced = False
        self._requested: list[int] = []
        """Segments to be flushed at the request of a caller that is held back."""

    # --- requests ---------------------------------------------------------------------------------

    def add(self, operations: Sequence[Operation]) -> None:
        """As `StorageWriter.add`, of one that has not stopped."""
        pending = self.pending
        pending.add(operations, asyncio.get_running_loop().time())
        if pending.touched:
            self._settle_waiters()
        if pending.news or self._advanced or (self.uploads.has_room and self.is_over_target):
            self._wake.set()

    def set_target(self, target_bytes: int) -> None:
        """As `StorageWriter.set_unflushed_target`."""
        self._target_bytes = target_bytes
        self._wake.set()

    async def flush(self, segment_id: int | None) -> None:
        """As `StorageWriter.flush`."""
        waiter = self.waiters.begin()
        try:
            for some in _slices(self.pending.with_sources(segment_id)):
                waiter.add(self.pending.force(some))
                self._wake.set()
                if len(some) == SEGMENTS_OF_A_TURN:
                    await asyncio.sleep(0)
            await waiter.wait()
        finally:
            self.waiters.end(waiter)

    def request(self) -> None:
        """As `StorageWriter.request_flush`."""
        if self.uploads.count or self._requested:
            return
        if self.pending.dirty:
            self._requested = self.pending.with_sources(None)
            self._wake.set()

    @property
    def is_over_target(self) -> bool:
        """Whether there are so many bytes besides those being uploaded that all is due."""
        return self.pending.unflushed_bytes - self.uploads.bytes_in_flight >= self._target_bytes

    # --- the task ---------------------------------------------------------------------------------

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Flush what is due, until cancelled; uploads are tasks of `group`."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self.pending.news = False
            if self._advanced:
                self._advanced = False
                while self.pending.correct_first(SEGMENTS_OF_A_TURN):  # noqa: ASYNC110 - a step
                    await asyncio.sleep(0)
                self._on_advance()
            now = loop.time()
            next_age = self.pending.collect_aged(now, SEGMENTS_OF_A_TURN)
            while next_age is not None and next_age <= now:
                await asyncio.sleep(0)
                next_age = self.pending.collect_aged(now, SEGMENTS_OF_A_TURN)
            await self._force_requested()
            self._start_links(group)
            await self._start_uploads(group)
            timer = loop.call_at(next_age, self._wake.set) if next_age is not None else None
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _force_requested(self) -> None:
        requested, self._requested = self._requested, []
        for some in _slices(requested):
            self.pending.force(some)
            if len(some) == SEGMENTS_OF_A_TURN:
                await asyncio.sleep(0)

    def _start_links(self, group: asyncio.TaskGroup) -> None:
        plan = plan_links(self.pending, self._source.metadata)
        if plan is not None:
            ids = list(dict.fromkeys(segment_id for link in plan.links for segment_id in link))
            self.pending.take(ids)
            group.create_task(self._link(plan, ids))

    async def _start_uploads(self, group: asyncio.TaskGroup) -> None:
        config, pending, uploads = self._config, self.pending, self.uploads
        while uploads.has_room:
            room = uploads.room_bytes
            planner = ObjectPlanner(pending, self._source.metadata, config, room)
            uploads.planning = True
            try:
                while planner.plan_some(SEGMENTS_OF_A_TURN):  # noqa: ASYNC110 - it is a step
                    await asyncio.sleep(0)
            finally:
                uploads.planning = False
            plan = planner.plan
            # Ready and yet no plan: there is no room for it, and the end of an upload wakes the
            # loop.
            if plan is None and not pending.ready and self.is_over_target:
                plan = plan_full_object(pending, self._source.metadata, config, room)
                pending.take(plan.segment_ids if plan is not None else ())
            if plan is None:
                return
            uploads.begin(plan, group)

    async def _link(self, plan: LinkPlan, segment_ids: Sequence[int]) -> None:
        await self._linker.link(plan)
        self._release(segment_ids)

    # --- the ends of uploads ----------------------------------------------------------------------

    def _upload_ended(self) -> None:
        self._on_ended()
        self._wake.set()

    async def _release_some(self, segment_ids: Sequence[int]) -> None:
        for some in _slices(segment_ids):
            self._release(some)
            if len(some) == SEGMENTS_OF_A_TURN:
                await asyncio.sleep(0)

    def _release(self, segment_ids: Sequence[int]) -> None:
        self.pending.release(segment_ids, asyncio.get_running_loop().time())
        self._settle_waiters()
        self._wake.set()

    def _settle_waiters(self) -> None:
        self._advanced = True
        self.waiters.settle(self.pending.touched, self._source.metadata)
        self.pending.touched.clear()
        self._on_settled()


def _slices(segment_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The segments, so many at a time that others wait for a millisecond or two."""
    for first in range(0, len(segment_ids), SEGMENTS_OF_A_TURN):
        yield segment_ids[first : first + SEGMENTS_OF_A_TURN]
