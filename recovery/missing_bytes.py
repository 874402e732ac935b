"""Acknowledged bytes that neither Tier 2 nor the log has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


def missing_bytes(
    metadata: ContainerMetadata, first_met: Mapping[int, int]
) -> Iterator[tuple[SegmentMetadata, int]]:
    """Each segment with such bytes, and the offset of the first.

    `first_met`: of each segment id with an append in the log the offset of the first one.
    O(segments).
    """
    for segment in metadata.segments.values():
        if segment.storage_length == segment.length and not segment.merges:
            # Most of them: nothing of it is in the log alone.
            continue
        offset = _first_missing(segment, first_met)
        if offset is not None:
            yield segment, offset


def _first_missing(segment: SegmentMetadata, first_met: Mapping[int, int]) -> int | None:
    """The first offset that is neither in Tier 2, nor a merged source's, nor met in the log."""
    position = segment.storage_length
    while (merge := segment.find_merge(position)) is not None:
        position = merge.end_offset
    if position >= segment.length or first_met.get(segment.segment_id, segment.length) <= position:
        return None
    return position
