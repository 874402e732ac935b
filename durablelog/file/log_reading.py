"""Reading of the frames of a file log that are known to be there, in sequence or by place.

Blocking, one step at a time, on an executor of the log. Read in sequence, what lies in [first, end)
of the plan was acknowledged or found whole at opening: anything missing in it is corruption,
whatever the reason. Read by place, it is just not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durablelog.durable_data_log import LogAddress, LogFrame, LogRange
from durablelog.file.frame_pieces import PIECE_BYTES, read_piece
from durablelog.file.log_layout import make_address, split_address
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import Disk, DiskFile
from segmentstore.contracts.errors import DataCorruptionError


def read_ranges(
    disk: Disk, path_of: Callable[[int], str], ranges: Sequence[LogRange]
) -> list[bytes | None]:
    """The bytes at each place; None for what is not there whole.

    Files may go or be written over meanwhile.
    """
    found: list[bytes | None] = []
    opened: int | None = None
    file: DiskFile | None = None
    try:
        for address, length, checksum in ranges:
            number, position = split_address(LogAddress(address))
            if number != opened:
                # One at a time: a backlog may lie in more files than a process may open.
                if file is not None:
                    file.close()
                opened, file = number, None
                file = _opened(disk, path_of(number))
            found.append(_whole(file, position, length, checksum))
    finally:
        if file is not None:
            file.close()
    return found


def _opened(disk: Disk, path: str) -> DiskFile | None:
    try:
        return disk.open(path)
    except OSError:
        return None


def _whole(file: DiskFile | None, position: int, length: int, checksum: int) -> bytes | None:
    if file is None:
        return None
    try:
        data = file.pread(position, length)
    except OSError:
        return None
    return data if len(data) == length and crc32c(data) == checksum else None


@dataclass(slots=True)
class FileStretch:
    """Frames of one file to read: from `position` up to frame `end_sequence`, exclusive."""

    number: int
    path: str
    position: int
    expected: int | None
    """Sequence number of the first frame; None where a caller's address says where to begin."""
    end_sequence: int


class LogReading:
    """Reads stretches one after another. `step` until it gives None; `close` in any case."""

    def __init__(
        self,
        disk: Disk,
        container_id: int,
        stretches: Sequence[FileStretch],
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._disk = disk
        self._container_id = container_id
        self._stretches = list(reversed(stretches))
        self._piece_bytes = piece_bytes
        self._file: DiskFile | None = None

    def step(self) -> list[LogFrame] | None:
        """The next frames, at least one; None at the end.

        Raises DataCorruptionError, ConfigError, OSError.
        """
        while self._stretches:
            stretch = self._stretches[-1]
            if stretch.expected is not None and stretch.expected >= stretch.end_sequence:
                self._stretches.pop()
                self.close()
                continue
            if self._file is None:
                self._file = self._disk.open(stretch.path)
            return self._read(self._file, stretch)
        return None

    def close(self) -> None:
        """Close the current file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, file: DiskFile, stretch: FileStretch) -> list[LogFrame]:
        piece = read_piece(
            file,
            stretch.path,
            stretch.position,
            self._piece_bytes,
            end_sequence=stretch.end_sequence,
        )
        frames: list[LogFrame] = []
        for position, header, payload in piece.frames:
            expected = header.sequence if stretch.expected is None else stretch.expected
            if (header.sequence, header.container_id) != (expected, self._container_id) or (
                header.sequence >= stretch.end_sequence
            ):
                detail = f"frame {header.sequence} of container {header.container_id} lies there"
                raise self._error(stretch, position, expected, detail)
            address = make_address(stretch.number, position)
            frames.append(
                LogFrame(
                    address,
                    header.sequence,
                    header.epoch,
                    payload,
                    make_address(stretch.number, position + header.header_length),
                    header.payload_checksum,
                )
            )
            stretch.expected = expected + 1
        if not frames:
            raise self._error(
                stretch, piece.next_position, stretch.expected, piece.fault or "nothing is there"
            )
        stretch.position = piece.next_position
        return frames

    @staticmethod
    def _error(
        stretch: FileStretch, position: int, sequence: int | None, detail: str
    ) -> DataCorruptionError:
        frame = "" if sequence is None else f" frame {sequence}"
        return DataCorruptionError(f"{stretch.path} offset {position}{frame}", detail)
