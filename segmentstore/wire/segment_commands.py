"""Commands about one segment, or two: reads, creation, sealing, truncation, merges, attributes.

Fields are in the order of the wire. A default is what the wire means by a missing field.
`token` is the delegation token, empty without authorization.
"""

from __future__ import annotations

from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.append_commands import NO_REQUEST_ID


class ReadSegment(NamedTuple):
    """Bytes from `offset` on, at most about `length_max`."""

    segment: str
    offset: int
    length_max: int
    token: str
    request_id: int = NO_REQUEST_ID


class SegmentRead(NamedTuple):
    """Bytes of a segment: at its tail, at the end of a sealed one, or neither."""

    segment: str
    offset: int
    at_tail: bool
    end_of_segment: bool
    data: Buffer
    request_id: int = NO_REQUEST_ID


class GetStreamSegmentInfo(NamedTuple):
    """Ask for the length and state of a segment."""

    request_id: int
    segment: str
    token: str


class StreamSegmentInfo(NamedTuple):
    """The length and state of a segment."""

    request_id: int
    segment: str
    exists: bool
    sealed: bool
    deleted: bool
    last_modified_ms: int
    length: int
    start_offset: int = 0


class CreateSegment(NamedTuple):
    """Create a segment. `scale_type`: 0 none, 1 `target_rate` in KB/s, 2 in events/s."""

    request_id: int
    segment: str
    target_rate: int
    scale_type: int
    token: str
    rollover_bytes: int = 0


class SegmentCreated(NamedTuple):
    """The segment was created; of a transient one, under this name."""

    request_id: int
    segment: str


class CreateTransientSegment(NamedTuple):
    """Create a segment that is deleted with the connection. Answered by SegmentCreated."""

    request_id: int
    writer_id: bytes
    segment: str
    """The parent."""
    token: str


class SealSegment(NamedTuple):
    """Make a segment immutable."""

    request_id: int
    segment: str
    token: str


class SegmentSealed(NamedTuple):
    """The segment was sealed."""

    request_id: int
    segment: str


class DeleteSegment(NamedTuple):
    """Delete a segment."""

    request_id: int
    segment: str
    token: str


class SegmentDeleted(NamedTuple):
    """The segment was deleted. Answers DeleteTableSegment, too."""

    request_id: int
    segment: str


class UpdateSegmentPolicy(NamedTuple):
    """Replace the scaling policy of a segment."""

    request_id: int
    segment: str
    target_rate: int
    scale_type: int
    token: str


class SegmentPolicyUpdated(NamedTuple):
    """The scaling policy was replaced."""

    request_id: int
    segment: str


class GetSegmentAttribute(NamedTuple):
    """Ask for an attribute: the 16 bytes of its UUID."""

    request_id: int
    segment: str
    attribute: bytes
    token: str


class SegmentAttribute(NamedTuple):
    """The value of the attribute; NOT_SET without."""

    request_id: int
    value: int


class UpdateSegmentAttribute(NamedTuple):
    """Compare and set an attribute; NOT_SET is "absent" in both values."""

    request_id: int
    segment: str
    attribute: bytes
    value: int
    expected: int
    token: str


class SegmentAttributeUpdated(NamedTuple):
    """Whether the attribute had the expected value, and has the new one."""

    request_id: int
    success: bool


class TruncateSegment(NamedTuple):
    """Remove the bytes before `offset`."""

    request_id: int
    segment: str
    offset: int
    token: str


class SegmentTruncated(NamedTuple):
    """The segment begins at the offset, or behind it."""

    request_id: int
    segment: str


class LocateOffset(NamedTuple):
    """Ask for the first indexed offset that is not below `offset`. From version 17."""

    request_id: int
    segment: str
    offset: int
    token: str


class OffsetLocated(NamedTuple):
    """The offset found. From version 17."""

    request_id: int
    segment: str
    offset: int


class ConditionalAttributeUpdate(NamedTuple):
    """A change of an attribute of the target, of which a merge is part.

    `update_type`: 0 set if unset, 1 replace, 2 replace if greater, 3 add, 4 replace if equal to
    `expected`.
    """

    attribute: bytes
    update_type: int
    value: int
    expected: int


class MergeSegments(NamedTuple):
    """Append all of a source to a target; the source is deleted."""

    request_id: int
    target: str
    source: str
    token: str
    updates: tuple[ConditionalAttributeUpdate, ...] = ()


class SegmentsMerged(NamedTuple):
    """The length of the target behind the merge."""

    request_id: int
    target: str
    source: str
    length: int = -1


class MergeSegmentsBatch(NamedTuple):
    """Merge several sources, in this order."""

    request_id: int
    target: str
    sources: tuple[str, ...]
    token: str


class MergedSource(NamedTuple):
    """A source of a batch, and the length of the target behind it."""

    source: str
    length: int


class SegmentsBatchMerged(NamedTuple):
    """The sources that were merged, in the order of the request."""

    request_id: int
    target: str
    merged: tuple[MergedSource, ...]


class FlushToStorage(NamedTuple):
    """Move a container's bytes to Tier 2. Of an admin port only."""

    container_id: int
    token: str
    request_id: int


class StorageFlushed(NamedTuple):
    """The container's bytes are in Tier 2."""

    request_id: int


class ListStorageChunks(NamedTuple):
    """Ask for the chunks of a segment. Of an admin port only."""

    segment: str
    token: str
    request_id: int


class StorageChunk(NamedTuple):
    """A chunk: its length by the metadata and in storage, and where it begins in the segment."""

    metadata_length: int
    storage_length: int
    start_offset: int
    name: str
    exists: bool


class StorageChunksListed(NamedTuple):
    """The chunks of the segment."""

    request_id: int
    chunks: tuple[StorageChunk, ...]
