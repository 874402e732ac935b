"""A store's marker and the store's own record, with its creator killed before every effect. The
creator goes on, and the refusal of any other process says whose move is next.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.store_node import found_or_join
from durablelog.durable_data_log_factory import StoreIdentity
from recovery.harness.simulation.object_storage import BucketObject
from recovery.harness.simulation.store_world import (
    LOCATION,
    NEIGHBOUR,
    NeighbourAdapters,
    ProcessAdapters,
    StoreWorld,
)
from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from tests.store.bookkeeper_world import ROOT, BookKeeperWorld
from tests.store.harness import run
from tests.support.suites import size, sized
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_names import (
    MARKER_PREFIX,
    MarkerName,
    ProbeName,
    classify_name,
    marker_name,
    parse_marker_name,
)
from tier2.object_storage import ObjectStorage, StorageUnavailableError, StoredObject
from tier2.store_markers import StoreMarkers, stores_at

STEP = size("MARKER_KILL_STEP", 3, 1)
"""Killed at each so many-th effect."""
SETTINGS = {"containers": 1, "tier2": "s3://bucket/prefix"}


async def open_in(world: StoreWorld, process: SimulatedProcess, location: str) -> SegmentStore:
    kind = ProcessAdapters if location == LOCATION else NeighbourAdapters
    adapters = kind(world, process)
    return SegmentStore(await open_store(location, SETTINGS, {}, process.runtime, adapters))


async def write_and_close(store: SegmentStore) -> None:
    async with store:
        await store.create_segment("a")
        await store.append("a", b"bytes")
        await store.flush()


def make_and_die(number: int, tier1: str) -> tuple[StoreWorld, bool]:
    """A store is made by one that dies before its effect of this number; whether it did."""
    world = StoreWorld(f"marker {number}", settings=SETTINGS, tier1=tier1)
    maker = world.process("maker")
    maker.dies_at = number
    try:
        world.run_task(maker, write(world, maker, LOCATION))
    except ProcessDiedError:
        return world, True
    return world, False


async def write(world: StoreWorld, process: SimulatedProcess, location: str) -> None:
    await write_and_close(await open_in(world, process, location))


def names(world: StoreWorld) -> list[str]:
    world.bucket.settle_all()
    return list(world.bucket.objects)


@sized(8)
def test_a_maker_that_is_killed_anywhere_goes_on_and_others_are_reported_it() -> None:
    number, refused_as_new, refused_as_used = 0, 0, 0
    while refused_as_used < 3:
        world, died = make_and_die(number, "file")
        assert died
        there = names(world)
        markers = [name for name in there if parse_marker_name(name)]
        other = world.process("other")
        if markers:
            with pytest.raises(ConfigError) as caught:
                world.run_task(other, write(world, other, NEIGHBOUR))
            used = any(
                not isinstance(classify_name(name), MarkerName | ProbeName) for name in there
            )
            said = "keeps its objects there" if used else "its making was cut off"
            assert said in str(caught.value), (number, there)
            assert f"delete {markers[0]}" in str(caught.value)
            refused_as_new += not used
            refused_as_used += used
        world.run_task(again := world.process("again"), finish(world, again))
        world.close()
        number += STEP
    assert refused_as_new


async def finish(world: StoreWorld, process: SimulatedProcess) -> None:
    """The maker's folder, opened again, is a store with its marker, whatever it was cut off in."""
    async with await open_in(world, process, LOCATION) as store:
        storage = world.object_storage(process)
        await asyncio.sleep(10)
        assert await stores_at(storage) == [store.stats()["store_id"]]
        assert store.stats()["health"] == []


def test_of_two_makers_that_are_killed_before_they_see_each_other_both_are_refused() -> None:
    """And the one that a person decides for goes on, after what the refusal says was done."""
    world = StoreWorld("two makers", settings=SETTINGS, tier1="file")

    def die_behind_the_marker(process: SimulatedProcess, kind: str) -> None:
        if any(map(parse_marker_name, names(world))):
            process.die(kind)

    hidden: dict[str, BucketObject] = {}
    for location in (LOCATION, NEIGHBOUR):
        maker = world.process("maker")
        maker.on_effect = die_behind_the_marker
        with pytest.raises(ProcessDiedError):
            world.run_task(maker, write(world, maker, location))
        # As if each marker came a moment after the other maker's check.
        hidden.update(world.bucket.objects)
        world.bucket.objects.clear()
    world.bucket.objects.update(hidden)
    other = ""
    for location in (LOCATION, NEIGHBOUR):
        process = world.process("again")
        with pytest.raises(ConfigError, match=r"its making was cut off.*shared_tier2") as caught:
            world.run_task(process, write(world, process, location))
        other = str(caught.value).rsplit("delete ", 1)[1]
    del world.bucket.objects[other]
    process = world.process("decided")
    world.run_task(process, write(world, process, NEIGHBOUR))
    world.close()


class Place(MemoryObjectStorage):
    """A Tier 2 whose second listing of the markers, which `make` asks for, fails if it is to."""

    def __init__(self, runtime: Runtime, bucket: MemoryBucket, *, fails: bool) -> None:
        super().__init__(runtime, bucket=bucket)
        self._listings_left = 1 if fails else 1 << 30

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        if prefix == MARKER_PREFIX:
            self._listings_left -= 1
            if self._listings_left < 0:
                raise StorageUnavailableError(prefix, "away")
        async for page in super().list(prefix, start_after):
            yield page


class World(BookKeeperWorld):
    """One store on BookKeeper, whose objects are elsewhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url = (folder / "elsewhere").as_uri()
        self.bucket = MemoryBucket()
        self.fails = self.takes_back = False

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        assert url == self.url
        if self.takes_back:
            self.tree.remove(ROOT, 0)
        return Place(runtime, self.bucket, fails=self.fails)

    async def make(self) -> StoreIdentity:
        """A process creates the store, and has come no further."""
        identity = StoreIdentity(str(uuid.UUID(int=1)), 1, self.url)
        await found_or_join(MemoryNodes(self.tree), ROOT, identity)
        return identity

    @property
    def markers(self) -> list[str]:
        return [name for name in self.bucket.objects if parse_marker_name(name)]


async def refused(world: World, folder: Path) -> None:
    with pytest.raises(TierUnavailableError):
        await world.open(folder, tier2=world.url)
    assert not (folder / "store.toml").exists()


@pytest.mark.parametrize("cut", ["pin", "listing"])
def test_who_joins_and_fails_leaves_the_marker_that_others_go_by(tmp_path: Path, cut: str) -> None:
    async def main() -> None:
        world = World(tmp_path)
        identity = await world.make()
        if cut == "pin":
            world.tree.fail("create")
        world.fails = cut == "listing"
        await refused(world, tmp_path / "joins")
        assert world.markers == [marker_name(identity.store_id)]
        world.fails = False
        async with await world.open(tmp_path / "other") as store:
            assert store.stats()["store_id"] == identity.store_id

    run(main())


def test_a_store_that_comes_to_nothing_leaves_no_marker(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.fails = True
        await refused(world, tmp_path / "maker")
        assert (world.tree.content(ROOT), world.markers) == (None, [])
        world.fails = False
        await world.make()
        world.takes_back = True
        await refused(world, tmp_path / "joins")
        assert (world.tree.content(ROOT), world.markers) == (None, [])

    run(main())


def test_of_a_store_that_is_meant_to_share_all_folders_know(tmp_path: Path) -> None:
    """A restored one has no marker of its own, and those before it have one."""

    async def main() -> None:
        world = World(tmp_path)
        await StoreMarkers(Place(Runtime(), world.bucket, fails=False), str(uuid.UUID(int=9))).put()
        made = await world.open(tmp_path / "made", tier2=world.url, shared_tier2=True)
        await made.close()
        for name in [*world.markers]:
            if str(uuid.UUID(int=9)).replace("-", "") not in name:
                del world.bucket.objects[name]
        async with await world.open(tmp_path / "joined") as store:
            assert store.stats()["health"] == []
        assert "shared_tier2 = true" in (tmp_path / "joined" / "store.toml").read_text()

    run(main())
