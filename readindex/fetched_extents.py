"""FetchedExtents: the account of the extents that came from Tier 2 and lie in memory (pure).

Each is in one of three places, and when room is needed they are emptied in this order:

- *consumed*: a sequential reader has read it to its end. A small stock that only lingers for
  readers in step with it: beyond an eighth of the bound, or some megabytes, the oldest goes at
  once, and its memory is used again while it is still warm;
- *loose*: read by somebody who is not sequential, or not wanted by anybody any more. First in,
  first out, but what nobody has read goes first, and what was read twice gets a second life;
- *held* by a stream: what is ahead of a sequential reader. It goes last, from those who hold more
  than their share, and from its far end: readers at different places do not throw out each other's
  read-ahead.

A consumed piece that another sequential reader close behind counts on becomes that one's own
instead.
"""

from __future__ import annotations

from collections import OrderedDict

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home, SequentialReader
from readindex.sequential_readers import SequentialReaders
from segmentstore.contracts.byte_sizes import MIB

LINGER_BYTES_MAX = 4 * MIB


class FetchedExtents:
    """Extents whose home is FETCHED."""

    def __init__(self, config: ReadIndexConfig, streams: SequentialReaders) -> None:
        self._streams = streams
        self.linger_bytes = max(
            config.piece_bytes, min(config.fetched_bytes_max // 8, LINGER_BYTES_MAX)
        )
        """Bound of the consumed ones."""
        self._consumed: OrderedDict[Extent, None] = OrderedDict()
        self._loose: OrderedDict[Extent, None] = OrderedDict()
        self.bytes_total = 0
        self.bytes_consumed = 0
        self.ahead_hits = 0
        """Extents fetched ahead that somebody came to read."""
        self.ahead_wasted_bytes = 0
        """Bytes of extents fetched ahead that went without having been read."""

    def add(self, extent: Extent, owner: SequentialReader | None, *, ahead: bool) -> None:
        """Count an extent that has just been fetched, `ahead` of its reader or not."""
        assert extent.home is Home.FETCHED
        self.bytes_total += extent.length
        extent.ahead = ahead
        if owner is not None and owner.sequential and extent.end_offset > owner.position:
            extent.owner = owner
            owner.held[extent] = None
        else:
            self._loosen(extent)

    def remove(self, extent: Extent) -> None:
        """Stop counting an extent."""
        owner = extent.owner
        self._take_out(extent)
        self.bytes_total -= extent.length
        if extent.ahead:
            if owner is not None:
                owner.ahead_end = max(owner.position, min(owner.ahead_end, extent.start_offset))
            extent.ahead = False
            self.ahead_wasted_bytes += extent.length

    def touch(self, extent: Extent, offset: int, end_offset: int, reader: SequentialReader) -> None:
        """Note a read of [offset, end_offset) that began in this extent."""
        if extent.ahead:
            extent.ahead = False
            self.ahead_hits += 1
        if offset < extent.high_water and not reader.continued:
            extent.reread = True
            if extent in self._loose:
                self._loose.move_to_end(extent)
        extent.high_water = max(extent.high_water, min(end_offset, extent.end_offset))
        if reader.sequential and extent.high_water == extent.end_offset:
            self._take_out(extent)
            next_reader = self._streams.next_reader(extent, reader)
            if next_reader is not None:
                extent.owner = next_reader
                next_reader.held[extent] = None
            elif extent.reread:
                self._loose[extent] = None
            else:
                self._consumed[extent] = None
                self.bytes_consumed += extent.length

    def let_go(self, stream: SequentialReader) -> None:
        """A stream has ended: what it held is loose, and goes before anything else that is."""
        for extent in reversed(stream.held):
            extent.owner = None
            self._loose[extent] = None
            self._loose.move_to_end(extent, last=False)
        stream.held.clear()

    def lingering(self) -> Extent | None:
        """The oldest consumed extent if there are more than may linger."""
        return next(iter(self._consumed)) if self.bytes_consumed > self.linger_bytes else None

    def first_to_go(self, *, ahead_of_all: bool) -> Extent | None:
        """What to give up next for room; None if there is nothing. O(streams) at worst.

        With `ahead_of_all` even what is ahead of a stream that keeps to its share.
        """
        for stock in (self._consumed, self._loose):
            if stock:
                return next(iter(stock))
        share = self._streams.share
        for stream in self._streams.running.values():
            # The longest idle first. What they hold is a few large pieces, so that counting it is
            # cheap.
            if stream.held and (
                ahead_of_all or sum(extent.length for extent in stream.held) > share
            ):
                return next(reversed(stream.held))
        return None

    def _loosen(self, extent: Extent) -> None:
        self._loose[extent] = None
        if extent.ahead:
            self._loose.move_to_end(extent, last=False)

    def _take_out(self, extent: Extent) -> None:
        owner = extent.owner
        if owner is not None:
            del owner.held[extent]
            extent.owner = None
        elif extent in self._consumed:
            del self._consumed[extent]
            self.bytes_consumed -= extent.length
        else:
            del self._loose[extent]

    def check(self) -> None:
        """Assert that each extent is counted once. O(extents)."""
        held = [extent for stream in self._streams.running.values() for extent in stream.held]
        for stream in self._streams.running.values():
            assert all(extent.owner is stream for extent in stream.held), stream
        everything = [*self._consumed, *self._loose, *held]
        assert all(extent.home is Home.FETCHED for extent in everything)
        assert all(extent.owner is None for extent in (*self._consumed, *self._loose))
        assert self.bytes_total == sum(extent.length for extent in everything)
        assert (
            self.bytes_consumed
            == sum(extent.length for extent in self._consumed)
            <= self.linger_bytes
        )

    def __contains__(self, extent: Extent) -> bool:
        return extent.owner is not None or extent in self._consumed or extent in self._loose
