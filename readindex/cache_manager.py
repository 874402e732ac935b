"""CacheManager: what concerns more than one residence of a container's bytes (pure).

Each byte that is held has one residence, which alone counts, bounds and evicts it:

- `TailMemory`: appended and refilled bytes in memory;
- `FetchedExtents`: bytes from Tier 2 in memory;
- `CachedBlocks`: blocks in the cache, spilled from one of the two;
- `LoggedBytes`: bytes that stay in the log.

What happens to a whole segment (truncation, a merge, a flush, its deletion) and the way from memory
into the cache are here. No residence knows another.
"""

from __future__ import annotations

from collections.abc import Sequence

from readindex.cached_blocks import CachedBlocks, SpillItem
from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home, LogPlaces
from readindex.fetched_extents import FetchedExtents
from readindex.logged_bytes import LoggedBytes
from readindex.segment_read_index import UNKNOWN, SegmentIndexes, SegmentReadIndex, index_of
from readindex.tail_memory import HARD_BOUND, TailMemory
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


class CacheManager:
    """Of one container."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        config: ReadIndexConfig,
        indexes: SegmentIndexes,
        tail: TailMemory,
        fetched: FetchedExtents,
        cached: CachedBlocks,
        logged: LoggedBytes,
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._indexes = indexes
        self._tail = tail
        self._fetched = fetched
        self._cached = cached
        self._logged = logged
        self.spilled_bytes = 0

    def missing_ranges(self, segment: SegmentMetadata) -> list[tuple[int, int]]:
        """Un-flushed ranges of the segment, its merged sources left out, that are neither in memory
        nor in the cache.
        """
        ranges: list[tuple[int, int]] = []
        position = max(segment.start_offset, segment.storage_length)
        for merge in segment.merges:
            if position < merge.offset:
                ranges.append((position, merge.offset))
            position = max(position, merge.end_offset)
        if position < segment.length:
            ranges.append((position, segment.length))
        index = self._indexes.get(segment.segment_id)
        return (
            ranges
            if index is None
            else [gap for start, end in ranges for gap in index.gaps(start, end)]
        )

    # --- bytes coming in ---

    def append_replayed(
        self, index: SegmentReadIndex, offset: int, data: Buffer, places: LogPlaces
    ) -> None:
        """Add the next bytes of a segment, at least `small_bytes`, which lie at these places of the
        log: there alone, if there is room for so many places.
        """
        if self._logged.full:
            self._tail.append(index, offset, data)
            return
        index.check_next(offset)
        self._tail.cut(index)
        self._logged.append(index, offset, data, places)
        self._tail.note_elsewhere(len(data))

    def unflushed_room(self, *, spills: bool) -> int:
        """Un-flushed bytes that may be put back; 0 or less if none.

        Without spilling memory alone has room.
        """
        room = self._config.tail_bytes_max - self._tail.bytes_unflushed
        return room + self._cached.bytes_max - self._cached.bytes_unflushed if spills else room

    def insert_refilled(
        self, index: SegmentReadIndex, offset: int, data: bytes, *, spills: bool
    ) -> None:
        """Put back un-flushed bytes around what is there, as far as there is room: never so that
        others are dropped.
        """
        bound = (HARD_BOUND if spills else 1) * self._config.tail_bytes_max
        room = min(bound - self._tail.bytes_total, self.unflushed_room(spills=spills))
        self._tail.insert_refilled(index, offset, data, room)

    # --- bytes going out ---

    def release(self, extent: Extent) -> None:
        """Take an extent out of its residence and its index."""
        if extent.home is Home.CACHED:
            self._cached.release(extent)
        elif extent.home is Home.LOGGED:
            self._logged.release(extent)
        elif extent.counted_bytes:
            self._tail.release(extent)
        else:
            self._fetched.release(extent)

    def drop_below(self, index: SegmentReadIndex, offset: int) -> None:
        """Release what lies wholly below `offset` (the segment was truncated there)."""
        tail = index.tail
        if tail is not None and tail.end_offset <= offset:
            self._tail.cut(index)
        removed = []
        for extent in index.extents_from(0):
            if extent.end_offset > offset:
                break
            removed.append(extent)
        for extent in removed:
            self.release(extent)

    def drop_segment(self, segment_id: int) -> None:
        """Release everything of a segment, its index included."""
        index = self._indexes.get(segment_id)
        if index is not None:
            self._tail.release_tail(index)
            if index.extents is not None:
                for extent in list(index.extents_from(0)):
                    self.release(extent)
            del self._indexes[segment_id]

    def drop_unflushed(self, segment_id: int) -> None:
        """Release what Tier 2 has not, but for what is on its way to the cache."""
        index = self._indexes.get(segment_id)
        if index is None:
            return
        self._tail.cut(index)
        for extent in list(index.extents_from(index.flushed_mark)):
            if extent.flushed:
                continue
            if extent.home is Home.TAIL:
                self._tail.drop(extent)
            elif extent.home is Home.CACHED:
                self._cached.drop(extent)

    def move_segment(self, source_id: int, target_id: int, offset: int, start_offset: int) -> None:
        """Give the source's extents to the target, `offset` further on, but none wholly below
        `start_offset`.

        Tier 2 has all of them by now. A part the target has already is not moved.
        """
        source = self._indexes.get(source_id)
        if source is None:
            self._fetched.readers.move(source_id, target_id, offset)
            return
        self._tail.cut(source)
        target = index_of(self._indexes, target_id)
        for extent in list(source.extents_from(0)):
            start, end = extent.start_offset + offset, extent.end_offset + offset
            if (
                end <= start_offset
                or extent.home is Home.LOGGED
                or target.gaps(start, end) != [(start, end)]
            ):
                self.release(extent)
                continue
            self._mark_flushed(extent)
            assert source.extents is not None
            del source.extents[extent.start_offset]
            extent.segment_id = target_id
            extent.start_offset = start
            extent.high_water += offset
            target.put(extent)
        del self._indexes[source_id]
        self._fetched.readers.move(source_id, target_id, offset)

    # --- what changes in place ---

    def advance(self, index: SegmentReadIndex, storage_length: int) -> None:
        """Tier 2 has everything below `storage_length` now. Cost: the extents this is new for."""
        self._tail.advance(index, storage_length)
        if index.extents is None:
            return
        for extent in index.newly_flushed(storage_length):
            extent.flushed = False
            self._mark_flushed(extent)
        self._logged.shorten(index, storage_length)

    def trim(self) -> bool:
        """Drop what may go, and leave to the log what it can give back, about `spill_batch_bytes`;
        True if more of that is left, or something should be spilled.
        """
        tail = self._tail
        tail.trim()
        self._leave_some()
        while tail.over_hard_bound and (self._leave_some() or tail.drop_oldest()):
            pass
        return tail.over_bound or self._fetched.has_demoted

    def _leave_some(self) -> bool:
        if self._logged.full:
            return False
        extents = self._tail.take_placed(self._config.spill_batch_bytes)
        for extent in extents:
            self._logged.adopt(extent)
            # The log may be truncated behind what Tier 2 has of it.
            storage_length = self._metadata.segments[extent.segment_id].storage_length
            if extent.start_offset < storage_length:
                self._logged.shorten(self._indexes[extent.segment_id], storage_length)
        return bool(extents)

    def take_batch(self) -> list[SpillItem]:
        """The next extents to spill, made SPILLING; empty if there are none, or if `trim` leaves
        the next ones to the log.
        """
        demoted = self._fetched.take_demoted()
        oldest = self._tail.take_batch(self._config.spill_batch_bytes, placed=self._logged.full)
        return [self._cached.item_of(extent) for extent in (*demoted, *oldest)]

    def spilled(self, items: Sequence[SpillItem]) -> None:
        """The cache has the batch: release the memory.

        What was removed meanwhile is forgotten by the cache.
        """
        for item in items:
            extent = item.extent
            if extent.home is not Home.SPILLING:
                self._cached.forget(item)
                continue
            self.spilled_bytes += extent.length
            self.release(extent)
            self._cached.add(item, self._metadata.segments[extent.segment_id])
        self._cached.evict()

    def spill_refused(self, items: Sequence[SpillItem]) -> None:
        """The cache took nothing: un-flushed extents are the oldest of the tail again, the others
        go.
        """
        for item in reversed(items):
            extent = item.extent
            self._cached.forget(item)
            if extent.home is not Home.SPILLING:
                continue
            if extent.counted_bytes:
                self._tail.take_back(extent)
            else:
                self.release(extent)

    # --- inside ---

    def _mark_flushed(self, extent: Extent) -> None:
        if extent.flushed:
            return
        if extent.home is Home.LOGGED:
            # The log may be truncated from here on.
            self.release(extent)
            return
        extent.flushed = True
        if extent.home is Home.CACHED:
            self._cached.mark_flushed(extent)
        else:
            self._tail.mark_flushed(extent)

    def check(self) -> None:
        """Assert the rules of every index, that each extent is counted once, and that nothing is
        held of deleted segments. O(everything).
        """
        self._tail.check()
        self._cached.check()
        self._fetched.check()
        self._logged.check()
        for segment_id, index in self._indexes.items():
            assert index.segment_id == segment_id
            index.check()
            segment = self._metadata.segments[segment_id]
            assert index.next_offset in (UNKNOWN, segment.length), (index, segment)
            for extent in index.extents_from(0):
                assert extent.end_offset > segment.start_offset, (extent, segment)
                is_flushed = extent.end_offset <= segment.storage_length
                assert extent.flushed == is_flushed, (extent, segment)
