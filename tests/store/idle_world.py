"""The metadata of a container with idle segments, changed step by step: no log, no Tier 2.

What the engine does one after another is done by hand here: operations, evictions, activations, and
checkpoints, whose batches are written one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.frozen_metadata import FrozenMetadata
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyPortion, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import load_segments
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    StorageUpdateOperation,
)
from segmentstore.container.segment_scan import SegmentScan
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY

T = TypeVar("T")
Kind = type[MemoryKeyStore] | type[RocksDbKeyStore]
Hook = Callable[[], Awaitable[None]]


class Known(NamedTuple):
    """A segment with a name, as the model has it."""

    name: str
    length: int = 0
    sealed: bool = False


class IdleWorld:
    """One container."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.metadata = ContainerMetadata(IDENTITY.container_id)
        self.updater = MetadataUpdater(self.metadata)
        self.changes = self.updater.changes
        self.changes.begin(self.metadata)
        self.store: KeyStore = kind(str(folder), IDENTITY, Runtime())
        self.known: dict[int, Known] = {}
        """By id."""
        self.frozen: FrozenMetadata | None = None
        self.frozen_at = 0
        self.hook: Hook | None = None
        """Runs before and behind each read of a scan."""
        self.running = True
        self._objects = itertools.count(1)

    async def open(self) -> None:
        await self.store.open()

    def scan(self, prefix: str) -> SegmentScan:
        """As SegmentContainer.scan."""
        catalog = cast("MetadataCatalog", _Catalog(self))
        return SegmentScan(self.metadata, self.changes, catalog, prefix, self.check_running)

    def check_running(self) -> None:
        if not self.running:
            raise InterruptedError

    def one(self, number: int) -> int | None:
        """Some segment with a name."""
        ids = sorted(self.known)
        return ids[number % len(ids)] if ids else None

    # --- operations -------------------------------------------------------------------------------

    def put(self, operation: Operation) -> None:
        if isinstance(operation, AppendOperation):
            operation.sequence_number = self.updater.take_sequence_numbers()
            self.updater.replay(operation)
        else:
            self.updater.accept(operation, 1000 + self.metadata.sequence_number)
            self.updater.commit((operation,))

    def create(self, name: str) -> int:
        self.put(CreateOperation(name))
        self.known[self.metadata.sequence_number] = Known(name)
        return self.metadata.sequence_number

    async def append(self, segment_id: int, size: int) -> None:
        segment = await self.activated(segment_id)
        if not segment.sealed:
            self.put(AppendOperation(segment_id, segment.length, bytes(size)))
            known = self.known[segment_id]
            self.known[segment_id] = known._replace(length=known.length + size)

    async def seal(self, segment_id: int) -> None:
        if not (await self.activated(segment_id)).sealed:
            self.put(SealOperation(segment_id))
            self.known[segment_id] = self.known[segment_id]._replace(sealed=True)

    async def delete(self, segment_id: int) -> None:
        await self.activated(segment_id)
        if segment_id in self.known:
            self.put(DeleteOperation(segment_id))
            del self.known[segment_id]

    async def merge(self, target_id: int, source_id: int) -> None:
        target, source = await self.activated(target_id), await self.activated(source_id)
        if target is source or target.sealed:
            return
        await self.seal(source_id)
        self.put(MergeOperation(target_id, source_id))
        known, gone = self.known[target_id], self.known.pop(source_id)
        self.known[target_id] = known._replace(length=known.length + gone.length)

    def upload(self, chunks_max: int = 3) -> None:
        """All bytes of active segments that can be, and what was merged."""
        record = ObjectRecord(f"{next(self._objects) * 7 % 10}/{next(self._objects)}", 10_000, 5)
        found = []
        for segment in self.metadata.segments.values():
            start = segment.storage_length
            end = segment.own_end(start) if segment.find_merge(start) is None else start
            size = max(1, (end - start) // chunks_max)
            while start < end:
                length = min(size, end - start)
                place = (record.name, start * 9, segment.segment_id, start)
                found.append((segment.segment_id, ChunkRecord(start, length, *place)))
                start += length
        if found:
            self.put(StorageUpdateOperation([record], found))
        while link := self._link():
            self.put(StorageUpdateOperation(links=[link]))

    def _link(self) -> tuple[int, int] | None:
        for target in self.metadata.segments.values():
            for merge in target.merges[:1]:
                source = self.metadata.segments[merge.source_id]
                if (
                    source.storage_length == source.length
                    and not source.merges
                    and (merge.offset == target.storage_length)
                ):
                    return target.segment_id, source.segment_id
        return None

    # --- active and idle --------------------------------------------------------------------------

    async def activated(self, segment_id: int) -> SegmentMetadata:
        """The segment, in memory."""
        segment = self.metadata.segments.get(segment_id)
        if segment is None:
            (segment,) = await load_segments(self.store, [segment_id])
            assert segment is not None
            self.updater.activate(segment)
        return segment

    def evict(self, wanted: Callable[[SegmentMetadata], bool] = lambda _: True) -> int:
        """Have segments leave that may; their number."""
        found = [
            each
            for each in self.metadata.segments.values()
            if self.updater.may_evict(each) and wanted(each)
        ]
        for each in found:
            self.updater.evict(each)
        return len(found)

    # --- checkpoints ------------------------------------------------------------------------------

    def freeze(self) -> None:
        if self.frozen is None:
            self.frozen_at = self.metadata.sequence_number
            self.frozen = self.changes.freeze(CatalogTotals(self.metadata.segment_count))

    async def write_some(self, keys_max: int) -> None:
        """A part of what is frozen, or the end of it."""
        if self.frozen is None:
            return
        batch = self.frozen.encode_some(keys_max)
        if batch is not None:
            await self.store.apply(batch, self.store.sequence_number)
            return
        await self.store.apply(KeyBatch(), self.frozen_at)
        self.frozen = None
        self.changes.written()

    async def checkpoint(self) -> None:
        """All of it."""
        await self.write_all()
        self.freeze()
        await self.write_all()

    async def write_all(self) -> None:
        """What is frozen."""
        while self.frozen is not None:
            await self.write_some(100)


class _Catalog:
    """What a scan sees of the catalog."""

    def __init__(self, world: IdleWorld) -> None:
        self._world = world

    @property
    def store(self) -> KeyStore:
        return cast("KeyStore", _HookedStore(self._world))


class _HookedStore:
    """Reads, between steps of others."""

    def __init__(self, world: IdleWorld) -> None:
        self._world = world

    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        return await self._between(lambda: self._world.store.scan(keys, limit))

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._between(lambda: self._world.store.get(keys))

    async def _between(self, read: Callable[[], Awaitable[T]]) -> T:
        hook = self._world.hook
        if hook is not None:
            await hook()
        found = await read()
        if hook is not None:
            await hook()
        return found
