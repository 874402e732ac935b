"""The segments of a container that are not in its memory, without a catalog on disk."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from durablelog.metadata_needs import ALL_CHUNKS, ChunkNeed, is_known
from durablelog.metadata_updater import MetadataUpdater
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata

LATENCY_S = 0.0005
"""Of reading one."""
PAGE_CHUNKS = 2
"""Of a long segment memory knows the last page alone at first: so many chunks at most."""

Pages = dict[int, list[ChunkRecord]]
"""The chunks of a segment by the offset of the first one."""


class IdleSegments:
    """Has `held` and `chunks_in` as the engine has them: for its parts that ask a container.

    While it is `evicting` every segment leaves memory as soon as nothing keeps it there. For `held`
    a long one comes back with its last page alone, and with the chunks that it asks for.
    """

    def __init__(self, updater: MetadataUpdater, *, evicting: bool = False) -> None:
        self._updater = updater
        self.evicting = evicting
        self.error: Exception | None = None
        """What reading an idle segment fails with."""
        self.activations = 0
        self.held_max = 0
        """The largest number of segments that were held at once."""
        self.sought_max = 0
        """The largest number of objects whose chunks were asked for at once."""
        self.table: dict[int, SegmentMetadata] = {}
        """What is idle, as of its eviction, and whole. A segment in it never changes."""
        self._pages: dict[int, Pages] = {}
        """Of segments in memory that came back in part: all pages, as of their eviction."""
        self._pins: Counter[int] = Counter()

    @property
    def metadata(self) -> ContainerMetadata:
        return self._updater.metadata

    @property
    def all(self) -> dict[int, SegmentMetadata]:
        """Active and idle, with all their chunks."""
        return {**self.table, **{each: self.one(each) for each in self.metadata.segments}}

    def one(self, segment_id: int) -> SegmentMetadata:
        """The same of one segment, or of what is left of it. Raises KeyError if there is none."""
        segment = self.metadata.with_chunks(segment_id)
        if segment is None:
            return self.table[segment_id]
        return segment if segment.chunks.whole else self._whole(segment)

    def activate(self, segment_id: int, *, whole: bool = True) -> None:
        """Have a segment in memory if there is one, with all its chunks or as for `held`."""
        self._activate(segment_id, partial=self.evicting and not whole)
        segment = self.metadata.with_chunks(segment_id)
        if segment is not None and whole:
            self._learn(segment, 0, ALL_CHUNKS)

    def _activate(self, segment_id: int, *, partial: bool) -> None:
        segment = self.table.pop(segment_id, None)
        if segment is None:
            return
        again = _copy_of(segment)
        if partial and len(segment.chunks) > PAGE_CHUNKS:
            pages = self._pages[segment_id] = _pages_of(segment)
            first, count = segment.chunks.start_offset, len(segment.chunks)
            again.chunks = ChunkList.partial(count, first, list(pages[max(pages)]))
        self._updater.activate(again)
        self.activations += 1

    def _learn(self, segment: SegmentMetadata, start_offset: int, end_offset: int) -> None:
        """Take the pages into memory that have a byte of the stretch, and are not there."""
        pages = self._pages.get(segment.segment_id, {})
        for gap_start, gap_end in segment.chunks.gaps(start_offset, end_offset):
            for key, records in pages.items():
                if key < gap_end and gap_start < records[-1].end_offset:
                    segment.chunks.learn(key, list(records))
        assert segment.chunks.knows(start_offset, end_offset), segment

    def _whole(self, segment: SegmentMetadata) -> SegmentMetadata:
        """A copy with all chunks. The segment learns nothing."""
        gaps, whole = segment.chunks.gaps(0, ALL_CHUNKS), Pages()
        for key, (records, count) in segment.chunks.known_pages():
            whole[key] = records[:count]
        for key, records in self._pages[segment.segment_id].items():
            if any(start <= key < end for start, end in gaps):
                whole[key] = records
        chunks = (chunk for _, records in sorted(whole.items()) for chunk in records)
        return _copy_of(segment, chunks)

    def evict(self) -> None:
        """Have all leave that may, as `MetadataUpdater.evict`: the catalog has all there is."""
        metadata = self.metadata
        for segment_id, segment in list(metadata.segments.items()):
            if segment.flushed and not self._pins[segment_id]:
                self._learn(segment, 0, ALL_CHUNKS)
                self._pages.pop(segment_id, None)
                metadata.partial.discard(segment_id)
                del metadata.segments[segment_id]
                del metadata.names[segment.name]
                self._updater.pending.pop(segment_id, None)
                metadata.idle += 1
                self.table[segment_id] = segment

    def turn_ended(self) -> None:
        """No caller works on a segment that is not held."""
        if self.evicting:
            self.evict()

    @asynccontextmanager
    async def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AsyncIterator[None]:
        wanted = list(dict.fromkeys(ids))
        pinned: list[int] = []
        try:
            for segment_id in wanted:
                if segment_id not in self.metadata.segments:
                    await self._load(segment_id)
                if segment_id in self.metadata.segments:
                    self._pins[segment_id] += 1
                    pinned.append(segment_id)
            await self._load_chunks(list(chunks))
            self.held_max = max(self.held_max, len(+self._pins))
            yield
        finally:
            self._pins.subtract(pinned)
            self.turn_ended()

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        if self.table:
            await asyncio.sleep(LATENCY_S)
        if self.error is not None and any(each in self.table for each in ids):
            raise self.error
        there = {**self.table, **self.metadata.segments}
        return {each: there[each].name for each in ids if each in there}

    async def _load(self, segment_id: int) -> None:
        if self.table:
            await asyncio.sleep(LATENCY_S)
        if segment_id in self.table and self.error is not None:
            raise self.error
        self._activate(segment_id, partial=self.evicting)

    async def _load_chunks(self, needs: Sequence[ChunkNeed]) -> None:
        """Of the segments that there are."""
        if all(is_known(self.metadata, need) for need in needs):
            return
        await asyncio.sleep(LATENCY_S)
        if self.error is not None:
            raise self.error
        for segment_id, start_offset, end_offset in needs:
            segment = self.metadata.with_chunks(segment_id)
            if segment is not None:
                self._learn(segment, start_offset, end_offset)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        self.sought_max = max(self.sought_max, len(names))
        if self.table and self.error is not None:
            raise self.error
        active = self.metadata.segments
        found: dict[int, list[ChunkRecord]] = {}
        for segment_id, segment in self.all.items():
            found[segment_id] = self._chunks_of(active.get(segment_id, segment), names)
            await asyncio.sleep(0)
        for segment_id in active.keys() - found.keys():
            found[segment_id] = self._chunks_of(active[segment_id], names)
        return {segment_id: chunks for segment_id, chunks in found.items() if chunks}

    def _chunks_of(self, segment: SegmentMetadata, names: Collection[str]) -> list[ChunkRecord]:
        whole = segment if segment.chunks.whole else self._whole(segment)
        return [chunk for chunk in whole.chunks if chunk.object_name in names]


def _pages_of(segment: SegmentMetadata) -> Pages:
    """All its chunks, the first pages full."""
    chunks = list(segment.chunks)
    pages = [chunks[at : at + PAGE_CHUNKS] for at in range(0, len(chunks), PAGE_CHUNKS)]
    return {page[0].start_offset: page for page in pages}


def _copy_of(
    segment: SegmentMetadata, chunks: Iterable[ChunkRecord] | None = None
) -> SegmentMetadata:
    """As from a catalog: a reference from before its eviction shows no change."""
    again = copy.copy(segment)
    again.chunks = ChunkList(segment.chunks if chunks is None else chunks)
    again.attributes = copy.deepcopy(segment.attributes)
    again.merges = list(segment.merges)
    return again
