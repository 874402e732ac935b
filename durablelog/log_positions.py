"""Which operation lies where in the log: the legal truncation points, and where a rescan may begin.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right

from durablelog.durable_data_log import LogAddress

_MARKER_INTERVAL_BYTES = 1 << 20


class LogPositions:
    """Checkpoints (sequence number -> address of the frame that begins with it) and sparse markers.

    Invariant: both lists grow in sequence number and in address.
    """

    def __init__(self) -> None:
        self._checkpoints: list[tuple[int, LogAddress]] = []
        self._markers: list[tuple[int, LogAddress]] = []
        self._bytes_since_marker = _MARKER_INTERVAL_BYTES

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

    def truncation_point(self, first_needed: int | None) -> tuple[int, LogAddress] | None:
        """The newest checkpoint with everything before it in Tier 2; None if there is none behind
        the first.

        `first_needed` is the sequence number of the oldest operation not yet flushed, None if there
        is none.
        """
        index = len(self._checkpoints)
        if first_needed is not None:
            index = bisect_right(self._checkpoints, first_needed, key=_sequence_of)
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

    def scan_start(self, sequence_number: int) -> LogAddress | None:
        """Where to begin reading so as to meet the operation whole; None for the log's beginning.

        One marker earlier than the one at or below. An operation may begin frames before the one it
        ends in, and the frame a marker names may begin in the middle of an operation.
        """
        index = bisect_right(self._markers, sequence_number, key=_sequence_of) - 2
        return self._markers[index][1] if index >= 0 else None


def _sequence_of(entry: tuple[int, LogAddress]) -> int:
    return entry[0]
