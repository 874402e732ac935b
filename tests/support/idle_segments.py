"""The segments of a container that are not in its memory, without a catalog on disk."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from durablelog.metadata_needs import ChunkNeed
from durablelog.metadata_updater import MetadataUpdater
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata

LATENCY_S = 0.0005
"""Of reading one."""


class IdleSegments:
    """Has `held` and `chunks_in` as the engine has them: for its parts that ask a container.

    While it is `evicting` every segment leaves memory as soon as nothing keeps it there.
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
        """What is idle, as of its eviction. A segment in it never changes."""
        self._pins: Counter[int] = Counter()

    @property
    def metadata(self) -> ContainerMetadata:
        return self._updater.metadata

    @property
    def all(self) -> dict[int, SegmentMetadata]:
        """Active and idle."""
        return {**self.table, **self.metadata.segments}

    def activate(self, segment_id: int) -> None:
        """Take a segment into memory if it is idle."""
        segment = self.table.pop(segment_id, None)
        if segment is not None:
            self._updater.activate(_copy_of(segment))
            self.activations += 1

    def evict(self) -> None:
        """Have all leave that may, as `MetadataUpdater.evict`: the catalog has all there is."""
        metadata = self.metadata
        for segment_id, segment in list(metadata.segments.items()):
            if segment.flushed and not self._pins[segment_id]:
                del metadata.segments[segment_id]
                del metadata.names[segment.name]
                self._updater.pending.pop(segment_id, None)
                metadata.idle += 1
                self.table[segment_id] = segment

    def turn_ended(self) -> None:
        """Nobody works on a segment that is not held."""
        if self.evicting:
            self.evict()

    @asynccontextmanager
    async def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AsyncIterator[None]:
        del chunks  # Those of a segment come with it.
        wanted = list(dict.fromkeys(ids))
        pinned: list[int] = []
        try:
            for segment_id in wanted:
                if segment_id not in self.metadata.segments:
                    await self._load(segment_id)
                if segment_id in self.metadata.segments:
                    self._pins[segment_id] += 1
                    pinned.append(segment_id)
            self.held_max = max(self.held_max, len(+self._pins))
            yield
        finally:
            self._pins.subtract(pinned)
            self.turn_ended()

    async def _load(self, segment_id: int) -> None:
        if self.table:
            await asyncio.sleep(LATENCY_S)
        if segment_id in self.table and self.error is not None:
            raise self.error
        self.activate(segment_id)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        self.sought_max = max(self.sought_max, len(names))
        if self.table and self.error is not None:
            raise self.error
        active = self.metadata.segments
        found: dict[int, list[ChunkRecord]] = {}
        for segment_id, segment in self.all.items():
            now = active.get(segment_id, segment)
            found[segment_id] = _chunks_of(now, names)
            await asyncio.sleep(0)
        for segment_id in active.keys() - found.keys():
            found[segment_id] = _chunks_of(active[segment_id], names)
        return {segment_id: chunks for segment_id, chunks in found.items() if chunks}


def _chunks_of(segment: SegmentMetadata, names: Collection[str]) -> list[ChunkRecord]:
    return [chunk for chunk in segment.chunks if chunk.object_name in names]


def _copy_of(segment: SegmentMetadata) -> SegmentMetadata:
    """As from a catalog: a reference from before its eviction shows no change."""
    again = copy.copy(segment)
    again.chunks = ChunkList(segment.chunks)
    again.attributes = copy.deepcopy(segment.attributes)
    again.merges = list(segment.merges)
    return again
