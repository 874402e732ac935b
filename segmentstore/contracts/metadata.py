"""The committed metadata of a container: what the log has made true so far.

One writer for every field: `durablelog.metadata_updater`, from operations, live and in replay
alike. All other parts only read. Invariants, checked by `metadata_checks`:

- 0 <= start_offset <= length, 0 <= storage_length <= length; length only grows;
- `chunks` cover at least [start_offset, storage_length). All of them may lie below that, in a
  segment that is `releasing`;
- `merges` are sorted by offset, disjoint, and end above storage_length;
- of a merged segment the target has all bytes below start_offset in its own chunks: it is linked in
  part (docs/decisions/0091), and storage_length of the target reaches as far;
- ids are never reused, and every chunk's object is known and counts it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from segmentstore.contracts.archive_metadata import NO_ARCHIVE, ArchiveMetadata
from segmentstore.contracts.attribute_table import NO_ATTRIBUTES, AttributeTable
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.chunk_list import NO_CHUNKS, ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject


class MergeRecord(NamedTuple):
    """A merged source whose bytes are readable through the target but not yet linked to it in Tier
    2.
    """

    offset: int
    """Where the source's bytes begin in the target."""
    length: int
    source_id: int

    @property
    def end_offset(self) -> int:
        """Where they end in the target, exclusive."""
        return self.offset + self.length


class SegmentMetadata:
    """One segment, as the log has it. Offsets are bytes from the segment's beginning."""

    __slots__ = (
        "attributes",
        "chunks",
        "created_ms",
        "deleted",
        "encoded",
        "generation",
        "last_modified_ms",
        "length",
        "merged_into",
        "merges",
        "name",
        "releasing",
        "sealed",
        "segment_id",
        "start_offset",
        "storage_length",
    )

    def __init__(self, segment_id: int, name: str, created_ms: int) -> None:
        self.segment_id = segment_id
        self.name = name
        self.created_ms = created_ms
        self.last_modified_ms = created_ms
        self.start_offset = 0
        self.length = 0
        self.storage_length = 0
        """Bytes [start_offset, storage_length) are in `chunks`; bytes [storage_length, length) are
        not yet in Tier 2.
        """
        self.sealed = False
        self.merged_into: int | None = None
        """Id of the target this segment was merged into; it has lost its name then."""
        self.releasing = False
        """Whether operations still have to release some of its chunks, in slices: all of a deleted
        one, else those that end at or below `start_offset` (docs/decisions/0067).
        """
        self.deleted = False
        """It is no segment any more: its chunks alone are left, for their objects. Then it is in
        `ContainerMetadata.releasing` alone.
        """
        self.attributes: AttributeTable = NO_ATTRIBUTES
        """Changed by `apply_attributes` alone: segments without attributes share one."""
        self.chunks: ChunkList = NO_CHUNKS
        """Grown through `own_chunks` alone: segments without chunks share one."""
        self.merges: list[MergeRecord] | tuple[()] = ()
        """In order of offset. Changed by `add_merge` and `drop_merges` alone: most segments have
        none, and an empty list takes 56 bytes.
        """
        self.encoded: bytes | list[bytes] | None = None
        """This record as a checkpoint holds it, or the pieces of it, kept by the checkpoint codec
        until the next change.
        """
        self.generation = 0
        """Of the changes that it was last noted among (durablelog.catalog.metadata_changes)."""

    def add_merge(self, merge: MergeRecord) -> None:
        """Note a merge behind those there are."""
        if isinstance(self.merges, list):
            self.merges.append(merge)
        else:
            self.merges = [merge]

    def drop_merges(self, count: int) -> None:
        """Forget the first so many merges. O(merges)."""
        if isinstance(self.merges, list):
            del self.merges[:count]
            self.merges = self.merges or ()

    def own_chunks(self) -> ChunkList:
        """Its chunks, to add some: a list of its own from now on."""
        if self.chunks is NO_CHUNKS:
            self.chunks = ChunkList()
        return self.chunks

    def apply_attributes(self, values: Mapping[AttributeKey, int]) -> None:
        """Make resolved attribute values true: those of ATTRIBUTE_UNSET are removed."""
        if self.attributes is NO_ATTRIBUTES:
            if not values:
                return
            self.attributes = AttributeTable()
        self.attributes.apply(values)

    @property
    def flushed(self) -> bool:
        """Whether all its bytes are in Tier 2 and in its own chunks, and it keeps all of those: the
        log has nothing of it, and has to get nothing.

        It is no target and no source of a merge then.
        """
        return (
            self.storage_length == self.length
            and not self.merges
            and self.merged_into is None
            and not self.releasing
        )

    @property
    def detached(self) -> bool:
        """Whether the next chunk would not follow the last one: that has to be released first.

        Then nothing is flushed of the segment, and nothing linked to it.
        """
        return self.releasing and bool(self.chunks) and self._chunks_end < self.storage_length

    @property
    def release_end(self) -> int:
        """The chunks that end at or below are to be released, if it is `releasing`."""
        return self._chunks_end if self.deleted else self.start_offset

    @property
    def _chunks_end(self) -> int:
        return self.chunks.last.end_offset if self.chunks else 0

    @property
    def whole(self) -> bool:
        """Whether all its chunks and attributes are in memory."""
        return self.chunks.whole and self.attributes.whole

    def find_chunk(self, offset: int) -> ChunkRecord | None:
        """The chunk that holds `offset`, if Tier 2 has it. O(log chunks).

        Raises UnknownChunksError if it is not in memory.
        """
        return self.chunks.find(offset)

    def find_merge(self, offset: int) -> MergeRecord | None:
        """The not yet linked merge whose bytes `offset` falls into, if any. O(log merges)."""
        index = bisect_right(self.merges, offset, key=_offset_of) - 1
        if index < 0:
            return None
        merge = self.merges[index]
        return merge if offset < merge.offset + merge.length else None

    def own_end(self, offset: int) -> int:
        """Where the segment's own bytes from `offset` on end: at the next merge, or its length.

        O(log merges).
        """
        index = bisect_right(self.merges, offset, key=_offset_of)
        return self.merges[index].offset if index < len(self.merges) else self.length

    def __repr__(self) -> str:
        flags = "".join(
            (
                " sealed" if self.sealed else "",
                " deleted" if self.deleted else "",
                " releasing" if self.releasing else "",
                f" merged into {self.merged_into}" if self.merged_into else "",
            )
        )
        return (
            f"<Segment {self.segment_id} {self.name!r} [{self.start_offset},{self.length})"
            f" stored {self.storage_length}{flags}, {len(self.chunks)} chunks>"
        )


def _offset_of(merge: MergeRecord) -> int:
    return merge.offset


class ContainerMetadata:
    """Everything one container knows, as of `sequence_number`."""

    __slots__ = (
        "archive",
        "container_id",
        "deletion_clock",
        "garbage",
        "idle",
        "names",
        "objects",
        "partial",
        "releasing",
        "segments",
        "sequence_number",
    )

    def __init__(self, container_id: int) -> None:
        self.container_id = container_id
        self.sequence_number = 0
        """Of the last operation committed; only grows."""
        self.segments: dict[int, SegmentMetadata] = {}
        """The active ones; idle ones are in the catalog alone (docs/decisions/0059)."""
        self.names: dict[str, int] = {}
        """Name to id of the active segments that have one: not merged, not deleted."""
        self.idle = 0
        """The number of segments that are in the catalog alone. All of them have a name, and are
        `flushed`.
        """
        self.partial: set[int] = set()
        """Of the active ones, those with chunks or attributes that are in the catalog alone
        (docs/decisions/0060). Some may be whole again, or deleted.
        """
        self.releasing: dict[int, SegmentMetadata] = {}
        """Those with chunks that are still to be released, by id: deleted ones, which are nowhere
        else, and active ones that were truncated far.
        """
        self.objects: dict[str, LiveObject] = {}
        self.garbage: dict[str, GarbageObject] = {}
        """In the order in which the log released them."""
        self.deletion_clock = DeletionClockReading()
        self.archive: ArchiveMetadata = NO_ARCHIVE

    @property
    def whole(self) -> bool:
        """Whether all there is of all segments is in memory."""
        return not (self.idle or self.partial)

    @property
    def segment_count(self) -> int:
        """The number of segments that have a name, active or idle."""
        return len(self.names) + self.idle

    def with_chunks(self, segment_id: int) -> SegmentMetadata | None:
        """The record of this id in memory that has chunks: an active segment's, or what is left of
        a deleted one.
        """
        return self.segments.get(segment_id) or self.releasing.get(segment_id)

    def sources_of(self, merges: Iterable[MergeRecord]) -> list[SegmentMetadata]:
        """What was merged by these and is not linked yet, with sources of it, however deep.
        O(those).
        """
        sources = [self.segments[merge.source_id] for merge in merges]
        for source in sources:  # grows while it is walked
            sources += (self.segments[merge.source_id] for merge in source.merges)
        return sources

    def deleted_ids(self) -> set[int]:
        """Of the deleted ones that are `releasing`."""
        return self.releasing.keys() - self.segments.keys()

    def all_records(self) -> Iterator[SegmentMetadata]:
        """The active segments, and what is left of deleted ones."""
        deleted = (each for each in self.releasing.values() if each.deleted)
        return chain(self.segments.values(), deleted)

    def adopt(self, other: ContainerMetadata) -> None:
        """Become what `other` is, in place: holders of this object or its tables see the new
        content.
        """
        assert self.container_id == other.container_id, (self.container_id, other.container_id)
        self.sequence_number = other.sequence_number
        self.deletion_clock = other.deletion_clock
        self.archive = other.archive
        self.idle = other.idle
        for mine, theirs in (
            (self.segments, other.segments),
            (self.names, other.names),
            (self.objects, other.objects),
            (self.garbage, other.garbage),
            (self.partial, other.partial),
            (self.releasing, other.releasing),
        ):
            mine.clear()
            mine.update(theirs)  # type: ignore[arg-type] # each pair is of one type
