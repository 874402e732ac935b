"""Snapshots beside everything else: owners that die in the middle, a restore, the sweep, the
collection of garbage.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation.store_world import StoreWorld
from recovery.tier2_scan import list_bucket
from segmentstore import SegmentStore, SegmentStoreError
from segmentstore.contracts.runtime import Runtime
from storagewriter.orphan_rules import UPLOAD_AGE_MS, is_abandoned
from tests.cli.shell import segmentstore
from tests.store.harness import TINY, open_lazy, run
from tests.store.test_catalog_export import tables_of
from tests.support.suites import share
from tests.tier2.catalog.metadata_maker import STORE_ID
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_snapshots import list_snapshots, manifest_named, newest_snapshots
from tier2.locations import PROCESS_MEMORY
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import (
    SnapshotName,
    manifest_name,
    parse_catalog_name,
    parse_object_name,
    table_name,
)
from tier2.object_storage import ObjectStorageError, UnfinishedUpload
from tier2.unique_ids import new_copy_id, store_tag

RATES = {
    "object.put.failed": 0.05,
    "object.put.lost-reply": 0.05,
    "object.put.twice": 0.05,
    "object.put.late": 0.05,
    "object.delete.failed": 0.05,
    "object.get.truncated": 0.02,
    "object.list.failed": 0.05,
    "object.list.lags": 0.2,
}


# --- a world that goes wrong ----------------------------------------------------------------------


async def live(store: SegmentStore, source: random.Random, steps: int) -> None:
    for step in range(steps):
        try:
            name = f"s{source.randrange(4)}"
            if step % 7 == 0:
                await store.create_segment(name)
            await store.append(name, b"x" * source.randrange(100))
            if step % 11 == 0:
                await store.flush(name)
            if step % 13 == 0:
                await store.export_catalog()
        except SegmentStoreError:
            pass  # There already, or not yet; or Tier 2 is away.
        await asyncio.sleep(source.random() / 10)


def one_process_run(seed: str) -> dict[str, Any]:
    """A store whose owners are killed in the middle of exports; what the bucket holds at the
    end.
    """
    world = StoreWorld(seed, settings={**TINY, "catalog_export_interval_s": 0.3}, rates=RATES)
    rng = random.Random(seed)
    for number in range(3):
        process = world.process(f"owner {number}")

        async def main(process: Any = process) -> None:
            store = await world.open_store(process)
            await live(store, rng, 1000)

        _ = process.start(main())
        end_us = world.time.now_us + rng.randrange(1_000_000, 4_000_000)
        world.run(lambda end_us=end_us: world.time.now_us >= end_us)  # type: ignore[misc]
        world.kill(process)
    reader = world.process("reader")

    async def look() -> int:
        storage = world.object_storage(reader)
        whole = 0
        for each in await retried(lambda: list_snapshots(storage)):
            if each.manifest is None:
                continue
            name = each.manifest.name
            manifest = await retried(lambda name=name: manifest_named(storage, name))
            tables = await retried(lambda manifest=manifest: tables_of(storage, manifest))
            assert tables.segments.num_rows == manifest.tables["segments"].rows
            assert set(tables.chunks["object_name"].to_pylist()) <= set(
                tables.objects["name"].to_pylist()
            )
            whole += 1
        return whole

    whole = world.run_task(reader, look())
    assert whole > 4
    held = {name: there.data for name, there in world.bucket.objects.items()}
    world.close()
    return held


async def retried(call: Any) -> Any:
    for _ in range(50):
        try:
            return await call()
        except (ObjectStorageError, CatalogFormatError):
            # Bodies are cut off here too: reported, and read again.
            await asyncio.sleep(1)
    return await call()


@pytest.mark.parametrize("seed", share(["a", "b"], 2, 3))
def test_owners_that_die_in_the_middle_leave_snapshots_that_are_whole_or_not_there(
    seed: str,
) -> None:
    held = one_process_run(seed)
    assert any(map(parse_catalog_name, held))
    if seed == "a":
        assert held == one_process_run(seed), "the same world goes the same way again"


# --- the others that check of a bucket
# -------------------------------------------------------------


def test_the_sweep_and_the_collection_of_garbage_leave_snapshots_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", tier2=f"memory://{tmp_path.name}") as store:
            await store.create_segment("a")
            await store.append("a", b"x" * 100)
            await store.flush()
            await store.export_catalog()
            report = await store.collect_garbage()
            assert report.items == ()
        names = PROCESS_MEMORY.bucket(tmp_path.name).objects
        assert sum(parse_catalog_name(name) is not None for name in names) == 4

    run(main())


TAG = store_tag(STORE_ID)


def test_an_unfinished_upload_of_a_snapshot_is_aborted_as_others_are() -> None:
    name = SnapshotName(3, 5, 70, new_copy_id(STORE_ID, random.Random(1)))
    upload = UnfinishedUpload(table_name(name, "chunks"), "1", 1000)
    soon, late = 1000 + UPLOAD_AGE_MS, 1001 + UPLOAD_AGE_MS
    assert is_abandoned(upload, 3, 6, (), soon, TAG)
    assert not is_abandoned(upload, 3, 5, (), soon, TAG)
    assert is_abandoned(upload, 3, 5, (), late, TAG)
    assert not is_abandoned(upload, 3, 4, (), late, TAG)
    assert not is_abandoned(upload, 2, 6, (), late, TAG)


def test_a_restore_passes_over_snapshots_and_the_restored_store_exports_behind_them(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    segmentstore("append", store, "a", stdin=b"one\ntwo\n")
    segmentstore("flush", store)
    segmentstore("catalog", "export", store)
    before = segmentstore("catalog", "export", store, "--json").json()["snapshots"][0]
    restored = tmp_path / "restored"
    url = (store / "tier2").as_uri()
    shown = segmentstore("restore", url, restored, "--json")
    assert shown.code == 0, shown.err
    assert shown.json()["foreign_objects"] == 0
    after = segmentstore("catalog", "export", restored, "--json").json()["snapshots"][0]
    assert after["epoch"] > before["epoch"]
    assert after["rows"] == before["rows"]
    rows = segmentstore("catalog", "ls", restored, "--json").json_lines()
    assert rows[-1]["name"] + "manifest.json" == after["manifest"]


def test_the_highest_epoch_of_a_bucket_may_be_a_snapshots() -> None:
    async def main() -> None:
        runtime = Runtime(random=random.Random(2))
        storage = MemoryObjectStorage(runtime)
        name = SnapshotName(0, 44, 70, new_copy_id(STORE_ID, runtime.random))
        await storage.put(manifest_name(name), [b"x"], bytes(range(16)))
        await storage.put(name.prefix + "notes.txt", [b"x"], bytes(range(1, 17)))
        bucket = await list_bucket(storage)
        assert bucket.epoch == 44
        assert bucket.foreign == 1
        assert bucket.is_empty
        assert parse_object_name(manifest_name(name)) is None
        assert await newest_snapshots(MemoryObjectStorage(runtime)) == {}

    run(main())
