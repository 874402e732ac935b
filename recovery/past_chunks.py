"""Which chunks in Tier 2 have the bytes that a segment had at a moment. Pure.

Theory of operation. Bytes of a segment at an offset never change. So what a chunk has of a segment
is right at any moment, whenever it was written. A segment's bytes may lie in the objects of the
moment, or where consolidation copied them later. Those of a source that was merged later lie in
chunks of the target. All that count are laid over one another (`metadata_rebuild.join`). An object
counts if it is there in the size that the metadata have of it; a chunk's block says what it holds,
and is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from recovery.metadata_rebuild import join
from recovery.restore_report import Gap
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


class StoredPiece(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that a chunk in Tier 2 has."""

    chunk: ChunkRecord
    start_offset: int
    end_offset: int


class CoveredSegment(NamedTuple):
    """Where a segment's bytes are."""

    pieces: list[StoredPiece]
    gaps: list[Gap]
    """What no object has, from the start offset to the length."""


class PastChunks:
    """Of one container: `then` as it was, `now` as it is; None: unknown."""

    def __init__(
        self,
        then: ContainerMetadata,
        now: ContainerMetadata | None,
        there: Mapping[str, int],
    ) -> None:
        """`there` has the sizes of the objects in Tier 2. O(chunks of `now`)."""
        self._then = then
        self._now = now
        self._there = there
        self._moved: dict[int, list[ChunkRecord]] = {}
        """Chunks of other segments by the segment whose bytes they were, at their offsets there."""
        for segment in now.all_records() if now is not None else ():
            for chunk in segment.chunks:
                if chunk.block_segment_id != segment.segment_id:
                    self._moved.setdefault(chunk.block_segment_id, []).append(
                        chunk._replace(start_offset=chunk.block_start_offset)
                    )

    def cover(self, segment: SegmentMetadata) -> CoveredSegment:
        """Where the bytes of a segment of `then` are. O(n log n) in its chunks of all times."""
        pieces: list[StoredPiece] = []
        gaps: list[Gap] = []
        position = segment.start_offset
        for run in join(self._chunks(segment), segment.start_offset):
            for chunk in run:
                start = max(chunk.start_offset, position)
                end = min(chunk.end_offset, segment.length)
                if start >= end:
                    continue
                if position < start:
                    gaps.append(Gap(position, start))
                pieces.append(StoredPiece(chunk, start, end))
                position = end
        if position < segment.length:
            gaps.append(Gap(position, segment.length))
        return CoveredSegment(pieces, gaps)

    def _chunks(self, segment: SegmentMetadata) -> Iterator[ChunkRecord]:
        yield from self._that_fit(segment.chunks, self._then)
        if self._now is not None:
            later = self._now.with_chunks(segment.segment_id)
            if later is not None:
                yield from self._that_fit(later.chunks, self._now)
            yield from self._that_fit(self._moved.get(segment.segment_id, ()), self._now)
        for merge in segment.merges:
            source = self._then.segments[merge.source_id]
            for chunk in self._chunks(source):
                yield chunk._replace(start_offset=chunk.start_offset + merge.offset)

    def _that_fit(
        self, chunks: Iterable[ChunkRecord], of: ContainerMetadata
    ) -> Iterator[ChunkRecord]:
        for chunk in chunks:
            known = of.objects.get(chunk.object_name)
            if known is not None and self._there.get(chunk.object_name) == known.record.size:
                yield chunk
