"""What an operation needs of segments that memory knows in part (docs/decisions/0060). Pure.

Chunks that it removes or replaces, attributes that it reads or sets. A chunk that is added needs
nothing: the last page is always known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from durablelog.operations import (
    AppendOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
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
        MergeOperation,
        ReplaceChunksOperation,
    }
)
"""Types of the operations that may need chunks: of no other one `chunks_needed` gives any."""


def needs_of(operation: Operation) -> Iterator[Need]:
    """What must be in memory when the operation is accepted, and committed.

    A source of a merge has all its chunks in memory from there on, until it is linked.
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
    elif isinstance(operation, MergeOperation):
        yield ChunkNeed(operation.source_id, 0, ALL_CHUNKS)
    elif isinstance(operation, ReplaceChunksOperation):
        for segment_id, old, _ in operation.replacements:
            yield ChunkNeed(segment_id, old[0].start_offset, old[-1].end_offset)


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
