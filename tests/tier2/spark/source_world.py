"""A Tier 2 with segments and catalog snapshots, made without an engine: every cut of the bytes is
the test's to choose.

Metadata, objects and snapshots are real; only who decides is not. Blocks have extents of 16 bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import GarbageObject, LiveObject
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import CODEC_NONE
from tier2.catalog.catalog_snapshots import write_snapshot
from tier2.locations import open_object_storage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.object_storage import ObjectStorage
from tier2.spark.data_source import SegmentStoreSource
from tier2.spark.source.stream import SegmentStreamReader
from tier2.unique_ids import new_unique_id

STORE_ID = "7c8c2b7e-5a39-4c61-9d3b-3f0d5a1b2c4d"
EXTENT_BYTES = 16
EPOCH = 5

T = TypeVar("T")


class SourceWorld:
    """One store's Tier 2 at `url`, with `containers` containers."""

    def __init__(
        self, url: str, containers: int = 1, seed: int = 1, store_id: str = STORE_ID
    ) -> None:
        self.url = url
        self.store_id = store_id
        self.codec = CODEC_NONE
        self.now_ms = 0
        """When objects are made."""
        self._random = random.Random(seed)
        self._containers = [ContainerMetadata(number) for number in range(containers)]

    def run(self, body: Callable[[ObjectStorage], Awaitable[T]]) -> T:
        """What `body` gives, with a storage of its own."""

        async def whole() -> T:
            storage = open_object_storage(self.url, Runtime())
            try:
                return await body(storage)
            finally:
                await storage.close()

        return asyncio.run(whole())

    def segment(self, name: str, container_id: int = 0) -> SegmentMetadata:
        """The segment of this name, made at the first call."""
        container = self._containers[container_id]
        if name not in container.names:
            container.sequence_number += 1
            made = SegmentMetadata(container.sequence_number, name, 0)
            container.segments[made.segment_id] = made
            container.names[name] = made.segment_id
        return container.segments[container.names[name]]

    def append(
        self, name: str, data: bytes, cuts: Sequence[int] = (), container_id: int = 0
    ) -> None:
        """Bytes that come to Tier 2 at once, in chunks cut at these places; two chunks share an
        object.
        """
        container = self._containers[container_id]
        segment = self.segment(name, container_id)
        borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
        pieces = [data[low:high] for low, high in itertools.pairwise(borders) if high > low]
        for first in range(0, len(pieces), 2):
            self._put(container, segment, pieces[first : first + 2])
        segment.length = segment.storage_length

    def flush(self, data: Mapping[str, bytes], container_id: int = 0) -> str:
        """Bytes of many segments that come to Tier 2 as one object, a chunk each; its name."""
        container = self._containers[container_id]
        builder = ObjectBuilder(container_id, EPOCH, EXTENT_BYTES, codec=self.codec)
        segments = [self.segment(name, container_id) for name in data]
        for segment, written in zip(segments, data.values(), strict=True):
            builder.add(
                segment.segment_id, segment.storage_length, [written], segment_name=segment.name
            )
        unique_id = new_unique_id(self._random)
        name = object_name(container_id, EPOCH, "flush", unique_id)
        parts = builder.parts
        self.run(lambda storage: storage.put(name, parts, unique_id))
        record, placed = builder.finish(name, self.now_ms)
        for segment, (_, chunk) in zip(segments, placed, strict=True):
            segment.own_chunks().append(chunk)
            segment.storage_length = segment.length = chunk.end_offset
        container.objects[name] = LiveObject(
            record, len(placed), sum(chunk.length for _, chunk in placed)
        )
        container.sequence_number += 1
        return name

    def _put(
        self, container: ContainerMetadata, segment: SegmentMetadata, pieces: list[bytes]
    ) -> list[ChunkRecord]:
        builder = ObjectBuilder(container.container_id, EPOCH, EXTENT_BYTES, codec=self.codec)
        # Another segment's block in front, so that no place in an object is that in the segment.
        builder.add(10**6, 0, [b"somebody else's"])
        position = segment.storage_length
        for piece in pieces:
            builder.add(segment.segment_id, position, [piece], segment_name=segment.name)
            position += len(piece)
        unique_id = new_unique_id(self._random)
        name = object_name(container.container_id, EPOCH, "flush", unique_id)
        parts = builder.parts
        self.run(lambda storage: storage.put(name, parts, unique_id))
        record, placed = builder.finish(name, self.now_ms)
        chunks = [chunk for _, chunk in placed[1:]]
        segment.own_chunks().extend(chunks)
        segment.storage_length = position
        container.objects[name] = LiveObject(
            record, len(chunks), sum(chunk.length for chunk in chunks)
        )
        container.sequence_number += 1
        return chunks

    def seal(self, name: str, container_id: int = 0) -> None:
        self.segment(name, container_id).sealed = True
        self._containers[container_id].sequence_number += 1

    def truncate(
        self, name: str, offset: int, container_id: int = 0, *, delete: bool = False
    ) -> None:
        """Move StartOffset; `delete`: with the objects that are not needed any more."""
        container, segment = self._containers[container_id], self.segment(name, container_id)
        segment.start_offset = offset
        container.sequence_number += 1
        self._drop(
            container,
            segment,
            [chunk for chunk in segment.chunks if chunk.end_offset <= offset],
            delete=delete,
        )

    def delete(self, name: str, container_id: int = 0) -> None:
        """The segment and its objects."""
        container, segment = self._containers[container_id], self.segment(name, container_id)
        self._drop(container, segment, list(segment.chunks), delete=True)
        del container.segments[segment.segment_id]
        del container.names[name]
        container.sequence_number += 1

    def rewrite(self, name: str, data: bytes, container_id: int = 0) -> None:
        """All chunks of a segment that begins at 0 become one, as compaction does it; the old
        objects are deleted.
        """
        container, segment = self._containers[container_id], self.segment(name, container_id)
        old = list(segment.chunks)
        assert sum(chunk.length for chunk in old) == len(data)
        segment.storage_length = 0
        segment.chunks = ChunkList()
        self._put(container, segment, [data])
        self._drop(container, segment, old, delete=True)

    def _drop(
        self,
        container: ContainerMetadata,
        segment: SegmentMetadata,
        chunks: list[ChunkRecord],
        *,
        delete: bool,
    ) -> None:
        segment.chunks = ChunkList(chunk for chunk in segment.chunks if chunk not in chunks)
        for chunk in chunks:
            live = container.objects[chunk.object_name]
            live.live_chunks -= 1
            live.live_bytes -= chunk.length
            if not live.live_chunks:
                container.garbage[live.record.name] = GarbageObject(live.record, 0)
                del container.objects[live.record.name]
                if delete:
                    self.delete_object(live.record.name)

    def delete_object(self, name: str) -> None:
        self.run(lambda storage: storage.delete(name))

    def export(self, container_id: int = 0) -> None:
        """A snapshot of one container as it is now."""
        container = self._containers[container_id]
        assert_metadata_valid(container)
        self.run(
            lambda storage: write_snapshot(
                storage,
                Runtime(),
                store_id=self.store_id,
                containers=len(self._containers),
                container_id=container_id,
                epoch=EPOCH,
                time_ms=0,
                metadata=container,
            )
        )


Row = dict[str, object]


def read_batch(
    world: SourceWorld, *, columns: str = "segment,offset,payload", **options: object
) -> list[Row]:
    """What a batch reads, in the order of its partitions, without Spark but through what Spark
    calls.
    """
    source = source_of(world, columns=columns, **options)
    reader = source.reader(source.schema())
    return [row for partition in reader.partitions() for row in rows_of(reader.read(partition))]


def source_of(world: SourceWorld, **options: object) -> SegmentStoreSource:
    given = {"path": world.url, **{name: str(value) for name, value in options.items()}}
    return SegmentStoreSource(given)


def stream_of(world: SourceWorld, **options: object) -> SegmentStreamReader:
    options = {"columns": "segment,offset,payload", **options}
    source = source_of(world, **options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, SegmentStreamReader)
    return reader


def read_stream(
    reader: SegmentStreamReader, start: dict[str, object], end: dict[str, object]
) -> list[Row]:
    """The rows of one batch of a stream."""
    return [
        row
        for partition in reader.partitions(start, end)
        for row in rows_of(reader.read(partition))
    ]


def rows_of(batches: Iterator[pa.RecordBatch] | Iterator[tuple[object, ...]]) -> Iterator[Row]:
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        batch.validate(full=True)
        yield from batch.to_pylist()


def payloads(rows: Sequence[Row]) -> list[object]:
    return [row["payload"] for row in rows]
