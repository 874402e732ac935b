"""Which operation lies where in the log: the legal truncation points, where a rescan may begin, and
what operations a part of the log has.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from durablelog.append_frames import LoggedAppends
from durablelog.durable_data_log import LogAddress

_MARKER_INTERVAL_BYTES = 1 << 20
_timestamp_of: Final = attrgetter("timestamp_ms")


class PartOperations:
    """The operations that end in one part of the log."""

    __slots__ = ("first_ms", "first_sequence", "last_ms", "last_sequence")

    def __init__(self, sequence_number: int, timestamp_ms: int) -> None:
        self.first_sequence = self.last_sequence = sequence_number
        self.first_ms = self.last_ms = timestamp_ms
        """Of the first of them, and the highest."""


def _ignore() -> None:
    """Stands for a listener that is not set."""


class LogPositions:
    """Checkpoints (sequence number -> address of the frame that begins with it) and sparse markers.

    Invariant: both lists grow in sequence number and in address.
    """

    on_part: Callable[[], None] = staticmethod(_ignore)
    """Called with the first operation that ends in another part: the ones before are full."""

    def __init__(self, part_of: Callable[[LogAddress], int] = lambda _: 0) -> None:
        """`part_of` is the log's; without it all is in one part."""
        self._part_of = part_of
        self._checkpoints: list[tuple[int, LogAddress]] = []
        self._markers: list[tuple[int, LogAddress]] = []
        self._bytes_since_marker = _MARKER_INTERVAL_BYTES
        self._parts: dict[int, PartOperations] = {}
        """By number; of those that have an operation."""
        self._begun: dict[int, int] = {}
        """Number of a part -> sequence number of the newest checkpoint that begins in it."""
        self.begin: LogAddress | None = None
        """Of the first checkpoint that was met: operations that end before it are not known."""

    def add_checkpoint(self, sequence_number: int, address: LogAddress) -> None:
        """A checkpoint has been committed, or met in replay; `address` is of the frame it
        begins.
        """
        assert not self._checkpoints or self._checkpoints[-1][0] < sequence_number
        self._checkpoints.append((sequence_number, address))

    def add_frame(self, sequence_number: int, address: LogAddress, length: int) -> None:
        """A frame whose first *ended* operation is `sequence_number`; kept once per MiB of log."""
        self._bytes_since_marker += length
        if self._bytes_since_marker >= _MARKER_INTERVAL_BYTES:
            self._bytes_since_marker = 0
            self._markers.append((sequence_number, address))

    def add_operations(
        self, address: LogAddress, first: tuple[int, int], last: tuple[int, int]
    ) -> None:
        """Operations end in the frame at `address`: sequence number and time stamp of the first and
        of the last of them.
        """
        number = self._part_of(address)
        part = self._parts.get(number)
        if part is None:
            part = self._parts[number] = PartOperations(*first)
            self.on_part()
        part.last_sequence = last[0]
        part.last_ms = max(part.last_ms, first[1], last[1])

    def note_checkpoint(self, sequence_number: int, address: LogAddress) -> None:
        """A checkpoint of either kind begins in the frame at `address`, whether the log may be
        truncated to it or not. It may be all that the part has.
        """
        self._begun[self._part_of(address)] = sequence_number
        if self.begin is None:
            self.begin = address

    def operations_of(self, part_number: int) -> PartOperations | None:
        """What ends in a part of the log; None if nothing does."""
        return self._parts.get(part_number)

    def checkpoint_in(self, part_number: int) -> int:
        """Sequence number of the newest checkpoint that begins in a part; 0 if there is none."""
        return self._begun.get(part_number, 0)

    def truncation_point(
        self, first_needed: int | None, below: LogAddress | None = None
    ) -> tuple[int, LogAddress] | None:
        """The newest checkpoint with everything before it in Tier 2; None if there is none behind
        the first.

        `first_needed` is the sequence number of the oldest operation not yet flushed, None if there
        is none. Its address is lower than `below`, if that is given.
        """
        index = len(self._checkpoints)
        if first_needed is not None:
            index = bisect_right(self._checkpoints, first_needed, key=_sequence_of)
        if below is not None:
            index = min(index, bisect_left(self._checkpoints, below, key=_address_of))
        return self._checkpoints[index - 1] if index > 1 else None

    def newer_would_free(self, first_needed: int | None) -> bool:
        """Whether a checkpoint written now would be a truncation point behind the newest there
        is.
        """
        return (
            first_needed is None or not self._checkpoints or first_needed > self._checkpoints[-1][0]
        )

    def truncated(self, sequence_number: int) -> None:
        """The log now begins with the checkpoint of this sequence number."""
        self._checkpoints = [entry for entry in self._checkpoints if entry[0] >= sequence_number]
        first = self._checkpoints[0][1]
        self._markers = [entry for entry in self._markers if entry[1] >= first]
        begin = self._part_of(first)
        for known in (self._parts, self._begun):
            for number in [each for each in known if each < begin]:
                del known[number]

    def scan_start(self, sequence_number: int) -> LogAddress | None:
        """Where to begin reading so as to meet the operation whole; None for the log's beginning.

        One marker earlier than the one at or below. An operation may begin frames before the one it
        ends in, and the frame a marker names may begin in the middle of an operation.
        """
        index = bisect_right(self._markers, sequence_number, key=_sequence_of) - 2
        return self._markers[index][1] if index >= 0 else None


class ReplayedPlaces:
    """Says of replayed operations where they lie: once for all that end in one frame."""

    __slots__ = ("_address", "_bytes", "_first", "_last_ms", "_last_sequence", "_positions")

    def __init__(self, positions: LogPositions) -> None:
        self._positions = positions
        self._address: LogAddress | None = None
        """Of the frame; None while nothing is to be said."""
        self._bytes = 0
        self._first = (0, 0)
        """Sequence number and time stamp."""
        self._last_sequence = self._last_ms = 0
        """Of the last one; the highest of all."""

    def add(self, sequence_number: int, timestamp_ms: int, address: LogAddress, size: int) -> None:
        """One operation of so many bytes ends in the frame at `address`. < 0.3 us."""
        if address != self._address:
            self.end_frame()
            self._address, self._bytes = address, 0
            self._first, self._last_ms = (sequence_number, timestamp_ms), timestamp_ms
        self._bytes += size
        self._last_sequence = sequence_number
        if timestamp_ms != self._last_ms:
            self._last_ms = max(self._last_ms, timestamp_ms)

    def add_appends(self, part: LoggedAppends) -> None:
        """The same of appends that end in one frame."""
        first, last = part.appends[0], part.appends[-1]
        self.add(first.sequence_number, first.timestamp_ms, part.address, part.length)
        if first is not last:
            latest_ms = max(map(_timestamp_of, part.appends))
            self.add(last.sequence_number, latest_ms, part.address, 0)

    def end_frame(self) -> None:
        """Say what was added; more of the same frame may follow."""
        address, self._address = self._address, None
        if address is not None:
            self._positions.add_frame(self._first[0], address, self._bytes)
            last = (self._last_sequence, self._last_ms)
            self._positions.add_operations(address, self._first, last)


def _sequence_of(entry: tuple[int, LogAddress]) -> int:
    return entry[0]


def _address_of(entry: tuple[int, LogAddress]) -> LogAddress:
    return entry[1]
