"""Commands by which a connection begins, and by which events are appended.

Fields are in the order of the wire. A default is what the wire means by a missing field.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer

NOT_SET: Final = -(2**63)
"""No event yet, as a number of an event; no value, as a value of an attribute."""
NO_REQUEST_ID: Final = -1
NO_OFFSET: Final = -1
EVENT_HEADER_BYTES: Final = 8
"""What is before each event in a segment: 4 zero bytes, and the length of the event."""


class Hello(NamedTuple):
    """The first command in each direction: the versions that the sender understands.

    `extension` is the version of our own commands that it understands, 0 for none. A server
    announces it only to a client that did.
    """

    high_version: int
    low_version: int
    extension: int = 0


class KeepAlive(NamedTuple):
    """Echoed by the server. It has no fields, so it is an empty tuple and false as a bool."""


class Padding(NamedTuple):
    """Zero bytes: the end of an append block that was not filled."""

    length: int


class PartialEvent(NamedTuple):
    """The first bytes of an event that did not fit into its append block."""

    data: Buffer


class SetupAppend(NamedTuple):
    """Begin to append to a segment as a writer."""

    request_id: int
    writer_id: bytes
    segment: str
    token: str


class AppendSetup(NamedTuple):
    """The reply: the last event of the writer that the segment has, NOT_SET without."""

    request_id: int
    segment: str
    writer_id: bytes
    last_event_number: int


class AppendBlock(NamedTuple):
    """Events; the next command is the AppendBlockEnd of the same writer."""

    writer_id: bytes
    data: Buffer


class AppendBlockEnd(NamedTuple):
    """The end of a block and of the append.

    `whole_bytes` is how many bytes of the block before it are whole events. `data` is what is left
    of the last event, or all events if there is no block.
    """

    writer_id: bytes
    whole_bytes: int
    data: Buffer
    event_count: int
    last_event_number: int
    request_id: int = NO_REQUEST_ID


class ConditionalAppend(NamedTuple):
    """One event, if the segment ends at `expected_offset`.

    `data` is the event as it is stored, with its header of EVENT_HEADER_BYTES.
    """

    writer_id: bytes
    event_number: int
    expected_offset: int
    data: Buffer
    request_id: int = NO_REQUEST_ID


class ConditionalBlockEnd(NamedTuple):
    """Bytes, if the segment ends at `expected_offset`; they are stored as they are."""

    writer_id: bytes
    event_number: int
    expected_offset: int
    data: Buffer
    request_id: int


class DataAppended(NamedTuple):
    """All events up to `event_number` are durable; those up to the previous one were before."""

    writer_id: bytes
    event_number: int
    previous_event_number: int = -1
    request_id: int = NO_REQUEST_ID
    length: int = -1
    """Of the segment behind the append."""


class ConditionalCheckFailed(NamedTuple):
    """The segment does not end at the expected offset; nothing was appended."""

    writer_id: bytes
    event_number: int
    request_id: int = NO_REQUEST_ID


class InvalidEventNumber(NamedTuple):
    """Another number was expected of the writer. The connection ends.

    The one failure whose request id is not the first field.
    """

    writer_id: bytes
    request_id: int
    stack: str = ""
    event_number: int = -1
