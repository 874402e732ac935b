"""Appends from their parts: an AppendBlock and its AppendBlockEnd, or the latter alone.

Pravega's Java client opens a block of a size that it guesses, and closes it when it is full, after
a time, or before any other command. What does not fit is in the AppendBlockEnd. What was not filled
is a Padding inside of the block; of an event that fits in part, that part is a PartialEvent inside
of the block. docs/formats/wire.md#append-blocks has the cases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.codec import HEADER, decode
from segmentstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    Padding,
    PartialEvent,
)
from segmentstore.wire.errors import WireError

_HEADER_BYTES: Final = HEADER.size


class Append(NamedTuple):
    """Whole events of a writer, to be stored as one.

    `data` are views of the frames they came in, in order, none empty.
    """

    writer_id: bytes
    data: tuple[Buffer, ...]
    event_count: int
    last_event_number: int
    request_id: int


class AppendBlocks:
    """The blocks of one connection. Holds at most one."""

    __slots__ = ("_block",)

    def __init__(self) -> None:
        self._block: AppendBlock | None = None

    def accept(self, command: Command) -> Command | Append | None:
        """What to execute: an Append for its last part, any other command as it is; None if more
        is to come, or for a Padding.

        Raises WireError if the command may not follow the one before it: close the connection.
        """
        if type(command) is AppendBlockEnd:
            block, self._block = self._block, None
            return _append(block, command)
        if self._block is not None:
            raise WireError(f"{type(command).__name__} follows an AppendBlock")
        if type(command) is AppendBlock:
            self._block = command
            return None
        return None if type(command) is Padding else command


def _append(block: AppendBlock | None, end: AppendBlockEnd) -> Append:
    writer_id, _, data, event_count, last_event_number, request_id = end
    if event_count <= 0:
        raise WireError(f"an append of {event_count} events")
    parts: tuple[Buffer, ...] = (data,) if len(data) else ()
    if block is not None:
        if block.writer_id != writer_id:
            raise WireError("the AppendBlockEnd of another writer follows an AppendBlock")
        parts = _in_block(memoryview(block.data), end.whole_bytes, len(data)) + parts
    return Append(writer_id, parts, event_count, last_event_number, request_id)


def _in_block(block: memoryview, whole: int, left: int) -> tuple[Buffer, ...]:
    """What of an append is in its block: whole events, and the beginning of the last one, of which
    `left` bytes follow.
    """
    if not 0 <= whole <= len(block):
        raise WireError(f"{whole} bytes of whole events in an AppendBlock of {len(block)}")
    parts = (block[:whole],) if whole else ()
    if whole < len(block):
        nested = _nested(block[whole:])
        if isinstance(nested, PartialEvent):
            return (*parts, nested.data) if len(nested.data) else parts
    if left:
        raise WireError(f"{left} bytes of an event of which the AppendBlock has no beginning")
    return parts


def _nested(tail: memoryview) -> PartialEvent | Padding:
    """The one frame that an AppendBlock has behind its whole events."""
    if len(tail) < _HEADER_BYTES:
        raise WireError(f"{len(tail)} bytes behind the whole events of an AppendBlock")
    type_id, length = HEADER.unpack_from(tail)
    if length != len(tail) - _HEADER_BYTES:
        raise WireError(
            f"a frame of {length} bytes in an AppendBlock with {len(tail) - _HEADER_BYTES}"
        )
    nested = decode(type_id, tail[_HEADER_BYTES:])
    if isinstance(nested, PartialEvent | Padding):
        return nested
    raise WireError(f"{type(nested).__name__} in an AppendBlock")
