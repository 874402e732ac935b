"""LoggedBytes: the account of the extents of which only the log has the bytes, at known places
(pure).

What is replayed lies in the log already. Where the log can be read by place, its larger appends are
neither kept in memory nor copied to the cache: their extents know where they lie. Memory goes by
places, so these are bounded; what is beyond goes the way of live appends.
"""

from __future__ import annotations

from readindex.extent import Extent, Home
from readindex.segment_read_index import SegmentReadIndex
from segmentstore.contracts.checksum import Buffer, crc32c

LogRange = tuple[int, int, int]
"""Address in the log, length, CRC32C."""


class LoggedBytes:
    """Extents whose home is LOGGED; `places_max` bounds the places of all together."""

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self.places = 0
        self.bytes_total = 0

    @property
    def full(self) -> bool:
        """True if no place more is taken."""
        return self.places >= self._places_max

    def append(
        self, index: SegmentReadIndex, offset: int, data: Buffer, address: int, block_bytes: int
    ) -> None:
        """Note where the next bytes of a segment lie, by at most a block: a place is read and
        checked as a whole. Its tail buffer has been cut.
        """
        for begin in range(0, len(data), block_bytes):
            piece = data[begin : begin + block_bytes]
            self._append(index, offset + begin, piece, address + begin, block_bytes)

    def _append(
        self, index: SegmentReadIndex, offset: int, data: Buffer, address: int, block_bytes: int
    ) -> None:
        length = len(data)
        last = index.last
        if (
            last is None
            or last.places is None
            or last.length + length > block_bytes
            or last.start_offset + last.length != offset
        ):
            last = index.append_logged(offset)
        places = last.places
        assert places is not None
        places.extend((address, length, crc32c(data)))
        last.length += length
        index.next_offset = offset + length
        self.places += 1
        self.bytes_total += length

    def shorten(self, index: SegmentReadIndex, offset: int) -> None:
        """Tier 2 has what lies before `offset`: an extent that holds both sides begins there."""
        extent = index.find(offset)
        if extent is None or extent.places is None or extent.start_offset == offset:
            return
        gone = offset - extent.start_offset
        lead = _lead(extent) + gone
        while lead >= extent.places[1]:
            lead -= extent.places[1]
            del extent.places[:3]
            self.places -= 1
        index.move_start(extent, offset)
        self.bytes_total -= gone

    def remove(self, extent: Extent) -> None:
        """Stop counting an extent."""
        assert extent.places is not None
        self.places -= len(extent.places) // 3
        self.bytes_total -= extent.length


def ranges_of(extent: Extent, offset: int, end_offset: int) -> tuple[list[LogRange], int]:
    """What to read of the log for the extent's bytes in [offset, end_offset), and how many bytes of
    the first range lie before `offset`.
    """
    assert extent.home is Home.LOGGED, extent
    assert extent.places is not None
    begin = extent.start_offset - _lead(extent)
    skip, end = offset - begin, end_offset - begin
    ranges: list[LogRange] = []
    position = before = 0
    places = iter(extent.places)
    for address, size, checksum in zip(places, places, places, strict=True):
        if position < end and skip < position + size:
            if not ranges:
                before = skip - position
            ranges.append((address, size, checksum))
        position += size
    return ranges, before


def _lead(extent: Extent) -> int:
    """Bytes of the first place that lie before the extent."""
    assert extent.places is not None
    return sum(extent.places[1::3]) - extent.length
