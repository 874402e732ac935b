"""SequentialReaders: which reads continue one another, and how far ahead of them it pays to fetch
(pure).

A read carries no name of its reader, so a reader is known by its place. Every read of fetched bytes
leaves the place where it ended; the read that begins exactly there is the next of the same reader.
Rules:

- a reader is *sequential* once a read that continues it finds nothing fetched, or once it has read
  two read units; only then it has a window. A read at a place of its own costs nothing but its
  entry here, which the next ones push out;
- the window begins at one unit and doubles with each unit read, up to `read_ahead_bytes_max`;
- the bytes of a reader (fetched and not wholly read yet) lie between its position and the end of
  its window, and are never more than its share. Sequential readers share three quarters of
  `fetched_bytes_max` equally;
- two readers that come to the same place are one from there on;
- a reader that has ended (idle, pushed out) is never sequential again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, SequentialReader

READERS_MAX = 256
"""Sequential readers, and as many places where one may begin, over all segments."""
_READ_UNITS_TO_TRUST = 2


class SequentialReaders:
    """The readers of one container.

    `on_ended(reader)` is called for each that ends while it may hold something.
    """

    def __init__(
        self, config: ReadIndexConfig, on_ended: Callable[[SequentialReader], None]
    ) -> None:
        self._config = config
        self._on_ended = on_ended
        self.running: OrderedDict[tuple[int, int], SequentialReader] = OrderedDict()
        """Sequential readers by segment and position, the one that has waited longest first."""
        self._begun: OrderedDict[tuple[int, int], SequentialReader] = OrderedDict()

    @property
    def share(self) -> int:
        """What each sequential reader may have ahead of it, in bytes."""
        return self._config.fetched_bytes_max * 3 // 4 // max(1, len(self.running))

    def expects(self, segment_id: int, offset: int) -> bool:
        """True if a read that begins here continues another."""
        key = (segment_id, offset)
        return key in self.running or key in self._begun

    def advance(
        self, segment_id: int, offset: int, end_offset: int, now_s: float, *, missed: bool
    ) -> SequentialReader:
        """Note a read of [offset, end_offset); `missed` if it found nothing fetched nor on its way.

        O(1).
        """
        key = (segment_id, offset)
        piece_bytes = self._config.piece_bytes
        reader = self.running.pop(key, None)
        if reader is None:
            reader = self._begun.pop(key, None)
            if reader is None:
                return self._put(self._begin(segment_id, offset, end_offset, now_s))
            reader.continued = True
            if missed or reader.run_bytes >= _READ_UNITS_TO_TRUST * piece_bytes:
                reader.sequential = True
                reader.window = min(piece_bytes, self._config.read_ahead_bytes_max)
                reader.run_bytes = 0
        elif reader.run_bytes >= piece_bytes:
            reader.window = min(2 * reader.window, self._config.read_ahead_bytes_max)
            reader.run_bytes = 0
        reader.run_bytes += end_offset - offset
        reader.position = end_offset
        reader.ahead_end = end_offset if missed else max(reader.ahead_end, end_offset)
        reader.advanced_s = now_s
        return self._put(reader)

    @staticmethod
    def _begin(segment_id: int, offset: int, end_offset: int, now_s: float) -> SequentialReader:
        reader = SequentialReader(segment_id)
        reader.position = reader.ahead_end = end_offset
        reader.run_bytes = end_offset - offset
        reader.advanced_s = now_s
        return reader

    def next_reader(self, extent: Extent, past: SequentialReader) -> SequentialReader | None:
        """A sequential reader other than `past` that counts on the extent. O(readers)."""
        for reader in self.running.values():
            if (
                reader.segment_id == extent.segment_id
                and reader is not past
                and reader.position < extent.end_offset
                and extent.start_offset < reader.ahead_end
            ):
                return reader
        return None

    def end_idle(self, time_s: float) -> None:
        """End the sequential readers that have not read since `time_s`."""
        while self.running:
            key, reader = next(iter(self.running.items()))
            if reader.advanced_s > time_s:
                return
            del self.running[key]
            self._end(reader)

    def move(self, source_id: int, target_id: int, offset: int) -> None:
        """The source's bytes are the target's from `offset` on, and so are its readers.

        O(readers).
        """
        for table in (self.running, self._begun):
            for key in [key for key in table if key[0] == source_id]:
                reader = table.pop(key)
                reader.segment_id = target_id
                reader.position += offset
                reader.ahead_end += offset
                self._put(reader)

    def _put(self, reader: SequentialReader) -> SequentialReader:
        key = (reader.segment_id, reader.position)
        other = self.running.pop(key, None) or self._begun.pop(key, None)
        if other is not None and other is not reader:
            reader = self._join(reader, other)
        table = self.running if reader.sequential else self._begun
        table[key] = reader
        if len(table) > READERS_MAX:
            self._end(table.popitem(last=False)[1])
        return reader

    @staticmethod
    def _join(one: SequentialReader, other: SequentialReader) -> SequentialReader:
        kept, left = (one, other) if one.window > other.window else (other, one)
        for extent in left.release_all():
            kept.hold(extent)
        kept.sequential = one.sequential or other.sequential
        left.sequential = False
        kept.ahead_end = max(one.ahead_end, other.ahead_end)
        kept.continued = one.continued or other.continued
        kept.advanced_s = max(one.advanced_s, other.advanced_s)
        return kept

    def _end(self, reader: SequentialReader) -> None:
        reader.sequential = False
        self._on_ended(reader)

    def check(self) -> None:
        """Assert the rules of this module. O(readers)."""
        assert len(self.running) <= READERS_MAX
        assert len(self._begun) <= READERS_MAX
        for table in (self.running, self._begun):
            for key, reader in table.items():
                assert key == (reader.segment_id, reader.position), reader
                assert reader.sequential == (table is self.running), reader
                assert reader.sequential or not (reader.window or reader.held), reader
                assert reader.ahead_end >= reader.position, reader
