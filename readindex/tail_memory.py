"""TailMemory: the residence of appended and refilled bytes in memory (pure).

It counts the tail buffers of all segments, the extents at home in TAIL, and those on their way
from there into the cache. They leave oldest first, over all segments: what Tier 2 has is dropped,
the rest is handed over in batches. Above `HARD_BOUND` times the bound un-flushed bytes are dropped
too: Tier 1 has them, and a rescan brings them back.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home, LogPlaces
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex
from segmentstore.contracts.checksum import Buffer

HARD_BOUND = 2
"""Tail memory never goes beyond this many times `tail_bytes_max`, spills in flight left aside."""
PASSED_OVER_MAX = 64
"""Extents that wait for the cache are passed over in search of those that the log has, and the
other way round. Large and small appends of a segment may alternate. So many at a time.
"""


class CommittedAppend(Protocol):
    """What is known of an append: where its bytes are in the segment, and in the log."""

    @property
    def segment_id(self) -> int:
        """Id of the segment that has grown."""

    @property
    def offset(self) -> int:
        """Place of the first byte in the segment."""

    @property
    def data(self) -> Buffer:
        """Its bytes."""

    @property
    def places(self) -> LogPlaces:
        """Where the log has them, if that is known."""


class TailMemory:
    """Of one container; bounded by `config.tail_bytes_max`."""

    def __init__(self, config: ReadIndexConfig, indexes: SegmentIndexes) -> None:
        self._indexes = indexes
        self._small_bytes = config.small_bytes
        self._block_bytes = config.block_bytes
        self._bytes_max = config.tail_bytes_max
        self.bytes_total = 0
        self.bytes_flushed = 0
        """How much of `bytes_total` Tier 2 has too."""
        self.bytes_flushed_spilling = 0
        """How much of `bytes_flushed` is on its way into the cache: held until that answers."""
        self.position = 0
        """Grows by every byte appended to the container, here or elsewhere: the order of age."""
        self.dropped_unflushed_bytes = 0
        self._open: OrderedDict[SegmentReadIndex, None] = OrderedDict()
        self._fifo: OrderedDict[Extent, None] = OrderedDict()

    @property
    def bytes_unflushed(self) -> int:
        """How much of `bytes_total` Tier 2 lacks."""
        return self.bytes_total - self.bytes_flushed

    @property
    def bytes_held(self) -> int:
        """How much of `bytes_total` stays until it is flushed or spilled."""
        return self.bytes_total - self.bytes_flushed + self.bytes_flushed_spilling

    # --- bytes coming in ---

    def gather(self, appends: Sequence[CommittedAppend], first: int, bytes_total_max: int) -> int:
        """Add appends from number `first` on, up to one that is not small or continues no tail
        buffer, or until there are more than `bytes_total_max`. The number of the next one.

        About 0.2 us each.
        """
        indexes, small, block = self._indexes, self._small_bytes, self._block_bytes
        bytes_max = bytes_total_max - self.bytes_total
        gathered, number, count = 0, first, len(appends)
        while number < count:
            append = appends[number]
            index = indexes.get(append.segment_id)
            if index is None or index.tail is None:
                break
            data = append.data
            length = len(data)
            if length >= small or append.offset != index.next_offset:
                break
            # As `append` does, without its two calls, which would take as long again.
            buffer = index.tail.data
            buffer += data
            index.next_offset += length
            gathered += length
            number += 1
            if len(buffer) >= block:
                self.cut(index)
            if gathered > bytes_max:
                break
        self.bytes_total += gathered
        self.position += gathered
        return number

    def append(
        self, index: SegmentReadIndex, offset: int, data: Buffer, places: LogPlaces = ()
    ) -> None:
        """Add the next bytes of a segment, which lie at these places of the log, if that is known.

        About 0.5 us when they are few. DataCorruptionError at a wrong offset.
        """
        length = len(data)
        if length < self._small_bytes:
            if index.tail is None:
                if not length:
                    index.check_next(offset)
                    index.next_offset = offset
                    return
                index.open_tail(offset, self.position)
                self._open[index] = None
            if index.append_small(offset, data, self._block_bytes):
                self.cut(index)
        else:
            index.check_next(offset)
            if index.tail is not None:
                self.cut(index)
            kept = data if type(data) is bytes else bytes(data)
            extent = index.grow_last(offset, kept, self._block_bytes)
            if extent is None:
                extent = index.append_block(offset, kept)
                extent.position = self.position
                self._fifo[extent] = None
                extent.places = array("Q") if places else None
            extent.counted_bytes = extent.length
            if extent.places is not None:
                if places:
                    for address, count in places:
                        extent.places.extend((address, count, 0))
                else:
                    extent.places = None
        self.bytes_total += length
        self.position += length

    def note_elsewhere(self, count: int) -> None:
        """So many bytes were appended to the container that another residence has."""
        self.position += count

    def cut(self, index: SegmentReadIndex) -> Extent | None:
        """Turn a segment's tail buffer, if it has one, into an extent."""
        flushed = index.tail_flushed
        extent = index.cut()
        if extent is not None:
            del self._open[index]
            extent.counted_bytes = extent.length
            self._fifo[extent] = None
            if not extent.flushed:
                self.bytes_flushed -= flushed
        return extent

    def insert_refilled(
        self, index: SegmentReadIndex, offset: int, data: bytes, room_bytes: int
    ) -> None:
        """Put back un-flushed bytes around what is there, as far as `room_bytes` allow."""
        for extent in index.insert_around(offset, data, Home.TAIL):
            if extent.length > room_bytes:
                index.remove(extent)
                continue
            room_bytes -= extent.length
            extent.position = self.position
            extent.counted_bytes = extent.length
            self._fifo[extent] = None
            self.bytes_total += extent.length

    # --- bytes that Tier 2 has ---

    def advance(self, index: SegmentReadIndex, storage_length: int) -> None:
        """Tier 2 has everything below `storage_length`: count that of the tail buffer as flushed,
        and split the extent that appends still grow. As a whole it would never be flushed.
        """
        tail = index.tail
        if tail is not None:
            flushed = max(0, min(storage_length - tail.start_offset, len(tail.data)))
            self.bytes_flushed += flushed - index.tail_flushed
            index.tail_flushed = flushed
        last = index.last
        if (
            last is not None
            and last.pieces is not None
            and last.start_offset < storage_length < last.end_offset
        ):
            rest = index.split(last, storage_length)
            rest.position = self.position
            rest.counted_bytes = rest.length
            last.counted_bytes = last.length
            self._fifo[rest] = None

    def mark_flushed(self, extent: Extent) -> None:
        """Tier 2 has the extent now; `extent.flushed` was just set."""
        self.bytes_flushed += extent.counted_bytes
        if extent.home is Home.SPILLING:
            self.bytes_flushed_spilling += extent.counted_bytes

    # --- bytes going out ---

    def release(self, extent: Extent) -> None:
        """Take an extent out, be it on its way into the cache."""
        self.bytes_total -= extent.counted_bytes
        if extent.flushed:
            self.bytes_flushed -= extent.counted_bytes
            if extent.home is Home.SPILLING:
                self.bytes_flushed_spilling -= extent.counted_bytes
        extent.counted_bytes = 0
        self._fifo.pop(extent, None)
        self._indexes[extent.segment_id].remove(extent)

    def release_tail(self, index: SegmentReadIndex) -> None:
        """Take out a segment's tail buffer, if it has one, without making an extent of it."""
        tail = index.tail
        if tail is not None:
            del self._open[index]
            self.bytes_total -= len(tail.data)
            self.bytes_flushed -= index.tail_flushed
            index.tail, index.tail_flushed = None, 0

    def drop(self, extent: Extent) -> None:
        """Take out an extent that only Tier 1 has besides, for want of room."""
        if not extent.flushed:
            self.dropped_unflushed_bytes += extent.length
        self.release(extent)

    def trim(self) -> None:
        """Drop the oldest above the bound, as far as Tier 2 has it."""
        while self.bytes_total > self._bytes_max:
            extent = self._oldest()
            if extent is None or not extent.flushed:
                break
            self.release(extent)

    @property
    def over_bound(self) -> bool:
        """Whether something has to leave memory."""
        return self.bytes_total > self._bytes_max

    @property
    def over_hard_bound(self) -> bool:
        """Whether something has to leave memory now, wherever it is besides."""
        return self.bytes_total > HARD_BOUND * self._bytes_max

    def drop_oldest(self) -> bool:
        """Drop the oldest extent, un-flushed or not; False if there is none."""
        extent = self._oldest()
        if extent is not None:
            self.drop(extent)
        return extent is not None

    def take_placed(self, bytes_max: int) -> list[Extent]:
        """Of the oldest un-flushed extents above the bound those that the log has at known places,
        counted here no more; about `bytes_max` bytes.
        """
        taken = self._take_oldest(bytes_max, placed=True)
        for extent in taken:
            self.bytes_total -= extent.counted_bytes
            extent.counted_bytes = 0
        return taken

    def take_batch(self, bytes_max: int, *, placed: bool) -> list[Extent]:
        """The oldest un-flushed extents above the bound, made SPILLING; about `bytes_max` bytes.

        `placed`: those too that the log has at known places.
        """
        taken = self._take_oldest(bytes_max, placed=None if placed else False)
        for extent in taken:
            extent.home = Home.SPILLING
        return taken

    def _take_oldest(self, bytes_max: int, *, placed: bool | None) -> list[Extent]:
        """Those of known places alone, or the others alone; None: all. A few that are not wanted
        are passed over, and stay the oldest. What Tier 2 has is dropped on the way.
        """
        taken: list[Extent] = []
        passed: list[Extent] = []
        size, excess = 0, self.bytes_total - self._bytes_max
        while excess > 0 and size < bytes_max and len(passed) < PASSED_OVER_MAX:
            extent = self._oldest()
            if extent is None:
                break
            excess -= extent.length
            if extent.flushed:
                self.release(extent)
                continue
            del self._fifo[extent]
            if placed is None or placed == (extent.places is not None):
                size += extent.length
                taken.append(extent)
            else:
                passed.append(extent)
        for extent in reversed(passed):
            self._fifo[extent] = None
            self._fifo.move_to_end(extent, last=False)
        return taken

    def take_back(self, extent: Extent) -> None:
        """The cache refused an extent: it is the oldest again."""
        if extent.flushed:
            self.bytes_flushed_spilling -= extent.counted_bytes
        extent.home = Home.TAIL
        self._fifo[extent] = None
        self._fifo.move_to_end(extent, last=False)

    # --- inside ---

    def _oldest(self) -> Extent | None:
        oldest = next(iter(self._fifo), None)
        opened = next(iter(self._open), None)
        if opened is not None:
            tail = opened.tail
            assert tail is not None
            if oldest is None or tail.position < oldest.position:
                oldest = self.cut(opened)
                assert oldest is not None
                self._fifo.move_to_end(oldest, last=False)
        return oldest

    def check(self) -> None:
        """Assert that each extent and each tail buffer is counted once. O(extents)."""
        bytes_total = bytes_flushed = bytes_flushed_spilling = 0
        for index in self._indexes.values():
            for extent in index.extents_from(0):
                bytes_total += extent.counted_bytes
                bytes_flushed += extent.counted_bytes if extent.flushed else 0
                if extent.flushed and extent.home is Home.SPILLING:
                    bytes_flushed_spilling += extent.counted_bytes
                assert extent.counted_bytes in (
                    (extent.length,) if extent.home is Home.TAIL else (0, extent.length)
                )
                assert (extent.home is Home.TAIL) == (extent in self._fifo), extent
            assert (index.tail is not None) == (index in self._open), index
            if index.tail is not None:
                bytes_total += len(index.tail.data)
                bytes_flushed += index.tail_flushed
        assert bytes_total == self.bytes_total, (bytes_total, self.bytes_total)
        assert bytes_flushed == self.bytes_flushed, (bytes_flushed, self.bytes_flushed)
        assert bytes_flushed_spilling == self.bytes_flushed_spilling
