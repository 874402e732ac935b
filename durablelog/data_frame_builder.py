"""Packs records into DataFrame payloads: many records in a frame, a record over several frames.

Pure. Rules of this file:

- record bytes are never copied on the way in; a finished frame of many small parts is joined once;
- a record, or a further piece of one, starts in a frame only if at least one byte of it fits behind
  its entry header; so no entry is empty;
- what comes out of `take_full` and then `seal` is in the order of the `add` calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from durablelog.data_frame import (
    ENTRY_FIRST,
    ENTRY_HEADER,
    ENTRY_HEADER_LENGTH,
    ENTRY_LAST,
    ENTRY_WHOLE,
)
from segmentstore.contracts.checksum import Buffer

PAYLOAD_BYTES_MIN: Final = 16
"""The smallest `payload_bytes_max` a builder takes."""
_PARTS_MAX: Final = 16
_SMALL: Final = 4096

_pack_entry = ENTRY_HEADER.pack


class DataFrameBuilder:
    """Builds payloads of at most `payload_bytes_max` bytes (>= 16, ValueError).

    `add` as often as there are records; ship what `take_full` gives after each; `seal` when nothing
    waits. Buffers given to `add` are referenced until their frames have been written.
    """

    __slots__ = ("_data_max", "_full", "_parts", "_used", "stretches")

    def __init__(self, payload_bytes_max: int) -> None:
        if payload_bytes_max < PAYLOAD_BYTES_MIN:
            raise ValueError(
                f"payload_bytes_max={payload_bytes_max}: it must be at least {PAYLOAD_BYTES_MIN}"
            )
        self._data_max = payload_bytes_max - ENTRY_HEADER_LENGTH
        self._parts: list[Buffer] = []
        self._used = 0
        self._full: list[list[Buffer]] = []
        self.stretches: list[tuple[int, int, int]] = []
        """Where the record lies that was added last of those over several frames: frames finished
        before the stretch since `take_full`, position in the payload, length.
        """

    @property
    def used(self) -> int:
        """Bytes of the current payload so far: where the record that was added last ends."""
        return self._used

    @property
    def room(self) -> int:
        """Bytes of data the current frame takes in one more entry; 0 when not even one."""
        return max(0, self._data_max - self._used)

    def add(self, parts: Sequence[Buffer], length: int) -> None:
        """Put one record: the concatenation of `parts` (byte buffers), `length` > 0 bytes in all.

        Under 1 us for a small record. A `length` that is not the sum of the parts is a bug of the
        caller; it raises ValueError here or when the frame is sealed.
        """
        used = self._used
        if 0 < length <= self._data_max - used:
            current = self._parts
            current.append(_pack_entry(length, ENTRY_WHOLE))
            current += parts
            self._used = used + ENTRY_HEADER_LENGTH + length
        else:
            self._add_over_frames(parts, length)

    def add_entry(self, entry: bytes, data: Buffer) -> None:
        """Put one record that fits the current frame whole: `entry` is its entry header and what
        comes before `data`.

        ValueError if it does not fit.
        """
        used = self._used + len(entry) + len(data)
        if used > self._data_max + ENTRY_HEADER_LENGTH:
            raise ValueError(f"the frame has no room for an entry of {used - self._used} bytes")
        parts = self._parts
        parts.append(entry)
        parts.append(data)
        self._used = used

    def take_full(self) -> list[list[Buffer]]:
        """Payload parts of the frames finished since the last call, in order."""
        if not self._full:
            return []
        full, self._full = self._full, []
        return full

    def seal(self) -> list[Buffer] | None:
        """End the current frame and give its parts; None if it is empty.

        Take the full ones first.
        """
        if not self._used:
            return None
        parts, used = self._parts, self._used
        self._parts, self._used = [], 0
        if sum(map(len, parts)) != used:
            raise ValueError(
                f"records of {used} bytes were announced, {sum(map(len, parts))} were given"
            )
        return _joined(parts)

    def _add_over_frames(self, parts: Sequence[Buffer], length: int) -> None:
        if length <= 0 or sum(map(len, parts)) != length:
            raise ValueError(
                f"a record of {length} bytes was announced, {sum(map(len, parts))} were given"
            )
        flags = ENTRY_FIRST
        missing = length
        source = iter(parts)
        rest = memoryview(b"")
        self.stretches = []
        while missing:
            room = self._data_max - self._used
            if room <= 0:
                self._finish_current()
                room = self._data_max
            piece = min(room, missing)
            missing -= piece
            self._parts.append(_pack_entry(piece, flags if missing else flags | ENTRY_LAST))
            self.stretches.append((len(self._full), self._used + ENTRY_HEADER_LENGTH, piece))
            self._used += ENTRY_HEADER_LENGTH + piece
            flags = 0
            while piece:
                while not rest:
                    rest = memoryview(next(source))
                taken = rest[:piece]
                self._parts.append(taken)
                rest = rest[piece:]
                piece -= len(taken)

    def _finish_current(self) -> None:
        parts = self.seal()
        if parts is not None:
            self._full.append(parts)


def _joined(parts: list[Buffer]) -> list[Buffer]:
    # A vectored write of many tiny buffers costs more than one copy; large buffers are left alone.
    if len(parts) <= _PARTS_MAX:
        return parts
    if max(map(len, parts)) < _SMALL:
        return [b"".join(parts)]
    result: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _SMALL:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(part)
    if small:
        result.append(b"".join(small))
    return result
