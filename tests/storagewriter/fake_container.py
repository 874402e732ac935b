"""A container with a real metadata updater and nothing else: the log is a list, bytes are in a
dictionary, and idle segments are in another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from durablelog.metadata_needs import ChunkNeed, chunks_needed, is_known, needs_in_replay
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    OwnersOperation,
    SealOperation,
    TruncateOperation,
    segments_of,
)
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.weighted_gate import WeightedGate
from storagewriter.config import StorageWriterConfig
from storagewriter.storage_writer import StorageWriter
from tests.support.idle_segments import IdleSegments
from tests.support.loop_clock import LoopBoot, LoopClock
from tier2.block_object import parse_block_header
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.unique_ids import store_tag

LOG_LATENCY_S = 0.001
ReadOrRemoved = Sequence[bytes] | SegmentNotFoundError | SegmentTruncatedError
STORE_ID = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
TAG = store_tag(STORE_ID)


def make_config(**changes: Any) -> StorageWriterConfig:
    settings: dict[str, Any] = {
        "flush_bytes": 100,
        "flush_age_s": 10.0,
        "object_bytes": 400,
        "extent_bytes": 16,
        "unflushed_target_bytes": 100_000,
        "upload_bytes_max": 800,
        "deletion_lag_s": 1000.0,
        "mailbox_poll_interval_s": 0.0,
    }
    return StorageWriterConfig(**(settings | changes))


class StorageWithoutCompose(MemoryObjectStorage):
    """As its parent; but where there is no least length of a range it copies nothing itself."""

    def __init__(
        self,
        runtime: Runtime,
        bucket: MemoryBucket | None = None,
        *,
        compose_bytes_min: int | None = None,
    ) -> None:
        super().__init__(runtime, bucket, compose_bytes_min=compose_bytes_min or 1)
        self._offers_compose = compose_bytes_min is not None

    @property
    def compose_bytes_min(self) -> int | None:
        return super().compose_bytes_min if self._offers_compose else None


class LocalStorage(StorageWithoutCompose):
    """As a folder on a disk that the log may share."""

    @property
    def is_local(self) -> bool:
        return True


class FakeContainer:
    """What the writer sees of a container, and what a caller does to it.

    An evicting one has every segment leave memory at once, as soon as nothing keeps it there.
    """

    store_id = STORE_ID
    evicts_by_default = False

    def __init__(
        self,
        config: StorageWriterConfig,
        before: FakeContainer | None = None,
        *,
        storage_type: Callable[..., MemoryObjectStorage] = MemoryObjectStorage,
        evicting: bool | None = None,
        rewrites: WeightedGate | None = None,
    ) -> None:
        if before is None:
            self.runtime = Runtime(
                clock=LoopClock(),
                random=random.Random(1),
                boot=LoopBoot(),
                executor=inline_executor,
            )
            self.epoch = 1
        else:
            self.runtime = before.runtime
            self.epoch = before.epoch + 1
        self.storage_type: Callable[..., MemoryObjectStorage] = (
            before.storage_type if before is not None else storage_type
        )
        self.storage: MemoryObjectStorage = self.storage_type(
            self.runtime, before.storage.bucket if before is not None else None
        )
        if evicting is None:
            evicting = self.evicts_by_default if before is None else before.evicting
        self.evicting: bool = evicting
        self.metadata = ContainerMetadata(7)
        self.log: list[Operation] = []
        self.bytes: dict[int, bytearray] = {}
        self.in_use: set[str] = set()
        self.commit_error: Exception | None = None
        self.read_gate: asyncio.Event | None = None
        self.failures: list[BaseException] = []
        self.advances = self.bytes_read = 0
        self.check_each = True
        """Whether the metadata are checked after every operation, which costs O(everything)."""
        self._updater = MetadataUpdater(self.metadata)
        self.catalog = IdleSegments(self._updater, evicting=evicting)
        self.writer = StorageWriter(
            self,
            self.storage,
            config,
            self.runtime,
            on_failure=self.failures.append,
            on_advance=self._advanced,
            rewrites=rewrites,
        )

    def _advanced(self) -> None:
        self.advances += 1

    # --- WriterDataSource -------------------------------------------------------------------------

    async def read_unflushed(self, ranges: Sequence[tuple[int, int, int]]) -> list[ReadOrRemoved]:
        if self.read_gate is not None:
            await self.read_gate.wait()
        return [self._read_one(*each) for each in ranges]

    def _read_one(self, segment_id: int, offset: int, length: int) -> ReadOrRemoved:
        segment = self.metadata.segments.get(segment_id)
        if segment is None:
            return SegmentNotFoundError(f"#{segment_id}")
        if segment.start_offset > offset:
            return SegmentTruncatedError(segment.name, segment.start_offset)
        data = bytes(self.bytes[segment_id][offset : offset + length])
        self.bytes_read += len(data)
        middle = len(data) // 2
        return [data[:middle], data[middle:]]

    async def commit(self, operation: OwnersOperation) -> None:
        async with self.held(segments_of(operation), chunks_needed(operation)):
            await asyncio.sleep(LOG_LATENCY_S)
            if self.commit_error is not None:
                raise self.commit_error
            self.put(operation)

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:

        return self.catalog.held(ids, chunks)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        return await self.catalog.chunks_in(names)

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        return await self.catalog.names_of(ids)

    async def check_primary(self) -> None:
        if self.commit_error is not None:
            raise self.commit_error

    def object_in_use(self, name: str) -> bool:
        return name in self.in_use or self.writer.in_use(name)

    # --- callers ----------------------------------------------------------------------------------

    def put(self, *operations: Operation) -> None:
        """Commit operations in one batch: the metadata have all of them when the writer sees the
        first.
        """
        for operation in operations:
            for segment_id in segments_of(operation):
                self.catalog.activate(segment_id, whole=False)
            for need in needs_in_replay(self.metadata, (operation,)):
                if not is_known(self.metadata, need):
                    self.catalog.activate(need.segment_id)
            if not operation.sequence_number:
                operation.sequence_number = self.metadata.sequence_number + 1
                operation.timestamp_ms = self.runtime.clock.time_ms()
            self._updater.replay(operation)
            self.log.append(operation)
            if isinstance(operation, AppendOperation):
                assert (
                    len(self.bytes.setdefault(operation.segment_id, bytearray()))
                    == operation.offset
                )
                self.bytes[operation.segment_id] += operation.data
            elif isinstance(operation, MergeOperation):
                source = self.bytes.get(operation.source_id, b"")
                self.bytes.setdefault(operation.target_id, bytearray()).extend(source)
        if self.check_each:
            assert_metadata_valid(self.metadata)
        self.writer.add(operations)
        self.catalog.turn_ended()

    def create(self, name: str) -> int:
        operation = CreateOperation(name)
        self.put(operation)
        return operation.sequence_number

    def append(self, segment_id: int, length: int) -> None:
        offset = self.segment(segment_id).length
        data = bytes((segment_id * 31 + offset + i) % 251 for i in range(length))
        self.put(AppendOperation(segment_id, offset, data))

    def seal(self, segment_id: int) -> None:
        self.put(SealOperation(segment_id, self.segment(segment_id).length))

    def truncate(self, segment_id: int, offset: int, *, in_slices: bool = False) -> None:
        self.put(TruncateOperation(segment_id, offset, in_slices=in_slices))

    def delete(self, segment_id: int, *, in_slices: bool = False) -> None:
        self.put(DeleteOperation(segment_id, in_slices=in_slices))

    def merge(self, target_id: int, source_id: int) -> None:
        self.put(
            MergeOperation(
                target_id, source_id, self.segment(target_id).length, self.segment(source_id).length
            )
        )

    # --- checking
    # ----------------------------------------------------------------------------------

    @property
    def segments(self) -> dict[int, SegmentMetadata]:
        """All of them, active and idle."""
        return self.catalog.all

    @property
    def names(self) -> dict[str, int]:
        """Of all that have one."""
        idle = {segment.name: segment_id for segment_id, segment in self.catalog.table.items()}
        return {**idle, **self.metadata.names}

    def segment(self, segment_id: int) -> SegmentMetadata:
        found = self.metadata.segments.get(segment_id)
        return found if found is not None and found.chunks.whole else self.catalog.one(segment_id)

    @property
    def object_count(self) -> int:
        return len(self.storage.bucket.objects)

    def stored(self, segment_id: int) -> bytes:
        """The bytes [start offset, storage length) as Tier 2 has them."""
        segment = self.segment(segment_id)
        found = bytearray()
        for chunk in segment.chunks:
            data = self.storage.bucket.objects[chunk.object_name].data
            header = parse_block_header(data[chunk.block_offset :])
            block_end = chunk.block_offset + header.block_length
            payload = data[block_end - header.payload_length : block_end]
            first = chunk.block_start_offset - header.start_offset
            assert header.segment_id == chunk.block_segment_id
            assert 0 <= first < first + chunk.length <= len(payload)
            found += payload[first : first + chunk.length]
        return (
            bytes(found[segment.start_offset - segment.chunks.first.start_offset :])
            if segment.chunks
            else b""
        )

    def expected(self, segment_id: int) -> bytes:
        segment = self.segment(segment_id)
        return bytes(self.bytes[segment_id][segment.start_offset : segment.storage_length])

    def check_stored(self) -> None:
        """Every byte that Tier 2 is said to have is there, and right."""
        assert_metadata_valid(self.metadata)
        assert self.metadata.idle == len(self.catalog.table)
        live_bytes = dict.fromkeys(self.metadata.objects, 0)
        for segment_id, segment in self.segments.items():
            for chunk in segment.chunks:
                live_bytes[chunk.object_name] += chunk.length
            if segment.length:
                assert self.stored(segment_id) == self.expected(segment_id), segment
        for segment_id in self.metadata.deleted_ids():
            for chunk in self.segment(segment_id).chunks:
                live_bytes[chunk.object_name] += chunk.length
        assert {name: live.live_bytes for name, live in self.metadata.objects.items()} == live_bytes

    def check_covered(self) -> None:
        """No operation at or above `first_unflushed_sequence` is missing: what is below it is in
        Tier 2 or unwanted.
        """
        first = self.writer.first_unflushed_sequence()
        unflushed = 0
        for operation in self.log:
            if isinstance(operation, AppendOperation) and operation.data:
                segment = self.metadata.segments.get(operation.segment_id)
                end = operation.offset + len(operation.data)
                if segment is not None and end > segment.storage_length:
                    unflushed += end - max(operation.offset, segment.storage_length)
                    assert first is not None, operation
                    assert operation.sequence_number >= first, operation
        assert self.writer.unflushed_bytes == unflushed
        assert (first is None) == (unflushed == 0)

    def check_idle(self) -> None:
        """Every segment has left memory that may."""
        assert self.evicting
        assert not any(segment.flushed for segment in self.metadata.segments.values())

    def restart(self, config: StorageWriterConfig) -> FakeContainer:
        """The next owner: a new container over the same Tier 2, from the log."""
        after = FakeContainer(config, self)
        after.put(*self.log)
        return after


def run(
    body: Callable[[FakeContainer], Coroutine[Any, Any, None]],
    *,
    storage_type: Callable[..., MemoryObjectStorage] = MemoryObjectStorage,
    evicting: bool | None = None,
    rewrites: WeightedGate | None = None,
    **changes: Any,
) -> None:
    """Run a test against a started writer in virtual time; stop it, and check what must always
    hold.
    """

    async def main() -> None:
        container = FakeContainer(
            make_config(**changes),
            storage_type=storage_type,
            evicting=evicting,
            rewrites=rewrites,
        )
        container.writer.start()
        await body(container)
        container.check_stored()
        container.check_covered()
        await container.writer.stop()
        assert not container.failures, container.failures

    run_virtual(main())
