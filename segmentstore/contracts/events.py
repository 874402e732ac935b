"""Length-prefixed events: how records are framed in a segment whose readers want records back
(docs/formats/events.md).

    event = length:u32, big-endian, then so many bytes

The engine itself knows only bytes; this framing is what its writers make where they are asked for
events, and what the Spark data source cuts into rows. Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import SegmentStoreError

EVENT_LENGTH = struct.Struct(">I")
"""What stands in front of each event."""
EVENT_HEADER_BYTES = EVENT_LENGTH.size
EVENT_BYTES_MAX = 2**31 - 1
"""The longest event: what a column of Spark's, and of Arrow's with 32-bit offsets, can hold."""


class EventFormatError(SegmentStoreError, ValueError):
    """Bytes are not a row of whole events.

    The caller's move: another framing, or find out who wrote the segment.

    `position` is where in the bytes the event begins that is none.
    """

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"no event at byte {position}: {detail}")
        self.position = position


def frame_event(event: Buffer) -> bytes:
    """The event with its length in front; it may be empty.

    Raises EventFormatError over EVENT_BYTES_MAX. One copy.
    """
    return _prefix(event) + bytes(event)


def frame_events(events: Iterable[Buffer]) -> bytes:
    """All events framed, one behind the other: what goes into one append to land whole.

    One copy.
    """
    parts: list[Buffer] = []
    for event in events:
        parts += (_prefix(event), event)
    return b"".join(parts)


def split_events(data: Buffer) -> list[bytes]:
    """The events in `data`, which begins and ends with whole ones. Raises EventFormatError."""
    events = []
    view, position = memoryview(data), 0
    while position < len(view):
        start = position + EVENT_HEADER_BYTES
        if start > len(view):
            raise EventFormatError(
                position, f"{len(view) - position} bytes are left, less than a length takes"
            )
        end = start + event_length(view, position)
        if end > len(view):
            raise EventFormatError(
                position, f"it has {end - start} bytes and {len(view) - start} are left"
            )
        events.append(bytes(view[start:end]))
        position = end
    return events


def event_length(data: Buffer, position: int) -> int:
    """Length of the event whose prefix stands at `position`.

    Raises EventFormatError for one that cannot be.
    """
    (length,) = EVENT_LENGTH.unpack_from(data, position)
    if length > EVENT_BYTES_MAX:
        raise EventFormatError(position, f"a length of {length}; the most is {EVENT_BYTES_MAX}")
    return int(length)


def _prefix(event: Buffer) -> bytes:
    if len(event) > EVENT_BYTES_MAX:
        raise EventFormatError(0, f"an event of {len(event)} bytes; the most is {EVENT_BYTES_MAX}")
    return EVENT_LENGTH.pack(len(event))
