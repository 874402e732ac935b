"""LoggedBytes: the residence of bytes that only the log has, at known places (loop).

What was appended lies in the log. Where the log can be read by place, larger appends are never
copied to the cache. Replayed ones are not kept in memory either; live ones stay there while there
is room. Their extents record their places, until Tier 2 has them. Memory goes by places, so
these are bounded; what is beyond is spilled, as small appends are.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home, LogPlaces
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex
from segmentstore.contracts.checksum import Buffer, crc32c, crc32c_parts

LogRange = tuple[int, int, int]
"""Address in the log, length, CRC32C."""
ReadLog = Callable[[Sequence[LogRange]], Awaitable[Sequence[bytes | None]]]
"""Gives the bytes at places in the log, None for each that is not there whole."""


async def read_nothing(ranges: Sequence[LogRange]) -> Sequence[bytes | None]:
    """Of a log that cannot be read by place."""
    return [None] * len(ranges)


class LoggedBytes:
    """Extents whose home is LOGGED; `config.logged_places_max` bounds the places of all
    together.
    """

    def __init__(self, config: ReadIndexConfig, indexes: SegmentIndexes, read_log: ReadLog) -> None:
        self._indexes = indexes
        self._read_log = read_log
        self._places_max = config.logged_places_max
        self._block_bytes = config.block_bytes
        self.places = 0
        self.bytes_total = 0
        self.misses = 0
        """Extents of which the log did not have all bytes when they were read."""

    @property
    def full(self) -> bool:
        """True if no place more is taken."""
        return self.places >= self._places_max

    # --- bytes coming in ---

    def append(self, index: SegmentReadIndex, offset: int, data: Buffer, places: LogPlaces) -> None:
        """Note where the next bytes of a segment lie. Its tail buffer has been cut."""
        position = 0
        for address, length in self._blocks_of(places):
            piece = data[position : position + length]
            self._append(index, offset + position, piece, address)
            position += length

    def _blocks_of(self, places: LogPlaces) -> Iterator[tuple[int, int]]:
        """The places, none longer than a block: each is read and checked as a whole."""
        for address, length in places:
            for begin in range(0, length, self._block_bytes):
                yield address + begin, min(self._block_bytes, length - begin)

    def adopt(self, extent: Extent) -> None:
        """An extent whose bytes leave memory, of which TailMemory knew the places, is read from the
        log from now on. About 4 us for 64 KiB.
        """
        known = extent.places
        assert known is not None
        assert extent.home is Home.TAIL, extent
        whole = None if extent.data is None else memoryview(extent.data)
        places = array("Q")
        position = extent.start_offset
        for address, length in self._blocks_of(list(zip(known[::3], known[1::3], strict=True))):
            begin = position - extent.start_offset
            parts = (
                extent.parts(position, length)
                if whole is None
                else (whole[begin : begin + length],)
            )
            places.extend((address, length, crc32c_parts(parts)))
            position += length
        assert position == extent.end_offset, extent
        extent.home, extent.places = Home.LOGGED, places
        extent.data = extent.pieces = None
        self.places += len(places) // 3
        self.bytes_total += extent.length

    def _append(self, index: SegmentReadIndex, offset: int, data: Buffer, address: int) -> None:
        length = len(data)
        last = index.last
        if (
            last is None
            or last.home is not Home.LOGGED
            or last.length + length > self._block_bytes
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

    # --- reads ---

    async def read(
        self, index: SegmentReadIndex, offset: int, length: int, blocks_max: int
    ) -> list[bytes] | None:
        """At most `length` bytes from `offset`, which an extent has, out of at most so many blocks'
        worth of extents that follow each other. None if the log does not have the first whole.
        """
        # An extent of a large append has many blocks.
        length = min(length, blocks_max * self._block_bytes)
        run = [
            (extent, extent.start_offset)
            for extent in index.run_of(Home.LOGGED, offset, length, blocks_max)
        ]
        wanted = [ranges_of(extent, max(offset, start), offset + length) for extent, start in run]
        found = iter(await self._read_log([each for ranges, _ in wanted for each in ranges]))
        pieces: list[bytes] = []
        whole = True
        for (extent, start), (ranges, before) in zip(run, wanted, strict=True):
            parts = [part for part in islice(found, len(ranges)) if part is not None]
            if len(parts) < len(ranges):
                # All that are lost are forgotten together: one rescan searches them. What one lacks
                # that was shortened meanwhile is in Tier 2.
                if extent.start_offset == start:
                    self._lost(extent)
                whole = False
            elif whole:
                parts[0] = parts[0][before:]
                pieces += parts
        return _cut(pieces, length) or None

    def _lost(self, extent: Extent) -> None:
        self.misses += 1
        if extent.home is Home.LOGGED:
            self.release(extent)

    # --- bytes that Tier 2 has, and bytes going out ---

    def shorten(self, index: SegmentReadIndex, offset: int) -> None:
        """Tier 2 has what lies before `offset`: an extent that holds both sides begins there."""
        extent = index.find(offset)
        if extent is None or extent.home is not Home.LOGGED or extent.start_offset == offset:
            return
        assert extent.places is not None
        dropped = offset - extent.start_offset
        lead = _lead(extent) + dropped
        while lead >= extent.places[1]:
            lead -= extent.places[1]
            del extent.places[:3]
            self.places -= 1
        index.move_start(extent, offset)
        self.bytes_total -= dropped

    def release(self, extent: Extent) -> None:
        """Take an extent out."""
        assert extent.places is not None
        self.places -= len(extent.places) // 3
        self.bytes_total -= extent.length
        self._indexes[extent.segment_id].remove(extent)

    def check(self) -> None:
        """Assert that each extent is counted once. O(extents)."""
        places = bytes_total = 0
        for index in self._indexes.values():
            for extent in index.extents_from(0):
                if extent.home is Home.LOGGED:
                    assert extent.places is not None, extent
                    places += len(extent.places) // 3
                    bytes_total += extent.length
        assert (places, bytes_total) == (self.places, self.bytes_total)


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


def _cut(pieces: list[bytes], length: int) -> list[bytes]:
    """The first `length` bytes of these pieces, of which the last alone may reach further."""
    surplus = sum(map(len, pieces)) - length
    if surplus > 0:
        pieces[-1] = pieces[-1][:-surplus]
    return pieces


def _lead(extent: Extent) -> int:
    """Bytes of the first place that lie before the extent."""
    assert extent.places is not None
    return sum(extent.places[1::3]) - extent.length
