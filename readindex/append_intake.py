"""AppendIntake: gives the bytes of committed appends their first residence (loop).

Nearly all of them are small and continue a tail buffer: `TailMemory.gather` takes these, many in
one call. The others are taken one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from readindex.cache_manager import CacheManager
from readindex.config import ReadIndexConfig
from readindex.places import Places
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex, index_of
from readindex.spiller import Spiller
from readindex.tail_memory import CommittedAppend, TailMemory
from readindex.waiting_reads import WaitingReads
from segmentstore.contracts.errors import DataCorruptionError


class AppendIntake:
    """Of one container's read index."""

    def __init__(
        self,
        config: ReadIndexConfig,
        indexes: SegmentIndexes,
        places: Places,
        tail: TailMemory,
        cache_manager: CacheManager,
        spiller: Spiller,
        waiting: WaitingReads,
    ) -> None:
        self._logged_bytes_min = config.small_bytes
        self._indexes = indexes
        self._places = places
        self._tail = tail
        self._cache_manager = cache_manager
        self._spiller = spiller
        self._waiting = waiting

    def take(self, appends: Sequence[CommittedAppend], *, replayed: bool) -> None:
        """Take appends, in order, and wake who waits for them; see `ReadIndex.append`."""
        tail, spiller = self._tail, self._spiller
        taken, count = 0, len(appends)
        while taken < count:
            first = taken
            taken = tail.gather(appends, first, spiller.trim_at)
            if taken == first or (taken < count and tail.bytes_total <= spiller.trim_at):
                self._take_one(appends[taken], replayed=replayed)
                taken += 1
            if tail.bytes_total > spiller.trim_at:
                spiller.trim()
        waiting = self._waiting
        if waiting.any:
            for append in appends:
                waiting.wake(append.segment_id)

    def _take_one(self, append: CommittedAppend, *, replayed: bool) -> None:
        offset, data = append.offset, append.data
        index = self._indexes.get(append.segment_id)
        if index is None:
            index = self._first_index(append.segment_id, offset + len(data))
        if replayed and append.places and len(data) >= self._logged_bytes_min:
            self._cache_manager.append_replayed(index, offset, data, append.places)
        else:
            self._tail.append(index, offset, data, append.places)

    def _first_index(self, segment_id: int, end: int) -> SegmentReadIndex:
        segment = self._places.segment(segment_id)
        if end > segment.length:
            raise DataCorruptionError(
                f"read index of segment {segment_id}",
                f"an append that ends at {end} where {segment.length} bytes are committed",
            )
        return index_of(self._indexes, segment_id)
