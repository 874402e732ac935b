"""Reading of the frames of one sealed log file as entries, whatever the truncation point is.

Blocking, one step at a time, on an executor for it alone. Where frames begin is known for those
that were passed already; a file is read from the nearest of them on.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from durablelog.file.frame_pieces import read_piece
from durablelog.file.log_layout import FILE_HEADER_LENGTH
from segmentstore.contracts.disk import Disk, DiskFile
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerEntry

PIECE_BYTES: Final = 256 * 1024
"""Read at once, or one frame that is larger: what a batch of entries takes in memory."""


class SealedFile(NamedTuple):
    """A file of a log that takes no more frames: [begin_sequence, end_sequence)."""

    container_id: int
    number: int
    path: str
    epoch: int
    begin_sequence: int
    end_sequence: int
    end_position: int

    @property
    def entries(self) -> int:
        """How many frames it has."""
        return self.end_sequence - self.begin_sequence

    @property
    def length(self) -> int:
        """Bytes of these frames."""
        return self.end_position - FILE_HEADER_LENGTH


class FramePlaces:
    """Where some of the frames of one file begin: shared by all of its readings."""

    def __init__(self) -> None:
        self._entries = [0]
        self._positions = [FILE_HEADER_LENGTH]

    def before(self, entry: int) -> tuple[int, int]:
        """The last known entry at or before this one, and its position."""
        place = bisect_right(self._entries, entry) - 1
        return self._entries[place], self._positions[place]

    def note(self, entry: int, position: int) -> None:
        """One more, which is kept if it lies behind all that are known."""
        if position >= self._positions[-1] + PIECE_BYTES // 2:
            self._entries.append(entry)
            self._positions.append(position)


class PartReading:
    """Entries `first` to `last` of a file. `step` until it gives None; `close` in any case."""

    def __init__(
        self, disk: Disk, file: SealedFile, places: FramePlaces, first: int, last: int
    ) -> None:
        self._disk = disk
        self._file = file
        self._places = places
        self._first = first
        self._last = last
        self._entry, self._position = places.before(first)
        self._opened: DiskFile | None = None

    def step(self) -> list[LedgerEntry] | None:
        """The next entries, none while the first one is searched for; None at the end.

        Raises DataCorruptionError, ConfigError, OSError.
        """
        if self._entry > self._last:
            return None
        if self._opened is None:
            self._opened = self._disk.open(self._file.path)
        return self._read(self._opened)

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._opened = self._opened, None
        if file is not None:
            file.close()

    def _read(self, opened: DiskFile) -> list[LedgerEntry]:
        """Of the next piece, those that were asked for."""
        file, start = self._file, self._position
        piece = read_piece(
            opened,
            file.path,
            start,
            PIECE_BYTES,
            end_sequence=file.begin_sequence + self._last + 1,
        )
        entries: list[LedgerEntry] = []
        for frame in piece.frames:
            header = frame.header
            expected = file.begin_sequence + self._entry
            if (header.sequence, header.container_id) != (expected, file.container_id):
                detail = f"frame {header.sequence} of container {header.container_id} lies there"
                raise self._error(frame.position, detail)
            if self._entry >= self._first:
                data = piece.data[frame.position - start : frame.end_position - start]
                entries.append(LedgerEntry(self._entry, data))
            self._entry += 1
        if not piece.frames:
            raise self._error(piece.next_position, piece.fault or "nothing is there")
        self._position = piece.next_position
        self._places.note(self._entry, self._position)
        return entries

    def _error(self, position: int, detail: str) -> DataCorruptionError:
        sequence = self._file.begin_sequence + self._entry
        return DataCorruptionError(f"{self._file.path} offset {position} frame {sequence}", detail)
