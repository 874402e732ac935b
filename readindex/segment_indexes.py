"""SegmentIndexes: the read indexes of the segments of one container, by segment id (pure)."""

from __future__ import annotations

from readindex.extent import Extent
from readindex.segment_read_index import SegmentReadIndex


class SegmentIndexes(dict[int, SegmentReadIndex]):
    """An index is created with the first byte of its segment that is held."""

    def of(self, segment_id: int) -> SegmentReadIndex:
        """The segment's index, created if there is none."""
        index = self.get(segment_id)
        if index is None:
            index = self[segment_id] = SegmentReadIndex(segment_id)
        return index

    def remove(self, extent: Extent) -> None:
        """Remove an extent from its segment's index. Its residence has stopped counting it."""
        self[extent.segment_id].remove(extent)
