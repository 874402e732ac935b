"""Reads frames from a log file, a large piece at a time, and searches for frames behind a damaged
place.

Blocking; knows frames and files, not what a sequence of them means (log_scanner.py knows).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from durablelog.data_frame import (
    FRAME_HEADER_LENGTH,
    FRAME_MAGIC,
    HEADER_BYTES_MAX,
    FrameFormatError,
    FrameHeader,
    FrameVersionError,
    header_length_at,
    parse_header,
    payload_fault,
)
from durablelog.file.log_layout import FileHeader, is_leftover
from segmentstore.contracts.disk import DiskFile
from segmentstore.contracts.errors import ConfigError

PIECE_BYTES = 1024 * 1024
"""Bytes read at once. A frame's payload is a view into its piece.

The processor's cache holds it: 4 MiB are read at a third of the speed.
"""
_ZEROS = bytes(PIECE_BYTES)

_DURABLE_THROUGH = struct.Struct(">28xQ")
"""The one field of a frame header that `find_frames` checks before it takes the trouble of
checking it.
"""


class PlacedFrame(NamedTuple):
    """A whole frame and where it lies in its file."""

    position: int
    header: FrameHeader
    payload: memoryview

    @property
    def end_position(self) -> int:
        """Where the next frame begins."""
        return self.position + self.header.frame_length


class FramePiece(NamedTuple):
    """What one reading found: frames back to back, then the reason why it stopped."""

    frames: list[PlacedFrame]
    next_position: int
    """Where to go on, or where the fault or the end is."""
    data: memoryview
    """What was read: the frames' bytes, and maybe more."""
    ended: bool = False
    """Nothing more is there: end of the file, or zeros, or what lay in the file before."""
    fault: str | None = None
    """Something is there, and it is not a whole frame."""
    damaged: FrameHeader | None = None
    """The header at the fault, if that much was whole."""


def read_piece(
    file: DiskFile,
    path: str,
    position: int,
    piece_bytes: int = PIECE_BYTES,
    *,
    end_sequence: int | None = None,
    file_header: FileHeader | None = None,
) -> FramePiece:
    """The frames from `position` on, at least one if a whole one is there; up to `end_sequence`,
    exclusive.

    With `file_header` they end before a leftover (log_layout.py), as they would before zeros.
    Raises ConfigError for a frame of a newer format version, OSError.
    """
    data = memoryview(file.pread(position, piece_bytes))
    if (missing := _missing(data)) and len(data) == piece_bytes:
        data = memoryview(file.pread(position, missing))
        piece_bytes = missing
    more = len(data) == piece_bytes
    frames: list[PlacedFrame] = []
    at = 0
    while True:
        if frames and more and len(data) - at < HEADER_BYTES_MAX:
            return FramePiece(frames, position + at, data)
        try:
            header = parse_header(data, at)
        except FrameVersionError as error:
            raise ConfigError(
                "log format", f"{path} offset {position + at}: {error.reason}"
            ) from error
        except FrameFormatError as error:
            return FramePiece(frames, position + at, data, fault=error.reason)
        if header is None or (file_header is not None and is_leftover(header, file_header)):
            return FramePiece(frames, position + at, data, ended=True)
        end = at + header.header_length + header.payload_length
        if frames and more and end > len(data):
            return FramePiece(frames, position + at, data)
        payload = data[at + header.header_length : end]
        fault = payload_fault(header, payload)
        if fault is not None:
            return FramePiece(frames, position + at, data, fault=fault, damaged=header)
        frames.append(PlacedFrame(position + at, header, payload))
        at = end
        if header.sequence + 1 == end_sequence:
            return FramePiece(frames, position + at, data, ended=True)


def _missing(data: memoryview) -> int:
    """0 if `data` holds all of the frame it begins with (or plainly no frame), else how many bytes
    that takes.
    """
    if len(data) < FRAME_HEADER_LENGTH:
        return FRAME_HEADER_LENGTH
    length = header_length_at(data, 0)
    if len(data) < length:
        return length
    try:
        header = parse_header(data, 0)
    except FrameFormatError:
        return 0
    if header is None or len(data) >= header.frame_length:
        return 0
    return header.frame_length


def find_frames(
    file: DiskFile,
    position: int,
    end: int | None = None,
    *,
    durable_from: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[tuple[int, FrameHeader]]:
    """(position, header) of every whole header that begins in [position, end), wherever; to the end
    of the file if None.

    Payloads are neither checked nor skipped: what is found may lie inside another frame
    (`frame_around`). Headers with a `durable_through` below `durable_from` are passed over at a
    fraction of the cost of checking them.
    """
    end = file.size() if end is None else end
    while position < end:
        # The magic may lie across the edge of two pieces.
        raw = file.pread(position, min(piece_bytes, end - position + len(FRAME_MAGIC) - 1))
        last = len(raw) - _DURABLE_THROUGH.size
        # A new file is zeros behind its frames: comparing takes an eighth of searching.
        found = -1 if _is_zeros(raw) else raw.find(FRAME_MAGIC)
        while 0 <= found < end - position:
            if found > last or _DURABLE_THROUGH.unpack_from(raw, found)[0] >= durable_from:
                header = _whole_header(file.pread(position + found, HEADER_BYTES_MAX))
                if header is not None:
                    yield position + found, header
            found = raw.find(FRAME_MAGIC, found + 1)
        position += max(len(raw) - len(FRAME_MAGIC) + 1, 1)


def frame_around(file: DiskFile, start: int, position: int) -> int | None:
    """End of the whole frame that begins in [start, position) and holds `position`; None if there
    is none.

    What lies inside a frame whose payload checksum holds was written as its data, and is no frame
    of the log.
    """
    size = file.size()
    for place, header in find_frames(file, start, position):
        end = place + header.frame_length
        if position < end <= size:
            payload = file.pread(place + header.header_length, header.payload_length)
            if payload_fault(header, memoryview(payload)) is None:
                return end
    return None


def _is_zeros(raw: bytes) -> bool:
    return raw == (_ZEROS if len(raw) == len(_ZEROS) else bytes(len(raw)))


def _whole_header(data: bytes) -> FrameHeader | None:
    try:
        return parse_header(memoryview(data), 0)
    except FrameFormatError:
        return None
