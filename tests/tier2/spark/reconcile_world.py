"""A store's Tier 2 in a folder, without an engine: objects whose blocks are shared by segments, and
its catalog.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from random import Random

import pyarrow as pa

from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import GarbageObject, LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.support.chunk_edits import edited_chunks
from tier2.block_object import encode_block, parse_block_header
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import write_snapshot
from tier2.catalog.catalog_tables import build_tables
from tier2.checkpoint_object import encode_checkpoint_object
from tier2.object_builder import ObjectBuilder
from tier2.object_names import checkpoint_name, marker_name, object_name
from tier2.spark.common.storages import with_storage
from tier2.store_markers import marker_text
from tier2.unique_ids import new_copy_id, new_tagged_id, store_tag

STORE_ID = str(uuid.UUID(int=0x1234))
EPOCH = 3
PAYLOAD = bytes(range(256)) * 40
SEGMENTS = (7, 8, 9)
DAY_S = 24 * 3600


class World:
    """Containers 0 to n of one store.

    Each object holds a block of each segment of its container.
    """

    def __init__(
        self, folder: Path, *, containers: int = 2, objects: int = 12, seed: int = 1
    ) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.runtime = Runtime()
        self.now_ms = self.runtime.clock.time_ms()
        self.metadata: dict[int, ContainerMetadata] = {}
        folder.mkdir(parents=True)
        for number in range(containers):
            self._fill(number, objects)
        for number in range(containers):
            self.copy(number)
        self.put(marker_name(STORE_ID), marker_text(marker_name(STORE_ID)))

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def _fill(self, container_id: int, objects: int) -> None:
        metadata = self.metadata[container_id] = ContainerMetadata(container_id)
        metadata.sequence_number = 99
        for segment_id in SEGMENTS:
            segment = metadata.segments[segment_id] = SegmentMetadata(
                segment_id, f"segment/{segment_id}", 1
            )
            metadata.names[segment.name] = segment_id
            segment.length = segment.storage_length = objects * len(PAYLOAD)
        for number in range(objects):
            self.add_object(container_id, number * len(PAYLOAD))

    def add_object(self, container_id: int, start: int) -> str:
        """An object, live, with the bytes of each segment from `start` on."""
        metadata = self.metadata[container_id]
        name = self.new_name(container_id)
        builder = ObjectBuilder(container_id, EPOCH, 1024)
        for segment_id in SEGMENTS:
            builder.add(segment_id, start, [PAYLOAD], segment_name=f"segment/{segment_id}")
        record, chunks = builder.finish(name, self.now_ms)
        for segment_id, chunk in chunks:
            metadata.segments[segment_id].own_chunks().append(chunk)
        metadata.objects[name] = LiveObject(record, len(SEGMENTS), len(SEGMENTS) * len(PAYLOAD))
        self.put(name, b"".join(builder.parts))
        return name

    def copy(
        self,
        container_id: int,
        *,
        epoch: int = EPOCH,
        store_id: str = STORE_ID,
        blob: bytes = b"metadata",
    ) -> str:
        """Put a copy of the container's metadata."""
        metadata = self.metadata[container_id]
        metadata.sequence_number += 1
        owner, sequence_number = uuid.UUID(store_id), metadata.sequence_number
        parts = encode_checkpoint_object(
            store_id=owner,
            containers=len(self.metadata),
            container_id=container_id,
            epoch=epoch,
            sequence_number=sequence_number,
            time_ms=self.now_ms,
            blob=blob,
        )
        name = checkpoint_name(
            container_id, epoch, sequence_number, new_copy_id(owner, self.random)
        )
        return self.put(name, b"".join(parts))

    def new_name(self, container_id: int, epoch: int = EPOCH) -> str:
        return object_name(
            container_id, epoch, "flush", new_tagged_id(store_tag(STORE_ID), self.random)
        )

    def put(self, name: str, data: bytes, age_s: float = 0) -> str:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        moment = self.now_ms / 1000 - age_s
        os.utime(path, (moment, moment))
        return name

    def path(self, name: str) -> Path:
        return self.folder / name

    def names(self, container_id: int = 0) -> list[str]:
        return sorted(self.metadata[container_id].objects)

    def chunks_of(self, container_id: int, name: str) -> list[tuple[int, ChunkRecord]]:
        return [
            (segment.segment_id, chunk)
            for segment in self.metadata[container_id].segments.values()
            for chunk in segment.chunks
            if chunk.object_name == name
        ]

    def snapshot(self, *, stopped: bool = False) -> dict[int, Manifest]:
        """The catalog as it is now, newer than all before.

        `stopped`: exported while no process had the store open.
        """
        return {number: self.export(number, stopped=stopped) for number in self.metadata}

    def export(self, number: int, epoch: int = EPOCH, *, stopped: bool = False) -> Manifest:
        metadata = self.metadata[number]
        metadata.sequence_number += 1
        self._count(metadata)
        return with_storage(
            self.url,
            lambda storage: write_snapshot(
                storage,
                self.runtime,
                store_id=STORE_ID,
                containers=len(self.metadata),
                container_id=number,
                epoch=epoch,
                time_ms=self.now_ms,
                metadata=metadata,
                stopped=stopped,
            ),
        )

    def objects(self, number: int = 0) -> pa.Table:
        """The table of a snapshot taken now."""
        self._count(self.metadata[number])
        return build_tables(self.metadata[number]).objects

    def _count(self, metadata: ContainerMetadata) -> None:
        for live in metadata.objects.values():
            live.live_chunks = live.live_bytes = 0
        for segment in metadata.segments.values():
            for chunk in segment.chunks:
                metadata.objects[chunk.object_name].live_chunks += 1
                metadata.objects[chunk.object_name].live_bytes += chunk.length

    # --- what may be wrong ------------------------------------------------------------------------

    def lose(self, name: str) -> None:
        self.path(name).unlink()

    def lengthen(self, name: str) -> None:
        self.path(name).write_bytes(self.path(name).read_bytes() + b"x")

    def cut(self, name: str, length: int) -> None:
        self.path(name).write_bytes(self.path(name).read_bytes()[:length])

    def flip(self, name: str, position: int) -> None:
        data = bytearray(self.path(name).read_bytes())
        data[position] ^= 0x10
        self.path(name).write_bytes(data)

    def make_unreadable(self, name: str, position: int = 0) -> None:
        data = bytearray(self.path(name).read_bytes())
        data[position : position + 8] = b"no block"
        self.path(name).write_bytes(data)

    def mistake(self, name: str, **wrong: int) -> None:
        """The first block says that it is of another segment (or other fields), and is whole."""
        data = self.path(name).read_bytes()
        header = parse_block_header(data)
        fields = {
            field: getattr(header, field)
            for field in ("container_id", "epoch", "segment_id", "start_offset", "extent_bytes")
        }
        payload = data[header.prefix_length : header.block_length]
        block = b"".join(
            encode_block(**(fields | wrong), parts=[payload], segment_name=header.segment_name)
        )
        assert len(block) == header.block_length
        self.path(name).write_bytes(block + data[header.block_length :])

    def orphan(
        self, container_id: int, *, epoch: int = EPOCH - 1, age_s: float = 10 * DAY_S
    ) -> str:
        return self.put(self.new_name(container_id, epoch), b"somebody's", age_s)

    def garbage(self, container_id: int) -> str:
        name = self.put(self.new_name(container_id), b"once")
        record = ObjectRecord(name, 4, self.now_ms)
        self.metadata[container_id].garbage[name] = GarbageObject(record, self.now_ms)
        return name

    def forget(self, container_id: int, name: str) -> None:
        """The object becomes garbage: nothing refers to it any more."""
        metadata = self.metadata[container_id]
        live = metadata.objects.pop(name)
        for segment in metadata.segments.values():
            left = [chunk for chunk in segment.chunks if chunk.object_name != name]
            segment.chunks = ChunkList(left)
        metadata.garbage[name] = GarbageObject(live.record, self.now_ms)

    def drop_chunk(self, container_id: int, segment_id: int, index: int) -> ChunkRecord:
        """A gap: the catalog lacks a chunk. Its object is as it was."""
        with edited_chunks(self.metadata[container_id].segments[segment_id]) as chunks:
            return chunks.pop(index)

    def lengthen_chunk(
        self, container_id: int, segment_id: int, index: int, by: int = -10
    ) -> ChunkRecord:
        """An overlap: a chunk begins before the one in front of it ends."""
        with edited_chunks(self.metadata[container_id].segments[segment_id]) as chunks:
            chunks[index] = chunks[index]._replace(
                start_offset=chunks[index].start_offset + by, length=chunks[index].length - by
            )
            return chunks[index]
