"""How far the next chunks of a long segment reach, which may be in the catalog alone."""

from __future__ import annotations

from contextlib import AsyncExitStack

from durablelog.metadata_needs import ChunkNeed
from segmentstore.contracts.metadata import SegmentMetadata
from storagewriter.data_source import WriterDataSource


async def reach_of(
    source: WriterDataSource,
    segment: SegmentMetadata,
    end_offset: int,
    chunks_max: int,
    held: AsyncExitStack,
) -> tuple[int, int]:
    """Up to which offset the first chunks reach that end at or below `end_offset`, at most so many;
    and their number. They stay in memory with `held`.

    `end_offset` itself where no chunk is left that ends there or before. Goes on with what is known
    if the segment is not in memory any more. Reads the catalog; raises TierUnavailableError,
    DataCorruptionError.
    """
    segment_id = segment.segment_id
    while segment.chunks:
        count, reached = segment.chunks.reach(end_offset, chunks_max)
        if count == chunks_max and reached < end_offset:
            return reached, count
        if segment.chunks.knows(reached, min(reached + 1, end_offset)):
            # The next one is to stay.
            return end_offset, count
        need = ChunkNeed(segment_id, reached, reached + 1)
        await held.enter_async_context(source.held((), [need]))
        # It is kept, unless the segment is removed at once.
        if source.metadata.with_chunks(segment_id) is not segment:
            return reached, count
        assert segment.chunks.knows(reached, reached + 1), segment
    return end_offset, 0
