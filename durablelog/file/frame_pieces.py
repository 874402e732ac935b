"""Reads frames from a log file, a large piece at a time, and looks for frames behind a damaged place.

Blocking; knows frames and files, not what a sequence of them means (log_scanner.py knows).
"""

from __future__ import annotations

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
from segmentstore.contracts.disk import DiskFile
from segmentstore.contracts.errors import ConfigError

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes read at once. A frame's payload is a view into its piece."""


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
    ended: bool
    """Nothing more is there: end of the file, or zeros."""
    fault: str | None
    """Something is there, and it is not a whole frame."""
    damaged: FrameHeader | None
    """The header at the fault, if that much was whole."""


def read_piece(
    file: DiskFile, path: str, position: int, piece_bytes: int = PIECE_BYTES, end_sequence: int | None = None
) -> FramePiece:
    """The frames from `position` on, at least one if a whole one is there; up to `end_sequence`, exclusive.

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
            return FramePiece(frames, position + at, ended=False, fault=None, damaged=None)
        try:
            header = parse_header(data, at)
        except FrameVersionError as error:
            raise ConfigError("log format", f"{path} offset {position + at}: {error.reason}") from error
        except FrameFormatError as error:
            return FramePiece(frames, position + at, ended=False, fault=error.reason, damaged=None)
        if header is None:
            return FramePiece(frames, position + at, ended=True, fault=None, damaged=None)
        end = at + header.header_length + header.payload_length
        if frames and more and end > len(data):
            return FramePiece(frames, position + at, ended=False, fault=None, damaged=None)
        payload = data[at + header.header_length : end]
        fault = payload_fault(header, payload)
        if fault is not None:
            return FramePiece(frames, position + at, ended=False, fault=fault, damaged=header)
        frames.append(PlacedFrame(position + at, header, payload))
        at = end
        if header.sequence + 1 == end_sequence:
            return FramePiece(frames, position + at, ended=True, fault=None, damaged=None)


def _missing(data: memoryview) -> int:
    """0 if `data` holds all of the frame it begins with (or plainly no frame), else how many bytes that takes."""
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


def find_frames(file: DiskFile, position: int, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, FrameHeader]]:
    """(position, header) of every whole header from `position` to the end of the file, wherever it begins.

    Payloads are not checked, and are skipped: a header found inside another frame's payload is not given.
    """
    size = file.size()
    while position < size:
        raw = file.pread(position, piece_bytes)
        at = 0
        while (found := raw.find(FRAME_MAGIC, at)) >= 0:
            place = position + found
            near = raw[found : found + HEADER_BYTES_MAX]
            header = _whole_header(near if len(near) == HEADER_BYTES_MAX else file.pread(place, HEADER_BYTES_MAX))
            if header is None:
                at = found + 1
            else:
                yield place, header
                at = found + header.frame_length
        # The magic may lie across the edge of two pieces.
        position += max(at, len(raw) - len(FRAME_MAGIC) + 1, 1)


def _whole_header(data: bytes) -> FrameHeader | None:
    try:
        return parse_header(memoryview(data), 0)
    except FrameFormatError:
        return None
