"""Exports of the catalog by an open store: on command, by schedule, asked for by a job; consistent,
bounded, harmless.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import Operation
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import (
    ContainerStoppedError,
    MissingExtraError,
    SegmentStore,
    TierUnavailableError,
    blocking,
)
from segmentstore.catalog_export import RETRY_MAX_S, CatalogExporter
from segmentstore.config import StoreConfig
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import open_lazy, open_tiny, run
from tests.support.loop_clock import LoopClock
from tests.support.suites import share
from tests.tier2.catalog.metadata_maker import STORE_ID, make_metadata
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_snapshots import list_snapshots, manifest_named, newest_snapshots
from tier2.catalog.catalog_tables import CatalogTables, build_tables
from tier2.locations import PROCESS_MEMORY
from tier2.mailbox.mailbox import put_message, wait_for_answers
from tier2.mailbox.messages import ExportRequest
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_names import parse_catalog_name
from tier2.object_storage import NO_METADATA, ObjectStorage

# --- beside a writer ------------------------------------------------------------------------------


class Recorder:
    """The operations of one container from now on, and the metadata that they start from."""

    def __init__(self, store: SegmentStore) -> None:
        (container,) = store._containers
        self._first = encode_checkpoint(container.metadata)
        self._operations: list[Operation] = []
        add = container._writer.add

        def record(operations: Sequence[Operation]) -> None:
            self._operations += operations
            add(operations)

        container._writer.add = record  # type: ignore[method-assign]

    def as_of(self, sequence_number: int) -> ContainerMetadata:
        """The metadata as one replay of the operations up to this one has them."""
        metadata = decode_checkpoint(self._first)
        updater = MetadataUpdater(metadata)
        for operation in self._operations:
            if operation.sequence_number <= sequence_number:
                updater.replay(operation)
        assert metadata.sequence_number == sequence_number
        return metadata


async def write(store: SegmentStore, source: random.Random, steps: int, prefix: str = "s") -> None:
    """Appends, seals, truncations, merges, deletions and flushes, one after the other."""
    alive: list[str] = []
    for step in range(steps):
        kind = source.choice(
            ["create", "append", "append", "append", "truncate", "merge", "delete", "flush"]
        )
        if kind == "create" or len(alive) < 2:
            alive.append(f"{prefix}{step}")
            await store.create_segment(alive[-1])
        elif kind == "append":
            await asyncio.gather(
                *(
                    store.append(source.choice(alive), b"x" * source.randrange(120))
                    for _ in range(8)
                )
            )
        elif kind == "truncate":
            name = source.choice(alive)
            info = await store.get_info(name)
            await store.truncate(name, source.randint(info.start_offset, info.length))
        elif kind == "merge":
            target, merged = source.sample(alive, 2)
            if (await store.get_info(merged)).start_offset:
                continue  # What is truncated cannot be merged.
            await store.seal(merged)
            await store.merge(target, merged)
            alive.remove(merged)
        elif kind == "delete":
            await store.delete(alive.pop(source.randrange(len(alive))))
        else:
            await store.flush(source.choice(alive))


async def tables_of(storage: ObjectStorage, manifest: Any) -> CatalogTables:
    return CatalogTables(
        *[await read_table(storage, manifest, name) for name in CatalogTables._fields]
    )


KINDS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "in the catalog": {"inline_checkpoint_bytes_max": 0},
    "mostly idle": {"containers": 1, "active_segments_max": 8},
}
"""Where the metadata are, and the settings for it."""


@pytest.mark.parametrize("seed", share(range(4), 4, 2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_the_log_replayed_to_its_sequence_number_whatever_is_written_beside_it(
    tmp_path: Path, seed: int, kind: str
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KINDS[kind]) as store:
            recorder = Recorder(store)
            source = random.Random(seed)
            for number in range(20):
                await store.create_segment(f"old {number}")
                await store.append(f"old {number}", b"x" * number)
            seen: dict[int, str] = {}
            # Until so many were made beside the writes, however fast either is.
            for turn in itertools.count():
                writing = asyncio.create_task(write(store, source, 150, f"{turn}-"))
                while not writing.done():
                    (done,) = await store.export_catalog()
                    seen[done.sequence_number] = done.manifest
                    await asyncio.sleep(0.01)
                await writing
                if len(seen) > 3:
                    break
            (done,) = await store.export_catalog()
            storage = store._parts.storage
            newest = (await newest_snapshots(storage, store._parts.store_id))[0]
            assert newest.name == done.manifest
            for sequence_number, name in seen.items():
                manifest = await manifest_named(storage, name)
                assert manifest.sequence_number == sequence_number
                assert await tables_of(storage, manifest) == build_tables(
                    recorder.as_of(sequence_number)
                )
            counts = [
                (await manifest_named(storage, name)).tables["segments"].rows
                for name in seen.values()
            ]
            assert max(counts) > 2
            (container,) = store._containers
            assert (container.metadata.idle > 0) == (kind == "mostly idle")
            assert container._checkpoints.by_reference == (kind != "in memory")

    run(main())


# --- on command -----------------------------------------------------------------------------------


def test_every_container_is_exported_and_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=3) as store:
            for number in range(9):
                await store.create_segment(f"s{number}")
                await store.append(f"s{number}", b"x" * 100)
            await store.flush()
            exports = await store.export_catalog()
            stats: Any = store.stats()
            manifests = await newest_snapshots(store._parts.storage)
            assert [each.container_id for each in exports] == [0, 1, 2]
            assert [each.manifest for each in exports] == [
                manifests[number].name for number in range(3)
            ]
            assert sum(each.rows["segments"] for each in exports) == 9
            for each, container in zip(exports, store._containers, strict=True):
                assert each.epoch == container.epoch
                assert each.sequence_number == container.metadata.sequence_number
                assert each.size == sum(
                    file.size for file in manifests[each.container_id].tables.values()
                )
                assert manifests[each.container_id].containers == 3
            assert stats["catalog"]["exports"] == 3
            assert stats["catalog"]["failures"] == 0
            assert stats["catalog"]["last_export_ms"] == exports[-1].time_ms
            assert stats["health"] == []

    run(main())


def test_the_blocking_api_has_it_too(tmp_path: Path) -> None:
    with blocking.open(tmp_path / "s") as store:
        store.create_segment("a")
        (done,) = store.export_catalog()
        assert done.rows == {"segments": 1, "chunks": 0, "objects": 0}


def test_one_container_that_stopped_keeps_its_siblings_from_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=3) as store:
            await store._containers[1].stop()
            with pytest.raises(ContainerStoppedError):
                await store.export_catalog()
            assert list(await newest_snapshots(store._parts.storage)) == [0, 2]
            stats: Any = store.stats()
            assert not [finding for finding in stats["health"] if "catalog" in finding]

    run(main())


def test_a_tier_2_that_is_away_is_reported_and_shows_in_health_until_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", tier2=f"memory://{tmp_path.name}") as store:
            await store.create_segment("a")
            storage = store._parts.storage
            assert isinstance(storage, MemoryObjectStorage)
            storage.fail("put", 100)
            with pytest.raises(TierUnavailableError, match="made to fail"):
                await store.export_catalog()
            stats: Any = store.stats()
            assert any(
                "container 0: catalog export to tier2 memory://" in finding
                for finding in stats["health"]
            )
            assert stats["catalog"]["failures"] == 1
            await store.append("a", b"still served")
            storage.heal()
            await store.export_catalog()
            stats = store.stats()
            assert not [finding for finding in stats["health"] if "catalog" in finding]

    run(main())


def test_without_pyarrow_an_export_names_the_extra_and_a_store_without_exports_does_not_care(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "pyarrow" else find_spec(name, *rest),
    )

    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            with pytest.raises(MissingExtraError, match=r"segmentstore\[arrow\]"):
                await store.export_catalog()
        with pytest.raises(
            MissingExtraError, match=r"catalog_export_interval_s.*segmentstore\[arrow\]"
        ):
            await open_tiny(tmp_path / "s", catalog_export_interval_s=5)
        async with open_tiny(tmp_path / "s"):
            pass  # What was begun was released.

    run(main())


def test_a_store_that_exports_nothing_does_not_load_pyarrow(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore\n"
        "async def main():\n"
        f"    async with segmentstore.open({str(tmp_path / 's')!r}) as store:\n"
        "        await store.create_segment('a')\n"
        "asyncio.run(main())\n"
        "print('pyarrow' in sys.modules)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "False"


# --- asked for by a job ---------------------------------------------------------------------------


def test_a_job_asks_for_a_snapshot_through_the_mailbox(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=2, mailbox_poll_interval_s=0.05) as store:
            await store.create_segment("a")
            await store.append("a", b"x")
            storage = store._parts.storage
            requests = [ExportRequest(number, "00000000000000aa", "export") for number in range(2)]
            for request in requests:
                assert await put_message(storage, Runtime(), request)
            answers = await wait_for_answers(
                storage, [request.key for request in requests], 30, 0.05
            )
            manifests = await newest_snapshots(storage)
            assert [answers[request.key].verdict for request in requests] == [
                "exported",
                "exported",
            ]
            told = [answers[request.key].detail["manifest"] for request in requests]
            assert told == [manifests[number].name for number in range(2)]

    run(main())


# --- by schedule ----------------------------------------------------------------------------------


class FakeSource:
    """A container's metadata, which may change, and may stop."""

    def __init__(self, container_id: int = 0) -> None:
        self.container_id = container_id
        self.epoch = 3
        self.metadata = make_metadata(
            random.Random(1), segments=3, chunks_max=3, objects=4, container_id=container_id
        )
        self.stopped = False

    async def written_catalog(self) -> None:
        """As of a small container."""

    def check_running(self) -> None:
        if self.stopped:
            raise ContainerStoppedError(self.container_id)


class Scheduled:
    """An exporter by schedule, in virtual time."""

    def __init__(self, every_s: float, containers: int = 1) -> None:
        self.runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        self.bucket = MemoryBucket()
        self.storage = MemoryObjectStorage(self.runtime, self.bucket)
        self.sources = [FakeSource(number) for number in range(containers)]
        config = StoreConfig(containers=containers, catalog_export_interval_s=every_s)
        self.exporter = CatalogExporter(
            self.storage, lambda: self.sources, self.runtime, STORE_ID, config
        )

    @property
    def exports(self) -> int:
        return self.exporter.statistics().exports


def test_the_schedule_exports_every_so_often_from_the_first_period_on() -> None:
    async def main() -> None:
        world = Scheduled(60, containers=2)
        world.exporter.start()
        await asyncio.sleep(59)
        assert world.exports == 0
        for minute in range(1, 6):
            world.sources[0].metadata.sequence_number += 1
            await asyncio.sleep(60)
            assert world.exports == 2 * minute
        await world.exporter.stop()
        manifests = await newest_snapshots(world.storage)
        assert manifests[0].sequence_number == world.sources[0].metadata.sequence_number
        await asyncio.sleep(1000)
        assert world.exports == 10

    run_virtual(main())


def test_a_container_that_comes_later_has_its_turn_and_one_that_is_away_has_none() -> None:
    async def main() -> None:
        world = Scheduled(60, containers=3)
        first, second, third = world.sources
        world.sources = []
        world.exporter.start()
        await asyncio.sleep(600)
        world.sources = [first, second]
        await asyncio.sleep(121)
        assert sorted(await newest_snapshots(world.storage)) == [0, 1]
        world.sources = [third]
        await asyncio.sleep(121)
        before = world.exports
        assert sorted(await newest_snapshots(world.storage)) == [0, 1, 2]
        world.storage.fail("put", 10**6)
        await asyncio.sleep(61)
        assert "container 2" in world.exporter.health()[0]
        # What is not served here is not this process's to report.
        world.sources = [first]
        assert world.exporter.health() == []
        world.storage.heal()
        await asyncio.sleep(61)
        assert world.exports == before + 1
        await world.exporter.stop()

    run_virtual(main())


def test_without_a_schedule_nothing_is_exported() -> None:
    async def main() -> None:
        world = Scheduled(0)
        world.exporter.start()
        await asyncio.sleep(10**6)
        assert world.bucket.objects == {}
        await world.exporter.stop()

    run_virtual(main())


def test_what_is_older_than_a_day_is_deleted_but_for_three() -> None:
    async def main() -> None:
        world = Scheduled(3600)
        world.exporter.start()
        await asyncio.sleep(50 * 3600 + 1)
        assert world.exports == 50
        listed = await list_snapshots(world.storage)
        assert len(listed) == 25
        assert len(world.bucket.objects) == 100
        await world.exporter.stop()
        # The next owner of the schedule keeps three, however long there was no owner.
        world.exporter = CatalogExporter(
            world.storage,
            lambda: world.sources,
            world.runtime,
            STORE_ID,
            StoreConfig(catalog_export_interval_s=10**6),
        )
        world.exporter.start()
        await asyncio.sleep(10**6 + 1)
        assert len(await list_snapshots(world.storage)) == 3
        await world.exporter.stop()

    run_virtual(main())


def test_a_scheduled_export_that_fails_is_tried_again_soon_and_shows_in_health() -> None:
    async def main() -> None:
        world = Scheduled(3600)
        world.exporter.start()
        world.storage.fail("put", 10**6)
        await asyncio.sleep(3600 + 60)
        failures = world.exporter.statistics().failures
        assert failures > 4
        assert "catalog export to tier2" in world.exporter.health()[0]
        await asyncio.sleep(3600)
        assert world.exporter.statistics().failures - failures < 2 * 3600 / RETRY_MAX_S + 8
        world.storage.heal()
        await asyncio.sleep(RETRY_MAX_S)
        assert world.exports == 1
        assert world.exporter.health() == []
        await asyncio.sleep(3600)
        assert world.exports == 2
        await world.exporter.stop()

    run_virtual(main())


def test_one_container_that_fails_or_stops_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        world = Scheduled(60, containers=3)
        # Whatever it is that goes wrong.
        world.sources[0].metadata = None  # type: ignore[assignment]
        world.sources[1].stopped = True
        world.exporter.start()
        await asyncio.sleep(60 * 10 + 1)
        assert world.exports == 10
        assert len(world.exporter.health()) == 1
        assert world.exporter.health()[0].startswith("container 0: catalog export")
        world.sources[1].stopped = False
        await asyncio.sleep(60)
        assert world.exports == 12
        await world.exporter.stop()

    run_virtual(main())


def test_a_deletion_that_fails_takes_nothing_from_the_export() -> None:
    async def main() -> None:
        world = Scheduled(3600)
        world.exporter.start()
        await asyncio.sleep(30 * 3600 + 1)
        world.storage.fail("delete", 10**6)
        await asyncio.sleep(20 * 3600)
        assert world.exports == 50
        assert world.exporter.health() == []
        assert all(map(parse_catalog_name, world.bucket.objects))
        world.storage.heal()
        await asyncio.sleep(3600)
        assert len(await list_snapshots(world.storage)) == 25
        await world.exporter.stop()

    run_virtual(main())


def test_a_stop_in_the_middle_of_an_export_ends_it() -> None:
    async def main() -> None:
        world = Scheduled(60)
        gate = asyncio.Event()
        put = world.storage.put

        async def held(
            name: str, parts: Any, unique_id: bytes, metadata: Mapping[str, str] = NO_METADATA
        ) -> None:
            await gate.wait()
            await put(name, parts, unique_id, metadata)

        world.storage.put = held  # type: ignore[method-assign]
        world.exporter.start()
        await asyncio.sleep(100)
        await world.exporter.stop()
        await world.exporter.stop()
        gate.set()
        await asyncio.sleep(1000)
        assert world.bucket.objects == {}

    run_virtual(main())


def test_a_store_exports_by_its_setting(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(
            tmp_path / "s", tier2=f"memory://{tmp_path.name}", catalog_export_interval_s=0.05
        ) as store:
            await store.create_segment("a")
            while not await list_snapshots(store._parts.storage):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        names = list(PROCESS_MEMORY.bucket(tmp_path.name).objects)
        assert any(map(parse_catalog_name, names))

    run(main())
