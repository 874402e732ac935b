"""A catalog with a segment of each kind, for tests that damage it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.key_store import KeyBatch, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import load_attributes, load_pages, load_segments
from durablelog.metadata_needs import ALL_CHUNKS
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    MergeOperation,
    Operation,
    SealOperation,
    StorageUpdateOperation,
)
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.operations_machine import updates_of

Kind: TypeAlias = type[MemoryKeyStore] | type[RocksDbKeyStore]

OBJECTS = ("one", "two")


class Sample(NamedTuple):
    store: KeyStore
    metadata: ContainerMetadata
    long: int
    """Id of a segment of seven chunks, by turns in both objects, and five attributes: flushed."""
    small: int
    """Of one with a chunk, and an attribute: flushed."""
    empty: int
    """Of one with nothing: flushed."""
    fresh: int
    """Of one with bytes in the log alone."""
    target: int
    """Of one that the source is merged into, without being linked."""
    source: int


async def opened(kind: Kind, folder: Path, runtime: Runtime | None = None) -> KeyStore:
    store = kind(str(folder), IDENTITY, runtime or Runtime())
    await store.open()
    return store


async def filled(kind: Kind, folder: Path, runtime: Runtime | None = None) -> Sample:
    """A catalog of the metadata, which are all in memory, too."""
    metadata = ContainerMetadata(IDENTITY.container_id)
    updater = MetadataUpdater(metadata)

    def put(operation: Operation) -> int:
        if isinstance(operation, AppendOperation):
            operation.sequence_number = updater.take_sequence_numbers()
            updater.replay(operation)
        else:
            updater.accept(operation, 1000)
            updater.commit((operation,))
        return operation.sequence_number

    long = put(CreateOperation("long", updates=updates_of({key: key for key in range(5)})))
    small = put(CreateOperation("small", updates=updates_of({7: 7})))
    empty = put(CreateOperation("empty"))
    for segment_id, length in ((long, 70), (small, 10)):
        put(AppendOperation(segment_id, 0, bytes(length)))
    chunks = [
        (long, ChunkRecord(start, 10, OBJECTS[start // 10 % 2], start, long, start))
        for start in range(0, 70, 10)
    ]
    chunks.append((small, ChunkRecord(0, 10, OBJECTS[0], 500, small, 0)))
    put(StorageUpdateOperation([ObjectRecord(name, 1000, 1) for name in OBJECTS], chunks))
    fresh, target, source = (put(CreateOperation(name)) for name in ("fresh", "target", "source"))
    for segment_id in (fresh, target, source):
        put(AppendOperation(segment_id, 0, bytes(20)))
    put(SealOperation(source))
    put(MergeOperation(target, source))
    assert_metadata_valid(metadata)
    store = await opened(kind, folder, runtime)
    await written(store, metadata, updater)
    return Sample(store, metadata, long, small, empty, fresh, target, source)


async def written(store: KeyStore, metadata: ContainerMetadata, updater: MetadataUpdater) -> None:
    """All of the metadata, into an empty store."""
    updater.changes.begin(metadata)
    frozen = updater.changes.freeze(CatalogTotals(metadata.segment_count))
    while (batch := frozen.encode_some(50)) is not None:
        await store.apply(batch, store.sequence_number)
    await store.apply(KeyBatch(), metadata.sequence_number)
    updater.changes.written()


async def changed(store: KeyStore, changes: dict[bytes, bytes | None]) -> None:
    """Put what is not None, and delete the other keys."""
    batch = KeyBatch()
    for key, value in changes.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    await store.apply(batch, store.sequence_number)


async def loaded(store: KeyStore, segment_id: int, metadata: ContainerMetadata) -> SegmentMetadata:
    """A segment that the catalog has."""
    (segment,) = await load_segments(store, [segment_id], metadata.objects)
    assert segment is not None
    return segment


async def learn_chunks(
    store: KeyStore,
    segment: SegmentMetadata,
    objects: Mapping[str, LiveObject] | None = None,
    start: int = 0,
    end: int = ALL_CHUNKS,
) -> None:
    """Have memory know the chunks of a stretch, as its callers have it; raises as they find it."""
    gaps = [(segment.segment_id, *gap) for gap in segment.chunks.gaps(start, end)]
    async for pages in load_pages(store, gaps, objects):
        for segment_id, key, chunks in pages:
            assert segment_id == segment.segment_id
            segment.chunks.learn(key, chunks)


async def learn_attributes(
    store: KeyStore, segment: SegmentMetadata, keys: Iterable[AttributeKey]
) -> None:
    """The same of attributes."""
    wanted = [key for key in keys if not segment.attributes.knows(key)]
    values = await load_attributes(store, [(segment.segment_id, key) for key in wanted])
    segment.attributes.learn(dict(zip(wanted, values, strict=True)))
