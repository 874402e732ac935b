"""Places: whether a byte may be read, and where it is, merges followed (pure)."""

from __future__ import annotations

from typing import NamedTuple

from readindex.extent import Extent
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


class Place(NamedTuple):
    """Where a byte is: at most `length` bytes belong together there."""

    segment: SegmentMetadata
    segment_index: SegmentReadIndex | None
    """The segment's index, if it has one."""
    extent: Extent | None
    """The extent that has it; none if the tail buffer, Tier 2 or Tier 1 alone does."""
    offset: int
    length: int

    @property
    def is_missing(self) -> bool:
        """True if only Tier 1 has the byte: it is neither held nor in Tier 2."""
        if self.extent is not None or self.offset < self.segment.storage_length:
            return False
        return self.segment_index is None or not self.segment_index.in_tail_buffer(self.offset)

    @property
    def missing_length(self) -> int:
        """How many bytes are missing from here on, within `length`: up to the next thing that is
        there.

        A merged source's bytes are not this segment's to ask for.
        """
        end = self.segment.own_end(self.offset)
        end = end if self.segment_index is None else self.segment_index.gap_end(self.offset, end)
        return min(self.length, end - self.offset)


class Places:
    """Of one container."""

    def __init__(self, metadata: ContainerMetadata, indexes: SegmentIndexes) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self.closed = False

    def close(self) -> None:
        """From now on every question ends with ContainerStoppedError."""
        self.closed = True

    def segment(self, segment_id: int) -> SegmentMetadata:
        """The segment, which must be there, merged or not."""
        if self.closed:
            raise ContainerStoppedError(self._metadata.container_id)
        segment = self._metadata.segments.get(segment_id)
        if segment is None:
            raise SegmentNotFoundError(str(segment_id))
        return segment

    def present(self, segment_id: int, offset: int, name: str) -> SegmentMetadata:
        """The segment, if it still has `offset`; `name` is for the error.

        Sources of merges are present too.
        """
        if self.closed:
            raise ContainerStoppedError(self._metadata.container_id)
        segment = self._metadata.segments.get(segment_id)
        if segment is None:
            raise SegmentNotFoundError(name)
        if offset < segment.start_offset:
            raise SegmentTruncatedError(segment.name, segment.start_offset)
        return segment

    def readable(self, segment_id: int, offset: int, name: str) -> SegmentMetadata:
        """As `present`, for callers: a segment that was merged into another is not there for
        them.
        """
        segment = self._metadata.segments.get(segment_id)
        if segment is not None and segment.merged_into is not None and not self.closed:
            raise SegmentNotFoundError(segment.name, "it was merged into another segment")
        return self.present(segment_id, offset, name)

    def locate(self, segment: SegmentMetadata, offset: int, length: int) -> Place:
        """Where up to `length` bytes from `offset` are.

        Raises SegmentTruncatedError. O(depth of merges).
        """
        top, shift = segment, 0
        while True:
            if offset < segment.start_offset:
                raise SegmentTruncatedError(top.name, segment.start_offset + shift)
            length = min(length, segment.length - offset)
            index = self._indexes.get(segment.segment_id)
            extent = None if index is None else index.find(offset)
            place = Place(segment, index, extent, offset, length)
            merge = segment.find_merge(offset) if segment.merges else None
            if merge is None or not place.is_missing:
                return place
            length = min(length, merge.end_offset - offset)
            offset -= merge.offset
            shift += merge.offset
            segment = self._metadata.segments[merge.source_id]
