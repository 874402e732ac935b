"""CacheManager: what all read indexes of a container hold, counted and bounded (pure).

Four bounded stocks, each with its own order of going:

- *tail*: appended and refilled bytes in memory, see TailMemory.
- *fetched*: what came from Tier 2, see FetchedExtents.
- *cached*: blocks in the cache, see CachedBlocks.
- *logged*: replayed bytes that stay in the log until Tier 2 has them, see LoggedBytes.

Every extent of every index is counted in exactly one stock; every change of an extent's home is
made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from readindex.cache_addresses import CacheAddresses
from readindex.cached_blocks import CachedBlocks
from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home
from readindex.fetched_extents import FetchedExtents
from readindex.logged_bytes import LoggedBytes
from readindex.segment_indexes import SegmentIndexes
from readindex.segment_read_index import SegmentReadIndex
from readindex.tail_memory import HARD_BOUND, TailMemory
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata

_LOST_PER_TURN = 1024
"""Blocks that one turn of the event loop gives up."""


class SpillItem(NamedTuple):
    """One extent on its way into the cache, and the blocks it is cut into: (address, start, end)
    within its bytes.
    """

    extent: Extent
    data: bytes
    parts: list[tuple[int, int, int]]


class CacheManager:
    """The stocks of one container.

    `forget_blocks` tells the cache which addresses are not needed any more.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        config: ReadIndexConfig,
        addresses: CacheAddresses,
        indexes: SegmentIndexes,
        tail: TailMemory,
        fetched: FetchedExtents,
        forget_blocks: Callable[[Sequence[int]], None],
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._addresses = addresses
        self._forget_blocks = forget_blocks
        self._indexes = indexes
        self._tail = tail
        self._fetched = fetched
        self.cached = CachedBlocks()
        self.logged = LoggedBytes(config.logged_places_max)
        self.spilled_bytes = 0
        self._dropped_unflushed_bytes = 0

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

    @property
    def dropped_unflushed_bytes(self) -> int:
        """Un-flushed bytes that memory and cache had no room for."""
        return self._dropped_unflushed_bytes + self._tail.dropped_unflushed_bytes

    # --- bytes coming in ---

    def append_replayed(
        self, index: SegmentReadIndex, offset: int, data: Buffer, address: int
    ) -> None:
        """Add the next bytes of a segment, which lie at `address` of the log: where they lie
        alone, if that is worth a place.
        """
        if len(data) < self._config.small_bytes or self.logged.full:
            self._tail.append(index, offset, data)
            return
        index.check_next(offset)
        self._tail.cut(index)
        self.logged.append(index, offset, data, address, self._config.block_bytes)
        self._tail.position += len(data)

    def unflushed_room(self, *, spills: bool) -> int:
        """Un-flushed bytes that may be put back; 0 or less if none.

        Without spilling memory alone has room.
        """
        room = self._config.tail_bytes_max - self._tail.bytes_unflushed
        return room + self._config.cache_bytes_max - self.cached.bytes_unflushed if spills else room

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
        """Take an extent out of its stock, its index, and the cache."""
        home = extent.home
        if home is Home.CACHED:
            self.cached.remove(extent)
            self._forget_blocks((extent.address,))
        elif home is Home.LOGGED:
            self.logged.remove(extent)
        else:
            (self._tail if extent.counted_bytes else self._fetched).release(extent)
            return
        self._indexes.remove(extent)

    def drop_below(self, index: SegmentReadIndex, offset: int) -> None:
        """Let go of what lies wholly below `offset` (the segment was truncated there)."""
        tail = index.tail
        if tail is not None and tail.end_offset <= offset:
            self._tail.cut(index)
        gone = []
        for extent in index.extents_from(0):
            if extent.end_offset > offset:
                break
            gone.append(extent)
        for extent in gone:
            self.release(extent)

    def drop_segment(self, segment_id: int) -> None:
        """Let go of everything of a segment, its index included."""
        index = self._indexes.get(segment_id)
        if index is not None:
            self._tail.cut(index)
            for extent in list(index.extents_from(0)):
                self.release(extent)
            del self._indexes[segment_id]

    def drop_unflushed(self, segment_id: int) -> None:
        """Let go of what Tier 2 has not, but for what is on its way to the cache."""
        index = self._indexes.get(segment_id)
        if index is None:
            return
        self._tail.cut(index)
        for extent in list(index.extents_from(index.flushed_mark)):
            if not extent.flushed and extent.home in (Home.TAIL, Home.CACHED):
                self._dropped_unflushed_bytes += extent.length
                self.release(extent)

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
        target = self._indexes.of(target_id)
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

    def release_lost(self, holds: Callable[[int], bool]) -> bool:
        """Let go of un-flushed blocks that the cache has dropped silently, oldest first; True if
        there may be more of them.

        A cache drops the oldest, or all: what is behind one that is there is taken to be there.
        O(_LOST_PER_TURN).
        """
        oldest = self.cached.first_unflushed(_LOST_PER_TURN)
        lost = list(takewhile(lambda extent: not holds(extent.address), oldest))
        for extent in lost:
            self.release(extent)
        return len(lost) == _LOST_PER_TURN

    # --- what changes in place ---

    def advance(self, index: SegmentReadIndex, storage_length: int) -> None:
        """Tier 2 has everything below `storage_length` now. Cost: the extents this is new for."""
        self._tail.advance(index, storage_length)
        for extent in index.newly_flushed(storage_length):
            extent.flushed = False
            self._mark_flushed(extent)
        self.logged.shorten(index, storage_length)

    def trim(self) -> bool:
        """Drop what may go; True if something should be spilled."""
        return self._tail.trim() or self._fetched.has_demoted

    def take_batch(self) -> list[SpillItem]:
        """The next extents to spill, made SPILLING; empty if there are none."""
        demoted = self._fetched.take_demoted()
        oldest = self._tail.take_batch(self._config.spill_batch_bytes)
        return [self._item(extent) for extent in (*demoted, *oldest)]

    def spilled(self, items: Sequence[SpillItem]) -> None:
        """The cache has the batch: let go of the memory.

        What was removed meanwhile is forgotten by the cache.
        """
        for extent, _, parts in items:
            if extent.home is not Home.SPILLING:
                self._forget_blocks([address for address, _, _ in parts])
                continue
            self.spilled_bytes += extent.length
            index = self._indexes[extent.segment_id]
            self.release(extent)
            segment = self._metadata.segments[extent.segment_id]
            for address, start, end in parts:
                # The parts may lie on both sides of storage_length, and of start_offset.
                if extent.start_offset + end <= segment.start_offset:
                    self._forget_blocks((address,))
                    continue
                block = Extent(
                    extent.segment_id, extent.start_offset + start, end - start, None, Home.CACHED
                )
                block.address = address
                block.flushed = block.end_offset <= segment.storage_length
                if not block.flushed:
                    index.flushed_mark = min(index.flushed_mark, block.start_offset)
                index.put(block)
                self.cached.add(block)
        self._evict_cached()

    def spill_refused(self, items: Sequence[SpillItem]) -> None:
        """The cache took nothing: un-flushed extents are the oldest of the tail again, the others
        go.
        """
        for extent, _, parts in reversed(items):
            self._forget_blocks([address for address, _, _ in parts])
            if extent.home is not Home.SPILLING:
                continue
            if extent.counted_bytes:
                self._tail.take_back(extent)
            else:
                self.release(extent)

    # --- inside ---

    def _item(self, extent: Extent) -> SpillItem:
        data = extent.joined()
        block_bytes = self._config.block_bytes
        # A gathered block is a little over block_bytes: it stays one.
        pieces = max(1, extent.length // block_bytes)
        starts = [piece * block_bytes for piece in range(pieces)]
        ends = [*starts[1:], extent.length]
        parts = [
            (self._addresses.take(), start, end) for start, end in zip(starts, ends, strict=True)
        ]
        return SpillItem(extent, data, parts)

    def _mark_flushed(self, extent: Extent) -> None:
        if extent.flushed:
            return
        if extent.home is Home.LOGGED:
            # The log may be truncated from here on.
            self.release(extent)
            return
        extent.flushed = True
        if extent.home is Home.CACHED:
            self.cached.mark_flushed(extent)
        else:
            self._tail.mark_flushed(extent)

    def _evict_cached(self) -> None:
        while self.cached.bytes_total > self._config.cache_bytes_max:
            extent = self.cached.first_to_go()
            assert extent is not None
            if not extent.flushed:
                self._dropped_unflushed_bytes += extent.length
            self.release(extent)

    def check(self) -> None:
        """Assert the rules of every index and that each extent is counted once. O(everything)."""
        self._tail.check()
        self.cached.check()
        self._fetched.check()
        homes = dict.fromkeys(Home, 0)
        for segment_id, index in self._indexes.items():
            assert index.segment_id == segment_id
            index.check()
            for extent in index.extents_from(0):
                homes[extent.home] += extent.length
        assert homes[Home.CACHED] == self.cached.bytes_total
        assert homes[Home.LOGGED] == self.logged.bytes_total
