"""Which bytes of which segments go into the next object.

Rules:
- a block never crosses a merge's border: it is own bytes, from the storage length on;
- a segment with `flush_bytes` or more gets an object of its own; smaller ones share;
- an object is at most `object_bytes` of payload and `object_segments_max` segments;
- an object that goes because of age takes along what else is pending: a request costs more than its
  bytes;
- an object that goes because too much is pending altogether is full: what is left over waits for
  the next one. So requests go by bytes, whatever the number of segments.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import NamedTuple

from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from storagewriter.config import StorageWriterConfig
from storagewriter.pending_segments import PendingSegments
from storagewriter.segment_aggregator import SegmentAggregator

MISSES_MAX = 64
"""Blocks that do not fit before the search for smaller ones ends."""


class BlockPlan(NamedTuple):
    """Bytes [offset, offset + length) of one segment; becomes one block."""

    segment_id: int
    offset: int
    length: int

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.offset + self.length


class ObjectPlan(NamedTuple):
    """One object: the blocks in it, each of another segment."""

    blocks: tuple[BlockPlan, ...]
    payload_bytes: int
    """Bytes of segments in it."""

    @property
    def segment_ids(self) -> list[int]:
        """Whose bytes it holds."""
        return [block.segment_id for block in self.blocks]


def next_block(segment: SegmentMetadata, bytes_max: int, on_its_way: int = 0) -> BlockPlan | None:
    """The bytes of a segment that can go now, behind those `on_its_way` already; None while a merge
    has to be linked first, or chunks have to be released.
    """
    if segment.detached:
        return None
    start = max(segment.storage_length, on_its_way)
    end = segment.merges[0].offset if segment.merges else segment.length
    return (
        BlockPlan(segment.segment_id, start, min(end - start, bytes_max)) if end > start else None
    )


class ObjectPlanner:
    """Plans the next object of at most `bytes_max` payload bytes, some segments at a time.

    What is planned is taken at once: others may work on the rest between two steps. Ready segments
    that are deleted or blocked by a merge are put aside on the way.
    """

    def __init__(
        self,
        pending: PendingSegments,
        metadata: ContainerMetadata,
        config: StorageWriterConfig,
        bytes_max: int,
    ) -> None:
        self._pending = pending
        self._metadata = metadata
        self._config = config
        self._room = self._room_at_first = min(config.object_bytes, bytes_max)
        self._blocks: list[BlockPlan] = []
        self._by_age = self._alone = False

    @property
    def plan(self) -> ObjectPlan | None:
        """What was planned; None if nothing is due or nothing due fits."""
        if not self._blocks:
            return None
        return ObjectPlan(tuple(self._blocks), self._room_at_first - self._room)

    def plan_some(self, segments_max: int) -> bool:
        """Pass over some more segments, of which at most so many are planned; whether there may be
        more of them.
        """
        before = len(self._blocks)
        more = self._plan_due(segments_max)
        if not more and self._by_age and not self._alone:
            more = self._take_along(segments_max - (len(self._blocks) - before))
        return more and len(self._blocks) < self._config.object_segments_max

    def _plan_due(self, segments_max: int) -> bool:
        config, blocks = self._config, list[BlockPlan]()
        misses, more = 0, False
        blocked: list[int] = []
        left = min(segments_max, config.object_segments_max - len(self._blocks))
        for segment_id, aggregator in self._pending.ready.items():
            if self._alone or len(blocks) + len(blocked) >= left:
                more = not self._alone
                break
            block = self._next_block(segment_id)
            if block is None:
                blocked.append(segment_id)
                continue
            alone = block.length >= config.flush_bytes
            if block.length > self._room or (alone and (blocks or self._blocks)):
                misses += 1
                if misses == MISSES_MAX:
                    break
                continue
            blocks.append(block)
            self._room -= block.length
            self._alone = alone
            self._by_age |= not alone and not aggregator.is_forced
        for segment_id in blocked:
            self._pending.block(segment_id)
        self._take(blocks)
        return more

    def _take_along(self, segments_max: int) -> bool:
        """What waits and is not due fills the object up; whether there may be more of it."""
        blocks, misses, more = list[BlockPlan](), 0, False
        left = min(segments_max, self._config.object_segments_max - len(self._blocks))
        for aggregator in self._pending.waiting():
            if len(blocks) >= left:
                more = True
                break
            if misses == MISSES_MAX:
                break
            block = self._next_block(aggregator.segment_id)
            if block is None or block.length > self._room:
                misses += 1
                continue
            blocks.append(block)
            self._room -= block.length
        self._take(blocks)
        return more

    def _next_block(self, segment_id: int) -> BlockPlan | None:
        segment = self._metadata.segments.get(segment_id)
        return next_block(segment, self._config.object_bytes) if segment is not None else None

    def _take(self, blocks: list[BlockPlan]) -> None:
        self._pending.take([block.segment_id for block in blocks])
        self._blocks += blocks


def plan_full_object(
    pending: PendingSegments,
    metadata: ContainerMetadata,
    config: StorageWriterConfig,
    bytes_max: int,
) -> ObjectPlan | None:
    """An object of what waits and is not due; None if `bytes_max` allows none of `object_bytes`.

    Nothing is taken. Filled oldest first while one object can hold a block of each segment, else
    with the largest ones: they make the most room for a request. O(waiting segments), or times
    their logarithm.
    """
    room = config.object_bytes
    if bytes_max < room:
        return None
    waiting: Iterable[SegmentAggregator] = pending.waiting()
    if len(pending.dirty) > config.object_segments_max:
        waiting = nlargest(config.object_segments_max, waiting, key=_pending_bytes)
    blocks: list[BlockPlan] = []
    for aggregator in waiting:
        segment = metadata.segments.get(aggregator.segment_id)
        block = next_block(segment, room) if segment is not None else None
        if block is not None:
            blocks.append(block)
            room -= block.length
        if not room or len(blocks) == config.object_segments_max:
            break
    return ObjectPlan(tuple(blocks), config.object_bytes - room) if blocks else None


def _pending_bytes(aggregator: SegmentAggregator) -> int:
    return aggregator.pending_bytes
