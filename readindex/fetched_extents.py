"""FetchedExtents: the residence of bytes that came from Tier 2 and lie in memory (pure).

Each extent is in one of three places, and when room is needed they are emptied in this order:

- *consumed*: a sequential reader has read it to its end. A small amount only lingers for readers in
  step with it. Beyond an eighth of the bound, or some megabytes, the oldest is evicted at once, and
  its memory is used again while it is still warm;
- *loose*: read by a reader that is not sequential, or not wanted by any reader any more. First in,
  first out, but unread extents go first, and what was read twice stays for a second round;
- *held* by a sequential reader: what is ahead of it. It goes last, from those who hold more than
  their share, and from its far end: readers at different places do not throw out each other's
  read-ahead.

A consumed extent that another sequential reader close behind counts on becomes that one's own
instead. What has to make room and was read twice is *demoted*: it waits here to be moved to the
cache. What was read once, or in sequence, does not churn the cache.
"""

from __future__ import annotations

from collections import OrderedDict

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home, SequentialReader
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex
from readindex.sequential_readers import SequentialReaders
from segmentstore.contracts.byte_sizes import MIB

LINGER_BYTES_MAX = 4 * MIB


class FetchedExtents:
    """Extents whose home is FETCHED, or SPILLING from there; bounded by
    `config.fetched_bytes_max`.
    """

    def __init__(self, config: ReadIndexConfig, indexes: SegmentIndexes) -> None:
        self._indexes = indexes
        self._bytes_max = config.fetched_bytes_max
        self._demoted_bytes_max = config.spill_batch_bytes
        self.readers = SequentialReaders(config, on_ended=self._reader_ended)
        self.linger_bytes = max(
            config.piece_bytes, min(config.fetched_bytes_max // 8, LINGER_BYTES_MAX)
        )
        """Bound of the consumed ones."""
        self._consumed: OrderedDict[Extent, None] = OrderedDict()
        self._loose: OrderedDict[Extent, None] = OrderedDict()
        self._demoted: OrderedDict[Extent, None] = OrderedDict()
        self.bytes_total = 0
        """The demoted ones left aside."""
        self.bytes_consumed = 0
        self.bytes_demoted = 0
        """Of those that wait, and those on their way; at most `spill_batch_bytes`."""
        self.ahead_hits = 0
        """Extents fetched ahead that were read."""
        self.ahead_wasted_bytes = 0
        """Bytes of extents fetched ahead that went without having been read."""

    @property
    def has_demoted(self) -> bool:
        """True if extents wait to be moved to the cache."""
        return bool(self._demoted)

    # --- bytes coming in ---

    def insert(
        self,
        index: SegmentReadIndex,
        offset: int,
        data: bytes,
        reader: SequentialReader | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Keep bytes around what is there, for `reader` if it still wants them; `ahead` if they
        were fetched before it came.
        """
        for extent in index.insert_around(offset, data, Home.FETCHED):
            extent.flushed = True
            self._add(extent, reader, ahead=ahead)
        while self.bytes_total > self._bytes_max:
            first = self._first_to_go(ahead_of_all=True)
            assert first is not None
            self._give_up(first)

    def make_room(self, count: int) -> bool:
        """Give up extents until `count` more bytes fit; False if that would cost a reader its
        share.
        """
        while self.bytes_total + count > self._bytes_max:
            extent = self._first_to_go(ahead_of_all=False)
            if extent is None:
                return False
            self._give_up(extent)
        return True

    # --- reads ---

    def touch(self, extent: Extent, offset: int, end_offset: int, reader: SequentialReader) -> None:
        """Note a read of [offset, end_offset) that began in this extent, which may go with that.

        Extents of other homes are passed over.
        """
        if extent.home is not Home.FETCHED:
            return
        if extent.ahead:
            extent.ahead = False
            self.ahead_hits += 1
        if offset < extent.high_water and not reader.continued:
            extent.reread = True
            if extent in self._loose:
                self._loose.move_to_end(extent)
        extent.high_water = max(extent.high_water, min(end_offset, extent.end_offset))
        if reader.sequential and extent.high_water == extent.end_offset:
            self._consume(extent, reader)
        while self.bytes_consumed > self.linger_bytes:
            self.release(next(iter(self._consumed)))

    # --- bytes going out ---

    def release(self, extent: Extent) -> None:
        """Take an extent out, be it demoted."""
        if extent.home is Home.FETCHED:
            self._stop_counting(extent)
        else:
            self._demoted.pop(extent, None)
            self.bytes_demoted -= extent.length
        self._indexes[extent.segment_id].remove(extent)

    def take_demoted(self) -> list[Extent]:
        """Those that wait to be moved to the cache."""
        demoted = list(self._demoted)
        self._demoted.clear()
        return demoted

    # --- inside ---

    def _add(self, extent: Extent, reader: SequentialReader | None, *, ahead: bool) -> None:
        self.bytes_total += extent.length
        extent.ahead = ahead
        if reader is not None and reader.sequential and extent.end_offset > reader.position:
            reader.hold(extent)
        else:
            self._loose[extent] = None
            if ahead:
                self._loose.move_to_end(extent, last=False)

    def _consume(self, extent: Extent, reader: SequentialReader) -> None:
        self._take_out(extent)
        next_reader = self.readers.next_reader(extent, reader)
        if next_reader is not None:
            next_reader.hold(extent)
        elif extent.reread:
            self._loose[extent] = None
        else:
            self._consumed[extent] = None
            self.bytes_consumed += extent.length

    def _reader_ended(self, reader: SequentialReader) -> None:
        """What was fetched ahead for it and never read goes at once, the rest before anything else
        that is loose.
        """
        for extent in reversed(reader.release_all()):
            self._loose[extent] = None
            self._loose.move_to_end(extent, last=False)
            if extent.ahead:
                self.release(extent)

    def _first_to_go(self, *, ahead_of_all: bool) -> Extent | None:
        """What to give up next for room; None if there is nothing. O(readers) at worst.

        With `ahead_of_all` even what is ahead of a reader that keeps to its share.
        """
        for stock in (self._consumed, self._loose):
            if stock:
                return next(iter(stock))
        share = self.readers.share
        for reader in self.readers.running.values():
            # The longest idle first. What they hold is a few large extents, so that counting it is
            # cheap.
            if reader.held and (
                ahead_of_all or sum(extent.length for extent in reader.held) > share
            ):
                return next(reversed(reader.held))
        return None

    def _give_up(self, extent: Extent) -> None:
        if extent.reread and self.bytes_demoted + extent.length <= self._demoted_bytes_max:
            self._stop_counting(extent)
            extent.home = Home.SPILLING
            self._demoted[extent] = None
            self.bytes_demoted += extent.length
        else:
            self.release(extent)

    def _stop_counting(self, extent: Extent) -> None:
        owner = extent.owner
        self._take_out(extent)
        self.bytes_total -= extent.length
        if extent.ahead:
            if owner is not None:
                owner.lost_ahead(extent.start_offset)
            extent.ahead = False
            self.ahead_wasted_bytes += extent.length

    def _take_out(self, extent: Extent) -> None:
        owner = extent.owner
        if owner is not None:
            owner.release(extent)
        elif extent in self._consumed:
            del self._consumed[extent]
            self.bytes_consumed -= extent.length
        else:
            del self._loose[extent]

    def check(self) -> None:
        """Assert that each extent is counted once. O(extents)."""
        self.readers.check()
        held = [extent for reader in self.readers.running.values() for extent in reader.held]
        for reader in self.readers.running.values():
            assert all(extent.owner is reader for extent in reader.held), reader
        everything = [*self._consumed, *self._loose, *held]
        assert all(extent.owner is None for extent in (*self._consumed, *self._loose))
        assert self.bytes_total == sum(extent.length for extent in everything) <= self._bytes_max
        assert (
            self.bytes_consumed
            == sum(extent.length for extent in self._consumed)
            <= self.linger_bytes
        )
        extents = [extent for index in self._indexes.values() for extent in index.extents_from(0)]
        assert set(everything) == {extent for extent in extents if extent.home is Home.FETCHED}
        assert len(everything) == len(set(everything))
        assert self.bytes_demoted == sum(
            extent.length
            for extent in extents
            if extent.home is Home.SPILLING and not extent.counted_bytes
        )
