"""What tests of the scrub share: two containers of one store, and their objects in Tier 2."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from durablelog.metadata_updater import MetadataUpdater
from recovery.background_scrub import BackgroundScrub
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.scrub import Live, Scrub
from recovery.scrub_state import (
    ScrubPass,
    ScrubState,
)
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from tests.support.idle_segments import IdleSegments
from tests.support.loop_clock import LoopClock
from tier2.block_object import CODEC_ZSTD
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder

STORE = "000102030405060708090a0b0c0d0e0f"
CONTAINERS = (0, 2)
OBJECTS = 5
PAYLOAD = b"0123456789" * 10


class World:
    """Two containers of one store, each with segments whose chunks share objects."""

    def __init__(self) -> None:
        self.runtime = Runtime(clock=LoopClock(), executor=inline_executor)
        self.storage = MemoryObjectStorage(self.runtime)
        self.metadata = {container_id: self._container(container_id) for container_id in CONTAINERS}
        self.containers = {
            container_id: IdleSegments(MetadataUpdater(metadata))
            for container_id, metadata in self.metadata.items()
        }
        self.running = set(CONTAINERS)
        self.state = ScrubState(current=ScrubPass(started_at_ms=1))

    def _container(self, container_id: int) -> ContainerMetadata:
        metadata = ContainerMetadata(container_id)
        for segment_id in (7, 8):
            segment = SegmentMetadata(segment_id, f"segment {segment_id}", 0)
            segment.length = segment.storage_length = OBJECTS * len(PAYLOAD)
            metadata.segments[segment_id] = segment
            metadata.names[segment.name] = segment_id
        for number in range(OBJECTS):
            builder = ObjectBuilder(container_id, 5, 16, codec=CODEC_ZSTD if number % 2 else 0)
            for segment_id in (7, 8):
                builder.add(
                    segment_id,
                    number * len(PAYLOAD),
                    [PAYLOAD],
                    segment_name=f"segment {segment_id}",
                )
            name = f"object-{container_id}-{number}"
            record, chunks = builder.finish(name, 0)
            for segment_id, chunk in chunks:
                metadata.segments[segment_id].own_chunks().append(chunk)
            metadata.objects[name] = LiveObject(record, 2, 2 * len(PAYLOAD))
            self.storage.bucket.objects[name] = MemoryObject(b"".join(builder.parts), bytes(16), 0)
        return metadata

    @property
    def live(self) -> dict[int, Live]:
        def of(container_id: int) -> Live:
            return lambda: self.containers[container_id] if container_id in self.running else None

        return {container_id: of(container_id) for container_id in CONTAINERS}

    @property
    def bytes(self) -> int:
        return sum(len(stored.data) for stored in self.storage.bucket.objects.values())

    def scrub(self, bytes_per_s: float = 0, **options: Any) -> Scrub:
        return Scrub(
            self.storage,
            self.live,
            self.state,
            clock=self.runtime.clock,
            executor=inline_executor("scrub", 1),
            limiter=RateLimiter(bytes_per_s),
            **options,
        )

    def background(self, path: str | None = None, bytes_per_s: float = 1e9) -> BackgroundScrub:
        return BackgroundScrub(
            self.storage,
            self.live,
            self.runtime,
            bytes_per_s=bytes_per_s,
            path=path,
            store_id=STORE,
        )

    def flip(self, name: str, position: int) -> None:
        data = bytearray(self.storage.bucket.objects[name].data)
        data[position] ^= 1
        self.storage.bucket.objects[name] = MemoryObject(bytes(data), bytes(16), 0)

    def forget(self, name: str) -> None:
        """The object goes as the engine lets it go: from the metadata first."""
        for metadata in self.metadata.values():
            metadata.objects.pop(name, None)
            for segment in metadata.segments.values():
                left = [chunk for chunk in segment.chunks if chunk.object_name != name]
                segment.chunks = ChunkList(left)
        self.storage.bucket.objects.pop(name, None)


def run(case: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await case(World())

    run_virtual(body())
