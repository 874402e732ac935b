"""Chunks of a segment by index, and changes that no operation of a log could make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata


def chunk_at(segment: SegmentMetadata, index: int) -> ChunkRecord:
    """The segment's chunk of this index; from the end if it is negative."""
    return list(segment.chunks)[index]


@contextmanager
def edited_chunks(segment: SegmentMetadata) -> Iterator[list[ChunkRecord]]:
    """The segment's chunks as a list; whatever it holds at the end, they are then."""
    chunks = list(segment.chunks)
    yield chunks
    segment.chunks = ChunkList(chunks)
