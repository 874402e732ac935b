"""Collecting garbage of a whole store at once, and stores that share a place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore, TierUnavailableError
from segmentstore.contracts.reports import GarbageReport
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.store_adapters import DefaultAdapters
from tests.store.harness import TINY, open_lazy, read_all, run
from tier2.locations import PROCESS_MEMORY
from tier2.memory_object_storage import MemoryBucket, MemoryObject, MemoryObjectStorage
from tier2.object_names import marker_name, object_name, parse_marker_name, parse_object_name
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import new_tagged_id, store_tag

RNG = random.Random(1)
QUIET: Mapping[str, Any] = {"orphan_sweep_interval_s": 0.0, "deletion_lag_s": 3600.0}


def plant(bucket: MemoryBucket, epoch: int, container_id: int = 0, size: int = 10) -> str:
    """An object of the kind that a crash leaves, of a store that has its marker there."""
    marker = next(name for name in bucket.objects if parse_marker_name(name))
    tag = store_tag(marker.removeprefix("stores/"))
    name = object_name(container_id, epoch, "flush", new_tagged_id(tag, RNG))
    bucket.objects[name] = MemoryObject(b"x" * size, bytes(16), 1)
    return name


def states(report: GarbageReport) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in report.items:
        found.setdefault(item.state, []).append(item.name)
    return found


def objects_of(bucket: MemoryBucket) -> set[str]:
    """Flushed bytes: no markers, no checkpoints."""
    return {name for name in bucket.objects if parse_object_name(name) is not None}


@pytest.fixture
def bucket(tmp_path: Path) -> MemoryBucket:
    return PROCESS_MEMORY.bucket(tmp_path.name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


async def filled(store: SegmentStore, *names: str) -> None:
    for name in names:
        await store.create_segment(name)
        await store.append(name, name.encode() * 50)
    await store.flush()


def test_orphans_wait_for_the_lag_and_are_deleted_by_a_later_collection(
    tmp_path: Path, url: str, bucket: MemoryBucket
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", tier2=url, containers=2, **QUIET) as store:
            await filled(store, "a", "b", "c")
        async with open_lazy(tmp_path / "s", **QUIET) as store:
            live = objects_of(bucket)
            orphans = [plant(bucket, 1, container_id) for container_id in (0, 0, 1)]
            others = [plant(bucket, 1, container_id=2), "somebody/else"]
            bucket.objects[others[1]] = MemoryObject(b"x", bytes(16), 1)
            report = await store.collect_garbage()
            assert {state: sorted(names) for state, names in states(report).items()} == {
                "waiting": sorted(orphans)
            }
            assert (
                report.count("waiting"),
                report.size("waiting"),
                report.count(),
                report.problems,
            ) == (3, 30, 3, ())
            assert all(item.until is not None for item in report.items)
            assert objects_of(bucket) == {*live, *orphans, others[0]}
        async with open_lazy(tmp_path / "s", **{**QUIET, "deletion_lag_s": 0.0}) as store:
            report = await store.collect_garbage()
            assert objects_of(bucket) == {*live, others[0]}
            assert others[1] in bucket.objects
            assert (await store.collect_garbage()).items == ()
            for name in ("a", "b", "c"):
                assert await read_all(store, name) == name.encode() * 50

    run(main())


def test_what_is_due_is_deleted_and_reported(
    tmp_path: Path, url: str, bucket: MemoryBucket
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", tier2=url, **QUIET) as store:
            await filled(store, "a")
            gone = objects_of(bucket)
            await store.delete("a")
            await store.flush()
            assert (await store.collect_garbage()).count("waiting") == len(gone)
        async with open_lazy(tmp_path / "s", **{**QUIET, "deletion_lag_s": 1.0}) as store:
            await asyncio.sleep(1.1)
            report = await store.collect_garbage()
            assert report.count("waiting", "due") == 0
            assert not objects_of(bucket)
            assert set(states(report).get("deleted", [])) <= gone

    run(main())


def test_a_tier2_that_does_not_answer_is_said(tmp_path: Path, bucket: MemoryBucket) -> None:
    class Away(DefaultAdapters):
        def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
            return storage

    storage = MemoryObjectStorage(Runtime(), bucket)

    async def main() -> None:
        options = {**TINY, **QUIET, "deletion_lag_s": 0.0, "flush_age_s": 1000.0}
        parts = await open_store(str(tmp_path / "s"), options, {}, Runtime(), Away())
        async with SegmentStore(parts) as store:
            await filled(store, "a")
            live = objects_of(bucket)
            storage.fail("list", 1)
            with pytest.raises(TierUnavailableError):
                await store.collect_garbage()
            plant(bucket, 0)
            storage.fail("delete", 10**9)
            report = await store.collect_garbage()
            assert report.count("due") == 1
            assert "made to fail" in report.problems[0]
            storage.heal()
            assert not (await store.collect_garbage()).problems
            assert objects_of(bucket) == live

    run(main())


# --- stores that share a place --------------------------------------------------------------------


def test_stores_that_share_a_place_leave_each_others_objects_alone(
    tmp_path: Path, url: str, bucket: MemoryBucket
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "one", tier2=url, **QUIET) as one:
            await filled(one, "a")
            async with open_lazy(tmp_path / "two", tier2=url, shared_tier2=True, **QUIET) as two:
                await filled(two, "b")
                plant(bucket, 1)
                before = set(bucket.objects)
                # The first one knows nothing of sharing.
                report = await one.collect_garbage()
                assert report.items == ()
                assert "also has objects of store" in report.problems[0]
                stats: Any = one.stats()
                assert stats["containers"][0]["sweep_stopped_by"] in report.problems[0]
                report = await two.collect_garbage()
                assert report.items == ()
                assert not any(
                    "also has objects of store" in problem for problem in report.problems
                )
                stats = two.stats()
                assert stats["containers"][0]["sweep_stopped_by"] is None
                assert set(bucket.objects) == before
                assert await read_all(one, "a") == b"a" * 50
                assert await read_all(two, "b") == b"b" * 50

    run(main())


def test_a_store_makes_itself_known_before_its_first_object(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    class Away(DefaultAdapters):
        def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
            return MemoryObjectStorage(Runtime(), bucket) if not failing else failing[0]

    storage = MemoryObjectStorage(Runtime(), bucket)
    failing = [storage]

    async def main() -> None:
        options = {**TINY, "tier2": "memory://given"}
        for _ in range(2):
            # Again and again, as long as there is no log: the first try leaves nothing that would
            # look like an older store.
            storage.fail("put", 1)
            with pytest.raises(TierUnavailableError):
                await open_store(str(tmp_path / "s"), options, {}, Runtime(), Away())
            storage._closed = False
        failing.clear()
        async with SegmentStore(
            await open_store(str(tmp_path / "s"), options, {}, Runtime(), Away())
        ) as store:
            assert parse_marker_name(next(iter(bucket.objects)))
            assert not objects_of(bucket)
            await filled(store, "a")
        # It is known: from now on it opens while Tier 2 is away.
        storage._closed = False
        storage.fail("put", 10**9)
        failing.append(storage)
        async with SegmentStore(
            await open_store(str(tmp_path / "s"), options, {}, Runtime(), Away())
        ) as store:
            assert await read_all(store, "a") == b"a" * 50

    run(main())


def test_a_store_in_its_own_folder_has_a_marker_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", **QUIET) as store:
            await filled(store, "a")
            assert not (await store.collect_garbage()).items
            name = marker_name(str(store.stats()["store_id"]))
        assert (tmp_path / "s" / "tier2" / name).is_file()

    run(main())
