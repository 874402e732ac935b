"""What an operation needs of segments that memory knows in part (docs/decisions/0060). Pure.

Chunks that it removes or replaces, attributes that it reads or sets. A chunk that is added needs
nothing: the last page is always known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from durablelog.operations import (
    AppendOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.attributes import AttributeKey, KeyedUpdate
from segmentstore.contracts.metadata import ContainerMetadata

ALL_CHUNKS: Final = 1 << 63
"""Behind the end of every segment."""


class ChunkNeed(NamedTuple):
    """The chunks with a byte of a stretch of a segment."""

    segment_id: int
    start_offset: int
    end_offset: int


class AttributeNeed(NamedTuple):
    """One attribute."""

    segment_id: int
    key: AttributeKey


Need = ChunkNeed | AttributeNeed

CHUNK_USERS: Final = frozenset(
    {
        TruncateOperation,
        DeleteOperation,
        ReleaseChunksOperation,
        StorageUpdateOperation,
        LinkChunksOperation,
        ReplaceChunksOperation,
    }
)
"""Types of the operations that may need chunks: of no other one `chunks_needed` gives any."""


def needs_of(operation: Operation) -> Iterator[Need]:
    """What must be in memory when the operation is accepted, and committed.

    Truncations and deletions need `sources_needed` as well.
    """
    yield from chunks_needed(operation)
    if isinstance(operation, AppendOperation):
        yield from _attributes(operation.segment_id, operation.attributes or ())
    elif isinstance(operation, UpdateAttributesOperation):
        yield from _attributes(operation.segment_id, operation.attributes or ())
        yield from _attributes(operation.segment_id, keys_of(operation.updates))
    elif isinstance(operation, MergeOperation):
        yield from _attributes(operation.target_id, operation.attributes or ())
        yield from _attributes(operation.target_id, keys_of(operation.updates))


def chunks_needed(operation: Operation) -> Iterator[ChunkNeed]:
    """The chunks that must be in memory."""
    if isinstance(operation, TruncateOperation):
        if not operation.in_slices:
            yield ChunkNeed(operation.segment_id, 0, operation.offset)
    elif isinstance(operation, DeleteOperation):
        if not operation.in_slices:
            yield ChunkNeed(operation.segment_id, 0, ALL_CHUNKS)
    elif isinstance(operation, ReleaseChunksOperation):
        for segment_id, end_offset in operation.releases:
            yield ChunkNeed(segment_id, 0, end_offset)
    elif isinstance(operation, LinkChunksOperation):
        yield ChunkNeed(operation.source_id, 0, operation.end_offset)
    elif isinstance(operation, StorageUpdateOperation):
        for _, source_id in operation.links:
            yield ChunkNeed(source_id, 0, ALL_CHUNKS)
    elif isinstance(operation, ReplaceChunksOperation):
        for segment_id, old, _ in operation.replacements:
            yield ChunkNeed(segment_id, old[0].start_offset, old[-1].end_offset)


def sources_needed(
    metadata: ContainerMetadata,
    operation: Operation,
    merging: Mapping[int, Sequence[MergeOperation]],
) -> Iterator[ChunkNeed]:
    """The chunks that a truncation or deletion at once takes from sources of merges, with sources
    of theirs. `merging` has the merges that come before it, by target.
    """
    if not isinstance(operation, (TruncateOperation, DeleteOperation)) or operation.in_slices:
        return
    end = operation.offset if isinstance(operation, TruncateOperation) else ALL_CHUNKS
    ids = [operation.segment_id]
    for segment_id in ids:  # grows while it is walked
        segment = metadata.segments.get(segment_id)
        merges = segment.merges if segment is not None else ()
        ids += (each.source_id for each in merges if each.end_offset <= end)
        coming = merging.get(segment_id, ())
        ids += (each.source_id for each in coming if each.offset + each.length <= end)
        end = ALL_CHUNKS
    yield from (ChunkNeed(source_id, 0, ALL_CHUNKS) for source_id in ids[1:])


def needs_in_replay(metadata: ContainerMetadata, operations: Sequence[Operation]) -> Iterator[Need]:
    """What must be in memory when logged operations are replayed, one behind another."""
    merging: dict[int, list[MergeOperation]] = {}
    for operation in operations:
        yield from needs_of(operation)
        if isinstance(operation, MergeOperation):
            merging.setdefault(operation.target_id, []).append(operation)
        yield from sources_needed(metadata, operation, merging)


def keys_of(updates: Iterable[KeyedUpdate]) -> list[AttributeKey]:
    """The attributes that updates read and set."""
    return [key for key, *_ in updates]


def is_known(metadata: ContainerMetadata, need: Need) -> bool:
    """Whether it is in memory; of a segment that is not there nothing is needed. O(log chunks)."""
    segment = metadata.with_chunks(need.segment_id)
    if segment is None:
        return True
    if isinstance(need, AttributeNeed):
        return segment.attributes.knows(need.key)
    return segment.chunks.knows(need.start_offset, need.end_offset)


def _attributes(segment_id: int, keys: Iterable[AttributeKey]) -> Iterator[AttributeNeed]:
    return (AttributeNeed(segment_id, key) for key in keys)
