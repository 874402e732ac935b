"""A container around a read index: committed metadata, a log, Tier 2, and plain bytearrays as the
truth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from readindex.cache_addresses import CacheAddresses
from readindex.config import ReadIndexConfig
from readindex.extent import LogPlaces
from readindex.memory_cache import MemoryCache
from readindex.read_index import ReadIndex
from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectNotFoundError, StorageUnavailableError

TINY = ReadIndexConfig(
    small_bytes=6,
    block_bytes=16,
    tail_bytes_max=64,
    cache_bytes_max=100,
    spill_batch_bytes=32,
    random_bytes=8,
    piece_bytes=32,
    get_bytes_max=96,
    read_ahead_bytes_max=256,
    fetched_bytes_max=320,
    fetches_in_flight_max=4,
    stream_idle_s=1.0,
    turn_bytes=64,
)


class Appended(NamedTuple):
    """A committed append."""

    segment_id: int
    offset: int
    data: Buffer
    places: LogPlaces = ()


class ObjectSource:
    """A BlockSource over objects in memory, with faults and a gate to hold reads at."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads: list[tuple[str, int, int]] = []
        self.unavailable = 0
        """So many of the next reads fail."""
        self.gate: asyncio.Event | None = None
        self.latency_s = 0.001
        self._names = 0

    def put(self, payload: bytes) -> str:
        self._names += 1
        name = f"object-{self._names}"
        self.objects[name] = payload
        return name

    async def read(self, chunk: ChunkRecord, offset: int, length: int) -> bytes:
        assert chunk.start_offset <= offset < offset + length <= chunk.end_offset
        self.reads.append((chunk.object_name, offset, length))
        await asyncio.sleep(self.latency_s)
        if self.gate is not None:
            await self.gate.wait()
        if self.unavailable:
            self.unavailable -= 1
            raise StorageUnavailableError(chunk.object_name, "not now")
        payload = self.objects.get(chunk.object_name)
        if payload is None:
            raise ObjectNotFoundError(chunk.object_name, "gone")
        begin = offset - chunk.start_offset
        return payload[begin : begin + length]


class SlowCache(MemoryCache):
    """Memory that takes its time, as a disk does: before it does what it is asked, and before it
    says so.
    """

    latency_s = 0.0

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        await asyncio.sleep(self.latency_s)
        kept = await super().insert(blocks)
        await asyncio.sleep(self.latency_s)
        return kept

    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        await asyncio.sleep(self.latency_s)
        found = await super().get(addresses)
        await asyncio.sleep(self.latency_s)
        return found


class World:
    """Changes metadata as the updater would, then notifies the index.

    Made and used on a running loop.
    """

    def __init__(self, config: ReadIndexConfig = TINY, cache: MemoryCache | None = None) -> None:
        self.metadata = ContainerMetadata(7)
        self.source = ObjectSource()
        self.cache = cache or MemoryCache(config.cache_bytes_max + 20)
        self.truth: dict[int, bytearray] = {}
        self.log: list[tuple[int, int, bytes]] = []
        self.refills = 0
        self.log_lost = False
        self.logged = bytearray()
        """What lies in the log, by place."""
        self.log_cut = 0
        """Below this place the log is truncated."""
        self.asked: list[tuple[int, int, int]] = []
        """What was read by place."""
        self.index = ReadIndex(
            self.metadata,
            self.cache,
            CacheAddresses(),
            self.source,
            self.refill,
            config,
            Runtime(random=random.Random(1), executor=inline_executor),
            read_log=self.read_log,
        )

    async def open(self) -> World:
        await self.cache.open()
        return self

    def segment(self, segment_id: int) -> SegmentMetadata:
        return self.metadata.segments[segment_id]

    async def refill(self, wanted: Mapping[int, int]) -> None:
        assert wanted
        self.refills += 1
        for logged_id, offset, data in [] if self.log_lost else list(self.log):
            await asyncio.sleep(0)
            missing = self.index.missing_ranges(logged_id)
            if any(start < offset + len(data) and offset < end for start, end in missing):
                self.index.insert_refilled(logged_id, offset, data)

    async def read_log(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes | None]:
        self.asked += ranges
        await asyncio.sleep(0.001)
        found = [
            bytes(self.logged[address : address + length]) if address >= self.log_cut else b""
            for address, length, _ in ranges
        ]
        return [
            data if len(data) == length and crc32c(data) == checksum else None
            for data, (_, length, checksum) in zip(found, ranges, strict=True)
        ]

    async def unflushed(self, segment_id: int, offset: int, length: int) -> bytes:
        """What an upload of this range is given; raises what stands in its place."""
        (read,) = await self.index.read_unflushed([(segment_id, offset, length)])
        if isinstance(read, Exception):
            raise read
        return b"".join(read)

    def create(self) -> int:
        self.metadata.sequence_number += 1
        segment_id = self.metadata.sequence_number
        name = f"s{segment_id}"
        self.metadata.segments[segment_id] = SegmentMetadata(segment_id, name, 0)
        self.metadata.names[name] = segment_id
        self.truth[segment_id] = bytearray()
        return segment_id

    def append(
        self, segment_id: int, data: bytes, *, replayed: bool = False, placed: bool = False
    ) -> None:
        """`placed`: live, and the index knows its places in the log: two frames, if it is long."""
        segment = self.segment(segment_id)
        offset = segment.length
        segment.length += len(data)
        self.truth[segment_id] += data
        self.log.append((segment_id, offset, data))
        places = [(len(self.logged), len(data))]
        if placed and len(data) > 20:
            places = [(len(self.logged), 11), (len(self.logged) + 13, len(data) - 11)]
            self.logged += data[:11] + b"||"
        self.logged += data[-places[-1][1] :] if data else b""
        if replayed:
            # As replay does: a view, which the index must not keep.
            with memoryview(bytearray(data)) as view:
                self.index.append([Appended(segment_id, offset, view, places)], replayed=True)
        else:
            self.index.append([Appended(segment_id, offset, data, places if placed else ())])

    def flush(self, segment_id: int, length: int | None = None) -> None:
        segment = self.segment(segment_id)
        start = max(segment.storage_length, segment.start_offset)
        end = segment.merges[0].offset if segment.merges else segment.length
        end = end if length is None else min(end, start + length)
        if start >= end:
            return
        if start > segment.storage_length:
            segment.chunks = ChunkList()
        name = self.source.put(bytes(self.truth[segment_id][start:end]))
        segment.own_chunks().append(ChunkRecord(start, end - start, name, 0, segment_id, start))
        segment.storage_length = end
        self.index.storage_advanced(segment_id)

    def truncate(self, segment_id: int, offset: int) -> None:
        segment = self.segment(segment_id)
        segment.start_offset = max(offset, segment.start_offset)
        for chunk in segment.chunks.remove_below(segment.start_offset):
            del self.source.objects[chunk.object_name]
        passed = [merge for merge in segment.merges if merge.end_offset <= segment.start_offset]
        segment.drop_merges(len(passed))
        for merge in passed:
            self._remove(merge.source_id)
        self.index.truncated(segment_id)

    def seal(self, segment_id: int) -> None:
        self.segment(segment_id).sealed = True
        self.index.sealed(segment_id)

    def merge(self, target_id: int, source_id: int) -> None:
        target, source = self.segment(target_id), self.segment(source_id)
        source.sealed = True
        source.merged_into = target_id
        del self.metadata.names[source.name]
        if source.length:
            target.add_merge(MergeRecord(target.length, source.length, source_id))
        else:
            del self.metadata.segments[source_id]
        target.length += source.length
        self.truth[target_id] += self.truth[source_id]
        self.index.merged(target_id, source_id)

    def can_link(self, target_id: int) -> bool:
        target = self.segment(target_id)
        if not target.merges:
            return False
        merge = target.merges[0]
        source = self.segment(merge.source_id)
        reached = max(target.storage_length, target.start_offset) >= merge.offset
        return reached and source.storage_length == source.length and not source.merges

    def link(self, target_id: int) -> None:
        """All that can be, by one operation."""
        linked = []
        while self.can_link(target_id):
            linked.append(self._link(target_id))
        for source_id in linked:
            self.index.merge_linked(target_id, source_id)

    def _link(self, target_id: int) -> int:
        target = self.segment(target_id)
        merge = next(iter(target.merges))
        target.drop_merges(1)
        source = self.metadata.segments.pop(merge.source_id)
        if merge.offset > target.storage_length:
            target.chunks = ChunkList()
        for chunk in source.chunks:
            moved = chunk._replace(start_offset=chunk.start_offset + merge.offset)
            if moved.end_offset > target.start_offset:
                target.own_chunks().append(moved)
        target.storage_length = merge.end_offset
        return merge.source_id

    def consolidate(self, segment_id: int) -> None:
        segment = self.segment(segment_id)
        if not segment.chunks:
            return
        start, end = segment.chunks.first.start_offset, segment.chunks.last.end_offset
        for chunk in segment.chunks:
            self.source.objects.pop(chunk.object_name, None)
        name = self.source.put(bytes(self.truth[segment_id][start:end]))
        segment.chunks = ChunkList([ChunkRecord(start, end - start, name, 0, segment_id, start)])
        self.index.replaced(segment_id)

    def delete(self, segment_id: int) -> None:
        self._remove(segment_id)
        self.index.deleted(segment_id)

    def _remove(self, segment_id: int) -> None:
        segment = self.metadata.segments.pop(segment_id)
        self.metadata.names.pop(segment.name, None)
        for merge in segment.merges:
            self._remove(merge.source_id)
        for chunk in segment.chunks:
            self.source.objects.pop(chunk.object_name, None)
