"""SegmentReadIndex: which bytes of one segment are in memory or in the cache (pure).

Rules:

- extents are disjoint, sorted by start offset, and none reaches beyond `next_offset` once that is
  known;
- the tail buffer, if there is one, is not empty and covers exactly [tail.start_offset,
  next_offset);
- nothing is ever put over what is there: `insert_around` fills gaps;
- what no extent and no buffer covers is elsewhere: in Tier 2, in a merged source, or in Tier 1
  alone. This class does not know which; ReadIndex asks the metadata.

A segment that only had a few small appends costs this object and one bytearray: the sorted index is
made with the first extent and given back with the last.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from sortedcontainers import SortedDict

from readindex.extent import Extent, Home
from readindex.tail_buffer import TailBuffer
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DataCorruptionError

UNKNOWN = -1


class SegmentReadIndex:
    """One segment's extents and tail buffer. All offsets are places in the segment."""

    __slots__ = (
        "extents",
        "flushed_mark",
        "last",
        "next_offset",
        "segment_id",
        "tail",
        "tail_flushed",
    )

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.next_offset = UNKNOWN
        """Where the next append must begin; UNKNOWN until the first append or merge seen by this
        index.
        """
        self.tail: TailBuffer | None = None
        self.tail_flushed = 0
        """Bytes at the beginning of the tail buffer that Tier 2 has as well: 0 <= tail_flushed <=
        len(tail.data).
        """
        self.extents: SortedDict[int, Extent] | None = None
        self.flushed_mark = 0
        """Every extent that begins below this and is not `flushed` reaches beyond
        storage_length.
        """
        self.last: Extent | None = None
        """The newest extent that an append made, wherever it is by now."""

    # --- appending ---

    def check_next(self, offset: int) -> None:
        """Raise DataCorruptionError unless an append at `offset` continues the segment."""
        if self.next_offset not in (offset, UNKNOWN):
            raise DataCorruptionError(
                f"read index of segment {self.segment_id}",
                f"an append at offset {offset} came where {self.next_offset} was to follow",
            )

    def append_small(self, offset: int, data: Buffer, block_bytes: int) -> bool:
        """Gather `data` in the tail buffer, which must exist.

        True if the buffer has become a full block. < 0.5 us.
        """
        if offset != self.next_offset:
            self.check_next(offset)
        tail = self.tail
        assert tail is not None
        gathered = tail.data
        gathered += data
        self.next_offset = offset + len(data)
        return len(gathered) >= block_bytes

    def open_tail(self, offset: int, position: int) -> None:
        """Begin a tail buffer at `offset`, the next append's place."""
        self.check_next(offset)
        assert self.tail is None
        self.next_offset = offset
        self.tail = TailBuffer(offset, position)
        self.tail_flushed = 0

    def grow_last(self, offset: int, data: bytes, block_bytes: int) -> Extent | None:
        """Keep `data` by reference in the newest extent, if that has not been settled and both
        together make one block.

        An extent costs ten times what a piece of one does, over all its ways. The tail buffer must
        have been cut.
        """
        last = self.last
        if (
            last is None
            or last.length + len(data) > block_bytes
            or last.home is not Home.TAIL
            or last.flushed
            or last.start_offset + last.length != offset
        ):
            return None
        assert self.tail is None
        last.grow(data)
        self.next_offset = offset + len(data)
        return last

    def append_block(self, offset: int, data: bytes) -> Extent:
        """Keep `data` by reference as an extent of its own. The tail buffer must have been cut."""
        self.check_next(offset)
        assert self.tail is None
        extent = self.last = Extent(self.segment_id, offset, len(data), data, Home.TAIL)
        self.put(extent)
        self.next_offset = offset + len(data)
        return extent

    def append_logged(self, offset: int) -> Extent:
        """Begin an extent, empty yet, whose bytes stay in the log. The tail buffer must have been
        cut.
        """
        assert self.tail is None
        extent = self.last = Extent(self.segment_id, offset, 0, None, Home.LOGGED)
        extent.places = array("Q")
        self.put(extent)
        return extent

    def move_start(self, extent: Extent, offset: int) -> None:
        """Release what an extent has before `offset`."""
        assert self.extents is not None
        del self.extents[extent.start_offset]
        extent.length = extent.end_offset - offset
        extent.start_offset = offset
        self.put(extent)

    def split(self, extent: Extent, offset: int) -> Extent:
        """Make the part of a gathered extent from `offset` on an extent of its own, the one that
        appends go on with.
        """
        pieces = extent.parts(offset, extent.end_offset - offset)
        rest = self.last = Extent(
            self.segment_id, offset, extent.end_offset - offset, b"", Home.TAIL
        )
        rest.data, rest.pieces = None, pieces
        # Of the part before it Tier 2 has all: its places are not needed.
        rest.places, extent.places = extent.places_from(offset), None
        extent.pieces = extent.parts(extent.start_offset, offset - extent.start_offset)
        extent.length = offset - extent.start_offset
        self.put(rest)
        return rest

    def cut(self) -> Extent | None:
        """Turn the tail buffer into an extent; None if there is no buffer.

        The caller accounts for it.
        """
        tail, self.tail = self.tail, None
        if tail is None:
            return None
        extent = Extent(
            self.segment_id, tail.start_offset, len(tail.data), bytes(tail.data), Home.TAIL
        )
        extent.position = tail.position
        extent.flushed = self.tail_flushed == extent.length
        self.put(extent)
        if not extent.flushed:
            self.flushed_mark = min(self.flushed_mark, extent.start_offset)
        self.tail_flushed = 0
        return extent

    # --- search ---

    def find(self, offset: int) -> Extent | None:
        """The extent that covers `offset`, the tail buffer left aside. O(log extents)."""
        extents = self.extents
        if extents is None:
            return None
        at = extents.bisect_right(offset) - 1
        if at < 0:
            return None
        extent: Extent = extents.peekitem(at)[1]
        return extent if offset < extent.start_offset + extent.length else None

    def in_tail_buffer(self, offset: int) -> bool:
        """True if the tail buffer has the byte at `offset`."""
        tail = self.tail
        return tail is not None and tail.start_offset <= offset < self.next_offset

    def extents_from(self, offset: int) -> Iterator[Extent]:
        """Extents that end above `offset`, in order. Do not change the index while iterating."""
        extents = self.extents
        if not extents:
            return
        at = max(0, extents.bisect_right(offset) - 1)
        for start_offset in extents.irange(extents.peekitem(at)[0]):
            extent: Extent = extents[start_offset]
            if extent.end_offset > offset:
                yield extent

    def memory_pieces(self, offset: int, max_length: int) -> list[bytes]:
        """Bytes from `offset` that follow each other in memory, at most `max_length`; whole extents
        are not copied.
        """
        pieces: list[bytes] = []
        for extent in self.extents_from(offset):
            if max_length <= 0 or not extent.in_memory or extent.start_offset > offset:
                break
            pieces += extent.parts(offset, max_length)
            count = min(max_length, extent.end_offset - offset)
            offset += count
            max_length -= count
        tail = self.tail
        if tail is not None and max_length > 0 and tail.start_offset <= offset < self.next_offset:
            pieces.append(tail.slice(offset, max_length))
        return pieces

    def run_of(self, home: Home, offset: int, max_length: int, blocks_max: int) -> list[Extent]:
        """Extents of one home from the one at `offset` on that follow each other and are wanted for
        `max_length` bytes.
        """
        run: list[Extent] = []
        end = offset + max_length
        extents = self.extents
        assert extents is not None
        at = extents.bisect_right(offset) - 1
        values = extents.values()
        while at < len(extents) and offset < end and len(run) < blocks_max:
            extent: Extent = values[at]
            if extent.home is not home or not extent.start_offset <= offset < extent.end_offset:
                break
            run.append(extent)
            offset = extent.end_offset
            at += 1
        return run

    def gaps(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The parts of [start_offset, end_offset) that no extent and no buffer covers, as (start,
        end), in order.
        """
        gaps: list[tuple[int, int]] = []
        position = start_offset
        for extent in self.extents_from(start_offset):
            if extent.start_offset >= end_offset:
                break
            if extent.start_offset > position:
                gaps.append((position, extent.start_offset))
            position = max(position, extent.end_offset)
        tail = self.tail
        if tail is not None and tail.start_offset < end_offset:
            if max(position, tail.start_offset) > position:
                gaps.append((position, tail.start_offset))
            position = max(position, self.next_offset)
        if position < end_offset:
            gaps.append((position, end_offset))
        return gaps

    def gap_end(self, offset: int, end: int) -> int:
        """Where the gap that `offset` lies in ends, `end` at the latest. O(log extents)."""
        if self.extents is not None:
            at = self.extents.bisect_right(offset)
            if at < len(self.extents):
                end = min(end, self.extents.peekitem(at)[0])
        return end if self.tail is None else min(end, self.tail.start_offset)

    # --- changing ---

    def put(self, extent: Extent) -> None:
        """Add an extent where nothing is."""
        if self.extents is None:
            self.extents = SortedDict()
        self.extents[extent.start_offset] = extent

    def insert_around(self, offset: int, data: bytes, home: Home) -> list[Extent]:
        """Add the parts of `data` that nothing covers yet; the new extents.

        `data` itself is kept if all of it is new.
        """
        added: list[Extent] = []
        for start, end in self.gaps(offset, offset + len(data)):
            whole = end - start == len(data)
            part = data if whole else data[start - offset : end - offset]
            extent = Extent(self.segment_id, start, end - start, part, home)
            self.put(extent)
            added.append(extent)
        return added

    def remove(self, extent: Extent) -> None:
        """Take an extent out; its bytes are released. The caller accounts for it first."""
        extents = self.extents
        assert extents is not None
        found = extents.pop(extent.start_offset)
        assert found is extent, extent
        if not extents:
            self.extents = None
        extent.home = Home.REMOVED
        extent.data = extent.pieces = extent.places = None

    def newly_flushed(self, storage_length: int) -> list[Extent]:
        """Mark what now lies wholly below `storage_length` as flushed; the extents this is new for.

        Amortised O(1) each.
        """
        newly: list[Extent] = []
        mark = storage_length
        for extent in self.extents_from(self.flushed_mark):
            if extent.end_offset > storage_length:
                mark = min(mark, extent.start_offset)
                break
            if not extent.flushed:
                extent.flushed = True
                newly.append(extent)
        self.flushed_mark = max(self.flushed_mark, mark)
        return newly

    def check(self) -> None:
        """Assert the rules of this class. O(extents)."""
        assert self.extents is None or len(self.extents) > 0
        position = 0
        for start_offset, extent in () if self.extents is None else self.extents.items():
            assert extent.start_offset == start_offset >= position, extent
            assert extent.length > 0, extent
            assert extent.segment_id == self.segment_id, extent
            assert extent.home is not Home.REMOVED, extent
            if extent.home is Home.CACHED:
                assert not extent.in_memory, extent
                assert extent.address >= 0, extent
            elif extent.home is Home.LOGGED:
                assert not extent.in_memory, extent
                assert extent.places is not None, extent
                assert extent.length <= sum(extent.places[1::3]), extent
                assert sum(extent.places[4::3]) < extent.length, extent
            else:
                assert (extent.data is None) != (extent.pieces is None), extent
                assert (
                    sum(map(len, extent.parts(start_offset, extent.length))) == extent.length > 0
                ), extent
            position = extent.end_offset
        if self.tail is not None:
            assert self.tail.data, self
            assert position <= self.tail.start_offset, self
            assert self.tail.end_offset == self.next_offset, self
            assert 0 <= self.tail_flushed <= len(self.tail.data), self
        assert self.next_offset == UNKNOWN or position <= self.next_offset, self

    def __repr__(self) -> str:
        count = 0 if self.extents is None else len(self.extents)
        return f"<SegmentReadIndex {self.segment_id}: {count} extents, next {self.next_offset}>"


SegmentIndexes = dict[int, SegmentReadIndex]
"""By segment id, of one container."""


def index_of(indexes: SegmentIndexes, segment_id: int) -> SegmentReadIndex:
    """The segment's index, created if it has none: with the first byte of it that is held."""
    index = indexes.get(segment_id)
    if index is None:
        index = indexes[segment_id] = SegmentReadIndex(segment_id)
    return index
