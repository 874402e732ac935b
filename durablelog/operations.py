"""The operations of a container's log: each one logged change, and what replay needs to make it
again.

Operations carry *outcomes*, not wishes: an append has the offset it got, attribute updates have
become values. So replay decides nothing; it only checks that what the log says fits what it has
built so far.

An operation is made without a place (`sequence_number` 0), is given one by the metadata updater,
and never changes afterwards. Several plain appends to one segment that share a frame are one
operation. Type ids are part of the stored format and never reused; 5 is kept free (it is retired in
Pravega's numbering).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.archive_metadata import ArchiveChange
from segmentstore.contracts.attributes import AttributeKey, KeyedUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import SegmentError

_SNAPSHOT_ID_BYTES = 16


@dataclass(slots=True)
class Operation:
    """What all operations have."""

    type_id: ClassVar[int] = 0

    sequence_number: int = field(default=0, kw_only=True)
    """Place in the container's order of operations; strictly growing, gaps are legal."""
    timestamp_ms: int = field(default=0, kw_only=True)
    """Wall time when it was accepted; for people alone: it decides nothing."""


@dataclass(slots=True)
class AppendOperation(Operation):
    """Bytes at the end of a segment, with the attribute values that go with them."""

    type_id: ClassVar[int] = 1

    segment_id: int
    offset: int
    data: Buffer
    """In replay a view into a frame: a holder of it keeps the frame."""
    attributes: dict[AttributeKey, int] | None = None
    places: tuple[tuple[LogAddress, int], ...] = ()
    """Where `data` lies in the log, if that is known: address and length of each stretch of it."""


@dataclass(slots=True)
class SealOperation(Operation):
    """No more appends, ever."""

    type_id: ClassVar[int] = 2

    segment_id: int
    length: int = 0


@dataclass(slots=True)
class MergeOperation(Operation):
    """The whole source becomes the end of the target; the source is sealed by it and loses its
    name.
    """

    type_id: ClassVar[int] = 3

    target_id: int
    source_id: int
    offset: int = 0
    """Where the source's bytes begin in the target."""
    length: int = 0
    attributes: dict[AttributeKey, int] | None = None
    updates: Sequence[KeyedUpdate] = ()
    """The caller's conditions; checked when live, not stored."""
    before: MergeOperation | None = field(default=None, kw_only=True, compare=False, repr=False)
    """The one before it in its batch; not stored."""
    refusal: SegmentError | None = field(default=None, kw_only=True, compare=False, repr=False)
    """Why it was refused; those behind it in its batch are refused for that."""


@dataclass(slots=True)
class CreateOperation(Operation):
    """A new segment; its id is this operation's sequence number."""

    type_id: ClassVar[int] = 4

    name: str
    attributes: dict[AttributeKey, int] | None = None
    updates: Sequence[KeyedUpdate] = ()


@dataclass(slots=True)
class UpdateAttributesOperation(Operation):
    """Attribute values without data."""

    type_id: ClassVar[int] = 6

    segment_id: int
    attributes: dict[AttributeKey, int] | None = None
    updates: Sequence[KeyedUpdate] = ()


@dataclass(slots=True)
class TruncateOperation(Operation):
    """Bytes below `offset` are deleted."""

    type_id: ClassVar[int] = 7

    segment_id: int
    offset: int
    in_slices: bool = False
    """The chunks below it stay until other operations release them, some at a time."""


@dataclass(slots=True)
class CheckpointOperation(Operation):
    """All metadata as of just before it, in the operation itself: a truncation point."""

    type_id: ClassVar[int] = 8

    blob: bytes


@dataclass(slots=True)
class StorageUpdateOperation(Operation):
    """What an upload made true: the only thing that makes chunks visible and moves storage_length.

    `chunks` are in flush order. One that its segment no longer wants (deleted, truncated past it)
    is passed over, and an object none of whose chunks was wanted becomes garbage at once. `links`
    are (target id, source id) of merges whose source is whole in Tier 2: its chunks become the
    target's.

    An object the metadata know already, live or garbage, is passed over. So objects alone, without
    chunks, say that what Tier 2 holds of them is garbage, and can never harm a live one. One upload
    of many chunks may be reported by several operations, each naming the object. Once it is
    garbage, chunks in it are passed over: their segments still owe these bytes to Tier 2.
    """

    type_id: ClassVar[int] = 9

    objects: Sequence[ObjectRecord] = ()
    chunks: Sequence[tuple[int, ChunkRecord]] = ()
    """(segment id, chunk)"""
    links: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class DeleteOperation(Operation):
    """The segment and everything in it is deleted; the name is free again."""

    type_id: ClassVar[int] = 10

    segment_id: int
    in_slices: bool = False
    """Its chunks, and those of sources that were not linked, stay until other operations release
    them, some at a time.
    """


@dataclass(slots=True)
class ObjectsDeletedOperation(Operation):
    """Garbage objects whose deletion Tier 2 has confirmed: the metadata may forget them."""

    type_id: ClassVar[int] = 11

    names: Sequence[str]


class ChunkReplacement(NamedTuple):
    """One stretch of a segment that lies elsewhere in Tier 2 now: the same bytes, other chunks."""

    segment_id: int
    old: tuple[ChunkRecord, ...]
    """Neighbours, exactly as the metadata had them; at least one."""
    new: tuple[ChunkRecord, ...]
    """Neighbours that cover exactly the same range; at least one."""


@dataclass(slots=True)
class ReplaceChunksOperation(Operation):
    """What a consolidation made true: the same bytes of segments, in other objects.

    A segment whose chunks are no longer exactly the old ones (truncated past, deleted, merged,
    replaced before) is passed over, live and in replay alike. An object none of whose chunks was
    taken becomes garbage at once; so does an old one that lost its last chunk. One object may be
    reported by several operations: the first makes it known; if it is garbage by the time of a
    later one, that one has no effect.
    """

    type_id: ClassVar[int] = 12

    objects: Sequence[ObjectRecord] = ()
    replacements: Sequence[ChunkReplacement] = ()


@dataclass(slots=True)
class DeletionClockOperation(Operation):
    """How far the owner has counted: garbage that the log released up to `through` is counted from
    here on.

    `through` is the committed sequence number of the moment at which the clock was read. So garbage
    that arises while this operation is on its way is left for the next one.
    """

    type_id: ClassVar[int] = 13

    clock_ms: int
    boot_id: bytes
    boot_ms: int
    through: int


@dataclass(slots=True)
class SnapshotCheckpointOperation(Operation):
    """A checkpoint by reference: all metadata as of just before it are in a snapshot of the
    container's metadata catalog.

    The container, `epoch`, the sequence number and `unique_id` give the name of the snapshot's
    manifest in Tier 2. The snapshot is finished later than the operation, or never. So it is a
    truncation point only where its snapshot is known to be there, or where the log begins with it.
    ValueError for an id that has not 16 bytes.
    """

    type_id: ClassVar[int] = 14

    epoch: int
    """Of the owner that made the snapshot."""
    unique_id: bytes

    def __post_init__(self) -> None:
        if len(self.unique_id) != _SNAPSHOT_ID_BYTES:
            raise ValueError(f"a snapshot's id has 16 bytes, not {len(self.unique_id)}")


@dataclass(slots=True)
class ReleaseChunksOperation(Operation):
    """A slice of what truncations and deletions left: these chunks are no segment's any more.

    One whose segment has been deleted at once meanwhile is passed over.
    """

    type_id: ClassVar[int] = 15

    releases: Sequence[tuple[int, int]]
    """(segment id, end offset): the chunks that end at or below it."""


@dataclass(slots=True)
class LinkChunksOperation(Operation):
    """A slice of a link: these chunks of a merged source are its target's now.

    The source is whole in Tier 2, and the first one that the target has still to link. A storage
    update links what is left of it. Without effect where one of the two has been deleted, or where
    chunks of the target have to be released first.
    """

    type_id: ClassVar[int] = 17

    target_id: int
    source_id: int
    end_offset: int
    """In the source, below its length: the chunks that end at or below it."""


@dataclass(slots=True)
class ArchiveOperation(Operation):
    """What an attempt, or a deletion, made true of the archive of the log.

    It is about what the archive has, so nothing of a segment depends on it.
    """

    type_id: ClassVar[int] = 16

    change: ArchiveChange


AnyCheckpoint: TypeAlias = CheckpointOperation | SnapshotCheckpointOperation
"""What a log may begin with."""

OwnersOperation: TypeAlias = (
    StorageUpdateOperation
    | ObjectsDeletedOperation
    | ReplaceChunksOperation
    | DeletionClockOperation
    | ReleaseChunksOperation
    | LinkChunksOperation
    | ArchiveOperation
)
"""What a storage writer, or an archiver, has to say, not a caller."""


def segments_of(operation: Operation) -> Iterable[int]:
    """Ids of the segments that must be in memory when the operation is accepted, and committed.

    None of a creation, whose name must be known to be free.
    """
    if isinstance(operation, (MergeOperation, LinkChunksOperation)):
        return (operation.target_id, operation.source_id)
    if isinstance(operation, StorageUpdateOperation):
        chunks = (segment_id for segment_id, _ in operation.chunks)
        return itertools.chain(chunks, *operation.links)
    if isinstance(operation, ReplaceChunksOperation):
        return (each.segment_id for each in operation.replacements)
    if isinstance(operation, ReleaseChunksOperation):
        return (segment_id for segment_id, _ in operation.releases)
    if isinstance(operation, _OF_ONE_SEGMENT):
        return (operation.segment_id,)
    return ()


_OF_ONE_SEGMENT = (
    AppendOperation,
    SealOperation,
    UpdateAttributesOperation,
    TruncateOperation,
    DeleteOperation,
)


_COMMITTED_TOGETHER = (AppendOperation, CreateOperation)


def commit_runs(operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
    """The operations cut so that what follows a commit sees the metadata as of that operation.

    Appends in a row stay together, and so do creations: they cannot invalidate each other.
    Everything else is alone.
    """
    start, kind = 0, None
    for index, operation in enumerate(operations):
        if type(operation) is not kind or kind not in _COMMITTED_TOGETHER:
            if start < index:
                yield operations[start:index]
            start, kind = index, type(operation)
    if start < len(operations):
        yield operations[start:] if start else operations
