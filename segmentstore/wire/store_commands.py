"""Commands of our own: what a segment store offers and Pravega's protocol has no command for.

Sent only behind a Hello that announced them in both directions. Fields are in the order of the
wire. Each request has the id that its reply repeats. A command that fails is answered by
RequestRefused, whatever it is. The format's page: docs/formats/store-commands.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.store_hosts import StoreHost
from segmentstore.wire.segment_commands import ConditionalAttributeUpdate

EXTENSION_VERSION: Final = 1
"""Of these commands, as a Hello announces it."""
ANY_SEGMENT: Final = -1
"""As the id of a segment: whichever has the name."""
NO_LIMIT: Final = -1
"""As an offset: no condition. As the time of a read: it does not wait."""
DUPLICATE: Final = -1
"""As the offset of an event: the segment has it already."""
SEAL: Final = 1
TRUNCATE: Final = 2
DELETE: Final = 3
FLUSH: Final = 4

Updates = tuple[ConditionalAttributeUpdate, ...]


class DescribeStore(NamedTuple):
    """Ask which store it is. Answered by StoreDescribed."""

    request_id: int


class StoreDescribed(NamedTuple):
    """The store's id and bounds. `served`: the containers that this process has, ascending."""

    request_id: int
    store_id: str
    append_bytes_max: int
    containers: int
    served: tuple[int, ...]


class AppendBytes(NamedTuple):
    """Append `data` as one, if all conditions hold. Answered by NumbersGiven: the offset."""

    request_id: int
    expected_offset: int
    segment: str
    updates: Updates
    data: Buffer


class OpenWriter(NamedTuple):
    """Begin the exactly-once appends of a writer. Answered by NumbersGiven: its last event, -1
    for none.

    The request id names the writer from then on, for as long as the connection lasts.
    """

    request_id: int
    segment: str
    writer_id: bytes


class EventToAppend(NamedTuple):
    """An event of AppendEvents."""

    number: int
    data: Buffer


class AppendEvents(NamedTuple):
    """Append events, each by itself. Answered by NumbersGiven: an offset for each, or DUPLICATE.

    If one is refused, NumbersGiven has those before it, and RequestRefused follows. So will every
    later one of the writer be.
    """

    request_id: int
    writer: int
    events: tuple[EventToAppend, ...]


class CloseWriter(NamedTuple):
    """Forget a writer. Not answered."""

    writer: int


class ReadBytes(NamedTuple):
    """At most `length_max` bytes; at the tail, wait for some. Answered by BytesGiven.

    `segment_id`: only if the segment has this id. `wait_ms`: NO_LIMIT, or how long.
    """

    request_id: int
    segment_id: int
    offset: int
    length_max: int
    wait_ms: int
    segment: str


class CancelRead(NamedTuple):
    """The client waits no more for a ReadBytes. Neither this nor the read needs a reply."""

    request_id: int


class DescribeSegment(NamedTuple):
    """Ask for a segment's properties. Answered by SegmentsGiven."""

    request_id: int
    segment: str


class ListSegments(NamedTuple):
    """Ask for the segments whose names begin with `prefix` and are above `after`, by name.

    Answered by SegmentsGiven: some of them at the beginning.
    """

    request_id: int
    prefix: str
    after: str


class MakeSegment(NamedTuple):
    """Create a segment with attributes. Answered by SegmentsGiven."""

    request_id: int
    segment: str
    updates: Updates


class ChangeSegment(NamedTuple):
    """SEAL, TRUNCATE, DELETE or FLUSH a segment.

    Answered by NumbersGiven: of SEAL the length.
    """

    request_id: int
    change: int
    offset: int
    segment: str


class MergeSegment(NamedTuple):
    """Merge a source into a target, with updates of the target's attributes.

    Answered by NumbersGiven: the offset of the source's bytes, and the length behind them.
    """

    request_id: int
    target: str
    source: str
    updates: Updates


class MergeSegmentList(NamedTuple):
    """Merge several sources. Answered by NumbersGiven: the length behind each."""

    request_id: int
    target: str
    sources: tuple[str, ...]


class UpdateAttributes(NamedTuple):
    """Update attributes of a segment, all or none. Answered by NumbersGiven: none."""

    request_id: int
    segment: str
    updates: Updates


class ReadAttributes(NamedTuple):
    """Ask for some attributes of a segment. Answered by AttributesGiven: those with a value."""

    request_id: int
    segment: str
    ids: tuple[bytes, ...]


class ListAttributes(NamedTuple):
    """Ask for the attributes from an id to another, both included. Answered by AttributesGiven.

    `segment_id`: only if the segment has this id.
    """

    request_id: int
    segment_id: int
    from_id: bytes
    to_id: bytes
    segment: str


class ManageStore(NamedTuple):
    """Have something done with the store as a whole. Answered by BytesGiven: JSON or text.

    The page of the format has the actions.
    """

    request_id: int
    action: str


class BeginListing(NamedTuple):
    """Begin a listing of the store, and ask for its first part. Answered by RowsGiven.

    The request id names the listing from then on, until its last part. `segment`: only of this one,
    where a listing is of segments; empty: of all. The page of the format has the listings.
    """

    request_id: int
    listing: str
    segment: str


class ContinueListing(NamedTuple):
    """Ask for the next part of a listing. Answered by RowsGiven."""

    request_id: int
    listing: int


class CloseListing(NamedTuple):
    """Forget a listing that has not ended. Not answered."""

    listing: int


class NumbersGiven(NamedTuple):
    """Done, durably."""

    request_id: int
    numbers: tuple[int, ...]


class BytesGiven(NamedTuple):
    """Bytes of a segment, or a document."""

    request_id: int
    data: Buffer


class SegmentEntry(NamedTuple):
    """A segment's properties."""

    name: str
    segment_id: int
    start_offset: int
    length: int
    storage_length: int
    created_ms: int
    last_modified_ms: int
    container_id: int
    sealed: bool
    sealed_in_storage: bool


class SegmentsGiven(NamedTuple):
    """Segments. `more`: ask again for those above the last one."""

    request_id: int
    more: bool
    segments: tuple[SegmentEntry, ...]


class AttributeEntry(NamedTuple):
    """An attribute."""

    id: bytes
    value: int


class AttributesGiven(NamedTuple):
    """Attributes by id. `more`: there may be some above the last one."""

    request_id: int
    more: bool
    attributes: tuple[AttributeEntry, ...]


class RowsGiven(NamedTuple):
    """Rows of a listing, as JSON. `more`: there may be some behind them."""

    request_id: int
    more: bool
    rows: Buffer


class DescribeHosts(NamedTuple):
    """Ask which process serves which container. Answered by HostsDescribed."""

    request_id: int


class HostsDescribed(NamedTuple):
    """The store's id and bounds, and the hosts of its containers, as far as the process knows.

    `epoch`: of the assignment map, 0 outside a cluster.
    """

    request_id: int
    store_id: str
    append_bytes_max: int
    containers: int
    epoch: int
    hosts: tuple[StoreHost, ...]


class ConnectionClosing(NamedTuple):
    """The last that a server says before it closes in order: what it has not answered, it has not
    begun, but for reads. Answers no request.
    """


class RequestRefused(NamedTuple):
    """The request failed: the name of an error's class, and the error as JSON."""

    request_id: int
    error: str
    detail: Buffer


StoreRequest = (
    DescribeStore
    | AppendBytes
    | OpenWriter
    | AppendEvents
    | CloseWriter
    | ReadBytes
    | CancelRead
    | DescribeSegment
    | ListSegments
    | MakeSegment
    | ChangeSegment
    | MergeSegment
    | MergeSegmentList
    | UpdateAttributes
    | ReadAttributes
    | ListAttributes
    | ManageStore
    | BeginListing
    | ContinueListing
    | CloseListing
    | DescribeHosts
)
"""What a server accepts besides Pravega's requests."""
StoreReply = (
    StoreDescribed
    | NumbersGiven
    | BytesGiven
    | SegmentsGiven
    | AttributesGiven
    | RequestRefused
    | RowsGiven
    | HostsDescribed
    | ConnectionClosing
)
"""What a client accepts besides Pravega's replies."""
