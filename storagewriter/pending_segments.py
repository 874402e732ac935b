"""PendingSegments: all segments of a container that have something to go to Tier 2, and which of
them now.

Each such segment has an aggregator in `dirty`, and is in one of three states:

    waiting --due (size, age, forced)--> ready --taken by a plan--> busy --release--> deleted,
    waiting, or ready again

- a busy segment belongs to one run of uploads, so its chunks are committed in order;
- what is flushed is always asked of the metadata (`storage_length`), so live operation, replay, a
  truncation or a deletion in between all end in the same `settle`;
- nothing here is O(all segments) but `start` and a flush of everything.

What waits, oldest first, and all that is pending are heaps of entries that may be out of date. Both
go by sequence numbers, with which the times grow. Entries are corrected when they come to the top,
so an append to a segment that is pending already touches neither. An old segment may have very many
below it, whose segments were flushed before it. So they are corrected some at a time.

Pure: no await, no clock, no I/O; times are handed in.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from durablelog.operations import (
    AppendOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReleaseChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from storagewriter.config import StorageWriterConfig
from storagewriter.segment_aggregator import SegmentAggregator

_Entry = tuple[int, int, SegmentAggregator, float]
"""(its sequence number, a tie breaker never equal for two, the segment, its time)"""
_OUTDATED_OF_A_CALL: Final = 64
"""Entries that a question for the first one corrects, at most."""


class MetadataHolder(Protocol):
    """The holder of the container's committed metadata."""

    @property
    def metadata(self) -> ContainerMetadata:
        """As of now; read only."""


class PendingSegments:
    """What of one container is not in Tier 2 yet.

    `add` takes committed operations, and `ready` holds what is due, in the order it became so.
    `take` and `release` bracket an upload. `touched` gathers the segments whose storage length
    moved or which are missing, until the owner clears it. `news` says that a plan may now find more
    than before.
    """

    def __init__(self, holder: MetadataHolder, config: StorageWriterConfig) -> None:
        self._holder = holder
        self._config = config
        self.dirty: dict[int, SegmentAggregator] = {}
        self.ready: dict[int, SegmentAggregator] = {}
        self.busy: set[int] = set()
        self.unflushed_bytes = 0
        """Committed bytes not in Tier 2, those on their way included."""
        self.settled_bytes = 0
        """Bytes that have left `unflushed_bytes`: they came to Tier 2, or are not wanted any
        more.
        """
        self.sources: dict[int, deque[int]] = {}
        """Target id to the ids merged into it and not linked yet, in offset order: they leave from
        the front.
        """
        self.link_candidates: set[int] = set()
        """Targets of which a merge may have become linkable."""
        self.touched: set[int] = set()
        self.news = False
        self._by_age: list[_Entry] = []
        self._by_sequence: list[_Entry] = []
        self._entries = 0

    # --- operations in ----------------------------------------------------------------------------

    def add(self, operations: Sequence[Operation], now: float) -> None:
        """Take operations that are committed to the metadata, in order; `now` is when. < 1 us for
        an append.
        """
        dirty, flush_bytes = self.dirty, self._config.flush_bytes
        for operation in operations:
            if type(operation) is AppendOperation:
                segment_id = operation.segment_id
                aggregator = dirty.get(segment_id) or self._open(segment_id)
                if aggregator is None:
                    continue
                was_clean = not aggregator.pending_bytes
                self.unflushed_bytes += aggregator.append(
                    operation.offset, len(operation.data), operation.sequence_number, now
                )
                if was_clean:
                    self._became_dirty(aggregator)
                if aggregator.pending_bytes >= flush_bytes and segment_id not in self.ready:
                    self._make_ready(aggregator)
            elif isinstance(operation, SealOperation):
                self._force(operation.segment_id)
            elif isinstance(operation, MergeOperation):
                self._add_merge(operation)
            elif isinstance(operation, (TruncateOperation, DeleteOperation)):
                self.settle(operation.segment_id)
                self._force(operation.segment_id)
            elif isinstance(operation, ReleaseChunksOperation):
                self._unblock([segment_id for segment_id, _ in operation.releases], now)
            elif isinstance(operation, StorageUpdateOperation):
                for segment_id, _ in operation.chunks:
                    self.settle(segment_id)
                for target_id, source_id in operation.links:
                    self.settle(source_id)
                    self.settle(target_id)
            elif isinstance(operation, LinkChunksOperation):
                self.settle(operation.source_id)
                self.settle(operation.target_id)

    def start(self) -> None:
        """Take up merges that the metadata know and no operation reported: those from before the
        log's first checkpoint.

        Raises DataCorruptionError if bytes that are not in Tier 2 were not in the log either.
        O(segments).
        """
        for segment_id in [*self.dirty, *self.sources]:
            self.settle(segment_id)
        dirty = self.dirty
        for segment_id, segment in self._holder.metadata.segments.items():
            if segment.merges:
                self.sources[segment_id] = deque(merge.source_id for merge in segment.merges)
                self.link_candidates.add(segment_id)
                self._force(segment_id, segment.merges[0].offset)
                for merge in segment.merges:
                    self._force(merge.source_id)
            elif segment.storage_length == segment.length and segment_id not in dirty:
                continue
            aggregator = dirty.get(segment_id)
            found = aggregator.pending_bytes if aggregator is not None else 0
            if found != own_unflushed_bytes(segment):
                raise DataCorruptionError(
                    f"container {self._holder.metadata.container_id}, {segment!r}",
                    f"{own_unflushed_bytes(segment)} bytes are not in Tier 2, and the "
                    f"log has {found} of them",
                )
        self.news = True

    def _open(self, segment_id: int) -> SegmentAggregator | None:
        """A new aggregator, not yet in `dirty`; None if the segment is deleted already."""
        segment = self._holder.metadata.segments.get(segment_id)
        return None if segment is None else SegmentAggregator(segment_id, segment.storage_length)

    def _became_dirty(self, aggregator: SegmentAggregator) -> None:
        if not aggregator.pending_bytes:
            return
        self.dirty[aggregator.segment_id] = aggregator
        entry = self._entry_of(aggregator)
        heapq.heappush(self._by_sequence, entry)
        self._enqueue_by_age(entry)

    def _enqueue_by_age(self, entry: _Entry) -> None:
        aggregator = entry[2]
        if not aggregator.in_age_queue:
            aggregator.in_age_queue = True
            self.news |= not self._by_age
            heapq.heappush(self._by_age, entry)

    def _add_merge(self, operation: MergeOperation) -> None:
        target_id, source_id = operation.target_id, operation.source_id
        if operation.length and source_id in self._holder.metadata.segments:
            self.sources.setdefault(target_id, deque()).append(source_id)
            self.link_candidates.add(target_id)
            self.news = True
        self._force(target_id, operation.offset)
        self.settle(source_id)
        self._force(source_id)

    # --- due --------------------------------------------------------------------------------------

    def with_sources(self, segment_id: int | None) -> list[int]:
        """A segment (None: all of them) and what has been merged into it, to be forced."""
        if segment_id is None:
            return [*self.dirty, *self.sources]
        ids = [segment_id]
        for target_id in ids:  # grows while it is walked: sources have sources
            ids += self.sources.get(target_id, ())
        return ids

    def force(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Make everything committed of the segments due; return segment ids with the length to wait
        for.
        """
        wanted = {}
        for each in segment_ids:
            segment = self._holder.metadata.segments.get(each)
            if segment is not None and segment.storage_length < segment.length:
                wanted[each] = segment.length
                self._force(each)
        return wanted

    def collect_aged(self, now: float, segments_max: int) -> float | None:
        """Make due what is old enough at `now`, of the next so many segments; return when the next
        one will be, or `now`: then there may be more. None if none waits.
        """
        queue, age = self._by_age, self._config.flush_age_s
        for _ in range(segments_max):
            if not queue:
                return None
            _, _, aggregator, time = queue[0]
            segment_id = aggregator.segment_id
            waits = segment_id not in self.ready and segment_id not in self.busy
            if not waits or self.dirty.get(segment_id) is not aggregator:
                heapq.heappop(queue)
                aggregator.in_age_queue = False
            elif aggregator.first_time > time:
                heapq.heapreplace(queue, self._entry_of(aggregator))
            elif time + age <= now:
                heapq.heappop(queue)
                aggregator.in_age_queue = False
                self._make_ready(aggregator)
            else:
                return time + age
        return now if queue else None

    def _force(self, segment_id: int, end: int | None = None) -> None:
        aggregator = self.dirty.get(segment_id)
        segment = self._holder.metadata.segments.get(segment_id)
        if aggregator is None or segment is None:
            return
        aggregator.forced_end = max(aggregator.forced_end, segment.length if end is None else end)
        if aggregator.is_forced:
            self._make_ready(aggregator)

    def _make_ready(self, aggregator: SegmentAggregator) -> None:
        segment_id = aggregator.segment_id
        if segment_id not in self.busy and segment_id not in self.ready:
            self.ready[segment_id] = aggregator
            self.news = True

    # --- flights ----------------------------------------------------------------------------------

    def waiting(self) -> Iterator[SegmentAggregator]:
        """What is pending and neither ready nor busy, roughly oldest first."""
        for segment_id, aggregator in self.dirty.items():
            if segment_id not in self.ready and segment_id not in self.busy:
                yield aggregator

    def in_order(self) -> list[int]:
        """Segments of no run of uploads, about in the order in which they will go: first what is
        due.
        """
        waiting = (segment_id for segment_id in self.dirty if segment_id not in self.ready)
        return [segment_id for segment_id in (*self.ready, *waiting) if segment_id not in self.busy]

    def block(self, segment_id: int) -> None:
        """A ready segment has nothing that can go before a merge is linked, or chunks are released;
        that will settle it.
        """
        self.ready.pop(segment_id, None)

    def take(self, segment_ids: Sequence[int]) -> None:
        """These belong to a run of uploads now."""
        for segment_id in segment_ids:
            assert segment_id not in self.busy, segment_id
            self.busy.add(segment_id)
            aggregator = self.ready.pop(segment_id, None) or self.dirty.get(segment_id)
            if aggregator is not None:
                aggregator.close_run()

    def release(self, segment_ids: Sequence[int], now: float) -> None:
        """Their run is over, with or without effect; what is old enough or forced is due
        again.
        """
        self.busy.difference_update(segment_ids)
        self._unblock(segment_ids, now)

    def _unblock(self, segment_ids: Sequence[int], now: float) -> None:
        """Settle the segments; those of no run may be due again."""
        for segment_id in segment_ids:
            self.settle(segment_id)
            aggregator = self.dirty.get(segment_id)
            if aggregator is None or segment_id in self.busy or segment_id in self.ready:
                continue
            if aggregator.is_due(self._config.flush_bytes, now - self._config.flush_age_s):
                self._make_ready(aggregator)
            else:
                self._enqueue_by_age(self._entry_of(aggregator))
        self.news = True

    def settle(self, segment_id: int) -> None:
        """Take over how far the metadata say the segment is in Tier 2, or that it is deleted.

        Idempotent.
        """
        if gone := self._settle_one(segment_id):
            left = [*gone]
            while left:
                # Sources that went with it have sources, however deep.
                left += self._settle_one(left.pop())

    def _settle_one(self, segment_id: int) -> Sequence[int]:
        segment = self._holder.metadata.segments.get(segment_id)
        aggregator = self.dirty.get(segment_id)
        if aggregator is not None:
            end = segment.storage_length if segment is not None else None
            settled = aggregator.pending_bytes if end is None else aggregator.advance(end)
            self.unflushed_bytes -= settled
            self.settled_bytes += settled
            if end is None or not aggregator.pending_bytes:
                del self.dirty[segment_id]
                self.ready.pop(segment_id, None)
            elif segment_id not in self.busy and aggregator.is_due(
                self._config.flush_bytes, float("-inf")
            ):
                self._make_ready(aggregator)
        self.touched.add(segment_id)
        if segment_id in self.sources or (segment is not None and segment.merged_into is not None):
            return self._settle_merges(segment_id, segment)
        return ()

    def _settle_merges(self, segment_id: int, segment: SegmentMetadata | None) -> list[int]:
        """Give the sources that are deleted, and are to be settled too.

        O(these): links and truncations go in order.
        """
        known, gone = self.sources.get(segment_id), []
        if known is not None:
            while known and known[0] not in self._holder.metadata.segments:
                gone.append(known.popleft())
            if known:
                assert segment is not None, (
                    segment_id,
                    known,
                )  # a target never goes before what was merged into it
                self.link_candidates.add(segment_id)
                self.news = True
            else:
                del self.sources[segment_id]
        if segment is not None and segment.merged_into is not None:
            self.link_candidates.add(segment.merged_into)
            self.news = True
        return gone

    def first_sequence_number(self) -> int | None:
        """Of the oldest operation with bytes not in Tier 2, or a little older; None if there is
        none, and `correct_first` says that nothing is left to do. O(log n).
        """
        self.correct_first(_OUTDATED_OF_A_CALL)
        return self._by_sequence[0][0] if self._by_sequence else None

    def first_time(self) -> float | None:
        """When that operation was committed, as `add` was reported; None as there. O(log n)."""
        self.correct_first(_OUTDATED_OF_A_CALL)
        return self._by_sequence[0][3] if self._by_sequence else None

    def correct_first(self, entries_max: int) -> bool:
        """Remove so many entries that are out of date; whether there may be more before the first
        that is not.
        """
        queue = self._by_sequence
        for _ in range(entries_max):
            if not queue:
                return False
            number, _, aggregator, _ = queue[0]
            if self.dirty.get(aggregator.segment_id) is not aggregator:
                heapq.heappop(queue)
            elif aggregator.first_sequence_number > number:
                heapq.heapreplace(queue, self._entry_of(aggregator))
            else:
                return False
        return True

    def _entry_of(self, aggregator: SegmentAggregator) -> _Entry:
        self._entries += 1
        number, time = aggregator.first_sequence_number, aggregator.first_time
        return number, self._entries, aggregator, time


def own_unflushed_bytes(segment: SegmentMetadata) -> int:
    """Bytes of a segment not in Tier 2, without those of sources merged into it."""
    merged = sum(
        merge.end_offset - max(merge.offset, segment.storage_length) for merge in segment.merges
    )
    return segment.length - segment.storage_length - merged
