"""UploadsInFlight: objects on their way to Tier 2, and what becomes of the metadata by each (loop).

A run of uploads begins with a plan, and has its segments to itself. The run of a large segment goes
on while full objects of it are pending and nothing else is due. They are uploaded beside each
other, so that a segment is not bound to the rate of one upload. On a local disk they would compete
with the log. So one is sent at a time, and the next one is read and built meanwhile. Rules:

- chunks of a segment are committed in the order of its bytes, whichever object is there first;
- an object is committed with no chunk if those before it were not taken: a truncation or a release
  came between. It is garbage at once, and its segment is planned again;
- all uploads together keep to `uploads_max` and `upload_bytes_max`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from durablelog.operations import StorageUpdateOperation
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource
from storagewriter.flush_plan import ObjectPlan, next_block
from storagewriter.object_uploader import ObjectUploader
from storagewriter.pending_segments import PendingSegments

AHEAD_OF_A_DISK: Final = 2
"""Objects of one segment on their way to a local disk: one that is sent, one that is made ready."""


class UploadsInFlight:
    """Of one storage writer. `side_by_side`: objects of one segment are sent so.

    `on_ended()` is called when an object is not on its way any more, `release(segment_ids)` at
    the end of each run.
    """

    def __init__(
        self,
        source: WriterDataSource,
        pending: PendingSegments,
        uploader: ObjectUploader,
        config: StorageWriterConfig,
        *,
        side_by_side: bool,
        on_ended: Callable[[], None],
        release: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        self._source = source
        self._pending = pending
        self._uploader = uploader
        self._config = config
        self._side_by_side = side_by_side
        self._on_ended = on_ended
        self._release = release
        self.count = 0
        """Objects on their way."""
        self.bytes_in_flight = 0
        """Their payload."""
        self.objects = self.blocks = self.bytes_written = 0
        """Of those that are in Tier 2 and in the metadata."""
        self.planning = False
        """A plan of what else is due is being made: the room is for that."""
        self.draining = False
        """Begin no more of them."""

    @property
    def has_room(self) -> bool:
        """Whether another may be begun."""
        return self.count < self._config.uploads_max and not self.draining

    @property
    def room_bytes(self) -> int:
        """Payload that it may have."""
        return self._config.upload_bytes_max - self.bytes_in_flight

    def begin(self, plan: ObjectPlan, group: asyncio.TaskGroup) -> None:
        """Have a plan, whose segments are taken, carried out. What stops an upload stops the
        group.
        """
        self._add(plan)
        group.create_task(self._run(plan, group))

    async def _run(self, first: ObjectPlan, group: asyncio.TaskGroup) -> None:
        last: ObjectPlan | None = first
        under_way = deque([(first, group.create_task(self._uploader.upload(first)))])
        most = self._config.uploads_max if self._side_by_side else AHEAD_OF_A_DISK
        try:
            while under_way:
                while (
                    last is not None
                    and len(under_way) < most
                    and (plan := self._following(last)) is not None
                ):
                    last = plan
                    self._add(plan)
                    before = None if self._side_by_side else under_way[-1][1]
                    uploading = group.create_task(self._uploader.upload(plan, before))
                    under_way.append((plan, uploading))
                plan, uploaded = under_way[0]
                await self._commit(plan, await uploaded)
                under_way.popleft()
                self._remove(plan)
                if not self._is_taken(plan):
                    # What follows would be garbage: the segment is planned anew from where it is.
                    last = None
        finally:
            for plan, _ in under_way:
                self._remove(plan)
        await self._release(first.segment_ids)

    def _following(self, last: ObjectPlan) -> ObjectPlan | None:
        """A full object of the bytes behind a plan of one segment, if it may be begun."""
        size = self._config.object_bytes
        if (
            len(last.blocks) > 1
            or self._pending.ready
            or self.planning
            or not self.has_room
            or self.room_bytes < size
        ):
            return None
        (block,) = last.blocks
        segment = self._source.metadata.segments.get(block.segment_id)
        following = segment and next_block(segment, size, block.end_offset)
        return ObjectPlan((following,), size) if following and following.length == size else None

    async def _commit(self, plan: ObjectPlan, updates: Sequence[StorageUpdateOperation]) -> None:
        for update in updates:
            taken = self._in_order(plan, update)
            await self._source.commit(taken)
            self.blocks += len(taken.chunks)
            self.bytes_written += sum(chunk.length for _, chunk in taken.chunks)
        for update in updates:
            self._uploader.settled(update.objects[0].name)
        self.objects += bool(updates)

    def _in_order(self, plan: ObjectPlan, update: StorageUpdateOperation) -> StorageUpdateOperation:
        """The update; without its chunk if that would leave a gap behind what the segment has."""
        block = plan.blocks[0]
        segment = self._source.metadata.segments.get(block.segment_id)
        if len(plan.blocks) > 1 or segment is None or segment.storage_length >= block.offset:
            return update
        return StorageUpdateOperation(objects=update.objects)

    def _is_taken(self, plan: ObjectPlan) -> bool:
        block = plan.blocks[-1]
        segment = self._source.metadata.segments.get(block.segment_id)
        return segment is not None and segment.storage_length >= block.end_offset

    def _add(self, plan: ObjectPlan) -> None:
        self.count += 1
        self.bytes_in_flight += plan.payload_bytes

    def _remove(self, plan: ObjectPlan) -> None:
        self.count -= 1
        self.bytes_in_flight -= plan.payload_bytes
        self._on_ended()
