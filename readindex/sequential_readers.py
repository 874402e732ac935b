"""SequentialReaders: who reads on where another read ended, and how far ahead of them it pays to
fetch (pure).

A read carries no name of its reader, so a reader is known by its place: every read of fetched bytes
leaves the place where it ended, and the read that begins exactly there is the next of the same
stream. Rules:

- a stream is *sequential* once a read that continues it finds nothing fetched, or once it has read
  two pieces; only then it has a window. A read at a place of its own costs nothing but its entry
  here, which the next ones push out;
- the window begins at one piece and doubles with each piece read, up to `read_ahead_bytes_max`;
- what a stream holds (fetched and not wholly read yet) lies between its position and the end of its
  window, and is never more than its share: sequential streams share three quarters of
  `fetched_bytes_max` equally;
- two streams that come to the same place are one from there on;
- a stream that is let go of (idle, pushed out) is never sequential again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, SequentialReader

STREAMS_MAX = 256
"""Sequential streams, and as many places where one may begin, over all segments."""
_READ_UNITS_TO_TRUST = 2


class SequentialReaders:
    """The streams of one container.

    `on_ended(reader)` is called for each that ends while it may hold something.
    """

    def __init__(
        self, config: ReadIndexConfig, on_ended: Callable[[SequentialReader], None]
    ) -> None:
        self._config = config
        self._on_ended = on_ended
        self.running: OrderedDict[tuple[int, int], SequentialReader] = OrderedDict()
        """Sequential streams by segment and position, the one that has waited longest first."""
        self._begun: OrderedDict[tuple[int, int], SequentialReader] = OrderedDict()

    @property
    def share(self) -> int:
        """What each sequential stream may have ahead of it, in bytes."""
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
        stream = self.running.pop(key, None)
        if stream is None:
            stream = self._begun.pop(key, None)
            if stream is None:
                return self._put(self._begin(segment_id, offset, end_offset, now_s))
            stream.continued = True
            if missed or stream.run_bytes >= _READ_UNITS_TO_TRUST * piece_bytes:
                stream.sequential = True
                stream.window = min(piece_bytes, self._config.read_ahead_bytes_max)
                stream.run_bytes = 0
        elif stream.run_bytes >= piece_bytes:
            stream.window = min(2 * stream.window, self._config.read_ahead_bytes_max)
            stream.run_bytes = 0
        stream.run_bytes += end_offset - offset
        stream.position = end_offset
        stream.ahead_end = end_offset if missed else max(stream.ahead_end, end_offset)
        stream.advanced_s = now_s
        return self._put(stream)

    @staticmethod
    def _begin(segment_id: int, offset: int, end_offset: int, now_s: float) -> SequentialReader:
        stream = SequentialReader(segment_id)
        stream.position = stream.ahead_end = end_offset
        stream.run_bytes = end_offset - offset
        stream.advanced_s = now_s
        return stream

    def next_reader(self, extent: Extent, past: SequentialReader) -> SequentialReader | None:
        """A sequential stream other than `past` that counts on the extent. O(streams)."""
        for stream in self.running.values():
            if (
                stream.segment_id == extent.segment_id
                and stream is not past
                and stream.position < extent.end_offset
                and extent.start_offset < stream.ahead_end
            ):
                return stream
        return None

    def idle_before(self, time_s: float) -> None:
        """Let go of the sequential streams that have not come on since `time_s`."""
        while self.running:
            key, stream = next(iter(self.running.items()))
            if stream.advanced_s > time_s:
                return
            del self.running[key]
            self._end(stream)

    def move(self, source_id: int, target_id: int, offset: int) -> None:
        """The source's bytes are the target's from `offset` on, and so are its readers.

        O(streams).
        """
        for table in (self.running, self._begun):
            for key in [key for key in table if key[0] == source_id]:
                stream = table.pop(key)
                stream.segment_id = target_id
                stream.position += offset
                stream.ahead_end += offset
                self._put(stream)

    def _put(self, stream: SequentialReader) -> SequentialReader:
        key = (stream.segment_id, stream.position)
        other = self.running.pop(key, None) or self._begun.pop(key, None)
        if other is not None and other is not stream:
            stream = self._join(stream, other)
        table = self.running if stream.sequential else self._begun
        table[key] = stream
        if len(table) > STREAMS_MAX:
            self._end(table.popitem(last=False)[1])
        return stream

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

    def _end(self, stream: SequentialReader) -> None:
        stream.sequential = False
        self._on_ended(stream)

    def check(self) -> None:
        """Assert the rules of this module. O(streams)."""
        assert len(self.running) <= STREAMS_MAX
        assert len(self._begun) <= STREAMS_MAX
        for table in (self.running, self._begun):
            for key, stream in table.items():
                assert key == (stream.segment_id, stream.position), stream
                assert stream.sequential == (table is self.running), stream
                assert stream.sequential or not (stream.window or stream.held), stream
                assert stream.ahead_end >= stream.position, stream
