"""Exports out of a container's catalog: the tables are those of the same metadata in memory, to the
byte; and what happens to an export that cannot have them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from durablelog.catalog.catalog_keys import ObjectKey, SegmentIdKey
from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.key_store import KeyBatch, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore import (
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStore,
    TierUnavailableError,
    export_tables,
)
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.export_tables import encode_stored
from tests.contracts.key_store_contract import IDENTITY
from tests.store.harness import open_lazy, open_tiny, run
from tests.store.idle_world import Kind
from tests.support.suites import examples, share
from tests.tier2.catalog.metadata_maker import containers, make_metadata
from tier2.catalog.catalog_snapshots import EncodedTable, encode_tables
from tier2.catalog.catalog_tables import build_tables
from tier2.memory_object_storage import MemoryObjectStorage

FEW: dict[str, Any] = {"containers": 1, "active_segments_max": 8}

both = pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])


async def stored(folder: Path, kind: Kind, metadata: ContainerMetadata) -> KeyStore:
    """A catalog that has the metadata."""
    store = kind(str(folder), IDENTITY, Runtime())
    await store.open()
    changes = MetadataChanges()
    changes.begin(metadata)
    frozen = changes.freeze(CatalogTotals(metadata.segment_count))
    while (batch := frozen.encode_some(50)) is not None:
        await store.apply(batch, metadata.sequence_number)
    return store


async def exported(store: KeyStore) -> dict[str, EncodedTable]:
    snapshot = await store.snapshot()
    with ThreadPoolExecutor(1) as executor:
        try:
            return await encode_stored(snapshot, IDENTITY.container_id, executor)
        finally:
            await snapshot.close()


@both
def test_a_catalog_makes_the_tables_of_the_same_metadata_in_memory(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 2)
    monkeypatch.setattr(
        export_tables,
        "_TABLES",
        [(keys, 1 + number, add) for number, (keys, _, add) in enumerate(export_tables._TABLES)],
    )

    async def check(metadata: ContainerMetadata, folder: Path) -> None:
        store = await stored(folder, kind, metadata)
        assert await exported(store) == encode_tables(build_tables(metadata))
        await store.close()

    @settings(deadline=None, max_examples=examples(60 if kind is MemoryKeyStore else 10))
    @given(containers())
    def each(metadata: ContainerMetadata) -> None:
        folder = Path(tempfile.mkdtemp(prefix="export-"))
        try:
            asyncio.run(check(metadata, folder))
        finally:
            shutil.rmtree(folder)

    each()


def test_what_is_written_beside_an_export_does_not_show_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = make_metadata(random.Random(4), segments=20, chunks_max=9, objects=30, garbage=4)
        expected = encode_tables(build_tables(metadata))
        store = await stored(tmp_path / "keys", RocksDbKeyStore, metadata)
        snapshot = await store.snapshot()
        lost = KeyBatch()
        for segment_id in metadata.segments:
            lost.delete(SegmentIdKey(segment_id).encode())
        await store.apply(lost, metadata.sequence_number + 1)
        with ThreadPoolExecutor(1) as executor:
            assert await encode_stored(snapshot, 3, executor) == expected
        await snapshot.close()
        await store.close()

    run(main())


@both
@pytest.mark.parametrize("damage", ["no object", "no segment", "a segment", "other counts"])
def test_a_damaged_catalog_is_named(tmp_path: Path, kind: Kind, damage: str) -> None:
    async def main() -> None:
        metadata = make_metadata(random.Random(4), segments=9, chunks_max=5, objects=5)
        store = await stored(tmp_path / "keys", kind, metadata)
        live = next(iter(metadata.objects.values()))
        owner = next(each for each in metadata.segments.values() if each.chunks)
        changed = KeyBatch()
        if damage == "no object":
            changed.delete(ObjectKey(live.record.name).encode())
        elif damage == "no segment":
            changed.delete(SegmentIdKey(owner.segment_id).encode())
        elif damage == "a segment":
            changed.put(SegmentIdKey(owner.segment_id).encode(), b"no record")
        else:
            # Of two that count one chunk more and one less, the sum is right.
            first, second = list(metadata.objects.values())[:2]
            first.live_chunks += 1
            second.live_chunks -= 1
            changes = MetadataChanges()
            changes.begin(metadata)
            frozen = changes.freeze(CatalogTotals(metadata.segment_count))
            while (batch := frozen.encode_some(50)) is not None:
                await store.apply(batch, metadata.sequence_number)
        await store.apply(changed, metadata.sequence_number)
        with pytest.raises(DataCorruptionError, match="container 3, catalog: "):
            await exported(store)
        await store.close()

    run(main())


def test_a_store_that_is_closed_meanwhile_is_no_damage(tmp_path: Path) -> None:
    async def main() -> None:
        store = await stored(tmp_path / "keys", MemoryKeyStore, ContainerMetadata(3))
        snapshot = await store.snapshot()
        await store.close()
        with (
            ThreadPoolExecutor(1) as executor,
            pytest.raises(TierUnavailableError, match="container 3, catalog"),
        ):
            await encode_stored(snapshot, 3, executor)

    run(main())


# --- of a store -----------------------------------------------------------------------------------


async def filled(store: SegmentStore) -> None:
    for number in range(30):
        await store.create_segment(f"s{number}")
        await store.append(f"s{number}", b"x" * number)
    await store.flush()
    await store.checkpoint()


def test_an_export_leaves_idle_segments_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await filled(store)
            (container,) = store._containers
            before = container._active.statistics().activations
            (done,) = await store.export_catalog()
            assert done.rows["segments"] == 30
            assert container.metadata.idle > 20
            assert container._active.statistics().activations == before

    run(main())


def test_an_export_needs_no_snapshot_in_tier_2_but_the_next_one_waits_for_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        settings = {**FEW, "tier2": f"memory://{tmp_path.name}"}
        async with open_lazy(tmp_path / "s", **settings) as store:
            await filled(store)
            storage = store._parts.storage
            assert isinstance(storage, MemoryObjectStorage)
            storage.fail("put", 1000)
            with pytest.raises(TierUnavailableError, match=r"catalog/.* made to fail"):
                await store.export_catalog()
            with pytest.raises(TierUnavailableError, match="container 0 writes no checkpoint"):
                await store.export_catalog()
            storage.heal()
            (done,) = await store.export_catalog()
            assert done.rows["segments"] == 30

    run(main())


@pytest.mark.parametrize("turns", share(range(0, 60, 4), 3, 0.5))
def test_a_container_that_stops_ends_an_export(tmp_path: Path, turns: int) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await filled(store)
            exporting = asyncio.create_task(store.export_catalog())
            for _ in range(turns):
                await asyncio.sleep(0)
            await store._containers[0].stop()
            await asyncio.wait((exporting,))
            if exporting.exception() is not None:
                assert isinstance(exporting.exception(), ContainerStoppedError)

    run(main())
