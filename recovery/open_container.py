"""What the scrub, and the keeper of losses, may ask of a container whose metadata they do not have
whole; and the same of metadata that are whole.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from durablelog.metadata_needs import ChunkNeed
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata

CHUNKS_PER_TURN: Final = 10_000
"""Chunks processed before the event loop gets a turn."""


class OpenContainer(Protocol):
    """A container, seen from what looks after its bytes in Tier 2. Everything on its event loop."""

    @property
    def metadata(self) -> ContainerMetadata:
        """The committed metadata, without the idle segments; read only."""

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """Those of the segments that there are, in memory meanwhile: in `metadata`, which lacks
        idle ones. Of long ones, these chunks: others may not be in memory.

        Entering it may read the catalog. Raises TierUnavailableError, DataCorruptionError.
        """

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """The chunks in the objects, in order of offset by segment, of active and of idle segments.

        Gathered in slices: a chunk that is moved or removed meanwhile may be among them or not.
        Raises TierUnavailableError, DataCorruptionError.
        """


class WholeMetadata(OpenContainer):
    """Of a stopped store: they do not change, and no segment is idle."""

    def __init__(self, metadata: ContainerMetadata) -> None:
        assert metadata.whole, (metadata.idle, metadata.partial)
        self._metadata = metadata
        self._by_object: dict[str, list[tuple[int, ChunkRecord]]] | None = None
        """Every chunk, with the id of its segment; None: not asked for yet."""

    @property
    def metadata(self) -> ContainerMetadata:
        """As they were read."""
        return self._metadata

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """All are in memory."""
        del ids, chunks
        return nullcontext()

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """The chunks in the objects, by segment. The first time O(all chunks), in slices."""
        if self._by_object is None:
            self._by_object = await self._sort_by_object()
        found: dict[int, list[ChunkRecord]] = defaultdict(list)
        for name in names:
            for segment_id, chunk in self._by_object.get(name, ()):
                found[segment_id].append(chunk)
        for chunks in found.values():
            chunks.sort(key=_start_of)
        return found

    async def _sort_by_object(self) -> dict[str, list[tuple[int, ChunkRecord]]]:
        found: dict[str, list[tuple[int, ChunkRecord]]] = defaultdict(list)
        passed = 0
        for segment_id, segment in self._metadata.segments.items():
            for chunk in segment.chunks.between(segment.start_offset, segment.length):
                found[chunk.object_name].append((segment_id, chunk))
                passed += 1
                if passed % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return found


def _start_of(chunk: ChunkRecord) -> int:
    return chunk.start_offset
