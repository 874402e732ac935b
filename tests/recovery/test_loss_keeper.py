"""Lost bytes are searched for again whatever one check meets, and what is known of them is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.metadata_updater import MetadataUpdater
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.loss_file import FILE_NAME, load_losses
from recovery.loss_keeper import (
    FIRST_RECHECK_S,
    PLACES_A_ROUND,
    RECHECK_MAX_S,
    RECHECK_S,
    SAVE_AFTER_S,
    ContainerWatch,
    LossKeeper,
)
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.support.idle_segments import IdleSegments
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_storage import ObjectNotFoundError, StorageUnavailableError

STORE = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
CONTAINERS = (0, 1)
PAYLOAD = b"0123456789" * 10


class Storage(MemoryObjectStorage):
    """Memory that meets what `met` says for an object."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.met: dict[str, Callable[[], Exception]] = {}
        self.asked: list[str] = []

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.asked.append(name)
        error = self.met.get(name)
        if error is not None:
            raise error()
        return await super().get_range(name, offset, length)


class World:
    """Two containers with `count` objects each, all of which a read found missing; the keeper is
    begun.
    """

    def __init__(self, folder: Path, count: int) -> None:
        runtime = Runtime(clock=LoopClock(), executor=inline_executor)
        self.path = str(folder / FILE_NAME)
        self.disk = runtime.disk
        self.storage = Storage(runtime)
        self.check_meets: Exception | None = None
        self._count = count
        self._deleted: dict[str, MemoryObject] = {}
        self._metadata = {each: ContainerMetadata(each) for each in CONTAINERS}
        for metadata in self._metadata.values():
            self._fill(metadata)
        self.containers = {
            container_id: IdleSegments(MetadataUpdater(metadata))
            for container_id, metadata in self._metadata.items()
        }
        self._runtime = runtime
        self._watches: dict[int, ContainerWatch] = {}
        self.keeper = self.new_keeper()

    def new_keeper(self) -> LossKeeper:
        return LossKeeper(
            self.storage,
            self._runtime,
            path=self.path,
            store_id=STORE,
            check=self._check,
        )

    async def _check(self) -> None:
        if self.check_meets is not None:
            raise self.check_meets

    def _fill(self, metadata: ContainerMetadata) -> None:
        segment = metadata.segments[7] = SegmentMetadata(7, "a", 0)
        metadata.names["a"] = 7
        for number in range(self._count):
            builder = ObjectBuilder(metadata.container_id, 5, 16)
            builder.add(7, number * len(PAYLOAD), [PAYLOAD], segment_name="a")
            record, chunks = builder.finish(self.name(metadata.container_id, number), 0)
            segment.own_chunks().extend(chunk for _, chunk in chunks)
            metadata.objects[record.name] = LiveObject(record)
            self._deleted[record.name] = MemoryObject(b"".join(builder.parts), bytes(16), 0)
        segment.length = segment.storage_length = self._count * len(PAYLOAD)

    @staticmethod
    def name(container_id: int, number: int) -> str:
        return f"object-{container_id}-{number}"

    async def start(self) -> None:
        await self.begin()
        for container_id in CONTAINERS:
            self.meet(container_id)

    async def begin(self) -> None:
        """An opening: what earlier owners have seen is taken up."""
        await self.keeper.start()
        for container_id in CONTAINERS:
            self.attach(container_id)

    def attach(self, container_id: int) -> None:
        self._watches[container_id] = self.keeper.attach(
            container_id, self.containers[container_id]
        )

    def meet(self, container_id: int) -> None:
        """A read of everything finds it missing."""
        watch = self._watches[container_id]
        for chunk in self.containers[container_id].all[7].chunks:
            gone = ObjectNotFoundError(chunk.object_name, "no such object")
            watch.failed(7, chunk, chunk.start_offset, chunk.end_offset, gone)

    def put_back(self) -> None:
        self.storage.bucket.objects.update(self._deleted)

    @property
    def places(self) -> int:
        return self.keeper.statistics().places


def with_world(
    folder: Path, body: Callable[[World], Coroutine[Any, Any, None]], *, count: int = 1
) -> None:
    async def main() -> None:
        world = World(folder, count)
        await world.start()
        await body(world)
        await world.keeper.stop()

    run_virtual(main())


def unavailable(kind: str) -> Callable[[], Exception]:
    return lambda: StorageUnavailableError("object", "away", kind)


@pytest.mark.parametrize("kind", [ValueError, OSError, RuntimeError])
def test_an_unexpected_error_is_reported_and_ends_nothing(
    tmp_path: Path, kind: type[Exception]
) -> None:
    async def body(world: World) -> None:
        world.put_back()
        world.storage.met = {world.name(0, 0): lambda: kind("unthought of")}
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        assert any("unthought of" in told and "tier2" in told for told in world.keeper.health())
        # Ever more rarely, and within a bound.
        assert world.places == 1, "the other container was looked at"
        world.storage.asked.clear()
        await asyncio.sleep(100 * RECHECK_MAX_S)
        assert 95 <= len(world.storage.asked) <= 110
        world.storage.met = {}
        await asyncio.sleep(RECHECK_MAX_S)
        assert (world.places, world.keeper.health()) == (0, [])

    with_world(tmp_path, body)


def test_after_it_what_is_known_is_kept_as_before(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.check_meets = KeyError("x")
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        keeper = world.keeper
        assert len(load_losses(world.path, world.disk, STORE)) == len(CONTAINERS)
        world.check_meets = None
        world.storage.met = {world.name(1, 0): lambda: ValueError("bad")}
        world.put_back()
        await asyncio.sleep(3 * RECHECK_S)
        assert list(load_losses(world.path, world.disk, STORE)) == [1]
        assert "bad" in keeper.health()[-1]

    with_world(tmp_path, body)


def test_an_object_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    """More of them than a turn takes, and each time the first: as those that were moved to an
    archive.
    """

    async def body(world: World) -> None:
        world.put_back()
        refused = [world.name(0, number) for number in range(PLACES_A_ROUND)]
        world.storage.met = dict.fromkeys(refused, unavailable("InvalidObjectState"))
        rounds = PLACES_A_ROUND + 2
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        assert world.keeper.statistics().objects == PLACES_A_ROUND + 8, (
            "container 1 has had its turn"
        )
        await asyncio.sleep(rounds * RECHECK_S)
        assert world.places == len(refused)
        assert len(world.storage.asked) < rounds * 10

    with_world(tmp_path, body, count=PLACES_A_ROUND + 4)


def test_a_tier_that_answers_no_request_is_asked_once_a_round(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.put_back()
        names = list(world.storage.bucket.objects)
        world.storage.met = dict.fromkeys(names, unavailable("connection"))
        await asyncio.sleep(FIRST_RECHECK_S + 5 * RECHECK_S)
        assert 4 <= len(world.storage.asked) <= 6
        assert all("cannot be seen" not in told for told in world.keeper.health())
        world.storage.met = {}
        await asyncio.sleep(2 * RECHECK_S)
        assert world.places == 0

    with_world(tmp_path, body, count=3)


def test_a_listing_that_is_refused_does_not_hide_what_is_there_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.check_meets = StorageUnavailableError(
            "stores/", "no permission to list", "AccessDenied"
        )
        world.put_back()
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        assert world.places == 0

    with_world(tmp_path, body)


@pytest.mark.parametrize("under_way", [False, True])
def test_a_new_loss_is_checked_soon_whatever_is_due_of_others(
    tmp_path: Path, under_way: bool
) -> None:
    async def body(world: World) -> None:
        seen = asyncio.Event()

        def stays() -> Exception:
            if under_way and looks_are_rare and not seen.is_set():
                see()
            return ValueError("unthought of")

        def see() -> None:
            world.meet(0)
            seen.set()

        # A loss that stays, and makes checks ever more rare.
        looks_are_rare = False
        world.storage.met = {world.name(1, 0): stays}
        world.put_back()
        await asyncio.sleep(20 * RECHECK_S)
        assert world.places == 1
        looks_are_rare = True
        if not under_way:
            see()
        await seen.wait()
        assert world.places == 2
        await asyncio.sleep(2 * FIRST_RECHECK_S)
        assert world.places == 1

    with_world(tmp_path, body)


def test_reads_of_what_is_known_to_be_lost_hasten_no_check(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        for _ in range(int(5 * RECHECK_S)):
            world.meet(0)
            await asyncio.sleep(1)
        assert len(world.storage.asked) <= 2 * 6

    with_world(tmp_path, body)


# --- idle segments --------------------------------------------------------------------------------


def evict(world: World) -> None:
    for container in world.containers.values():
        container.evicting = True
        container.evict()


def test_a_loss_in_an_idle_segment_stays_reported_until_it_is_there_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        evict(world)
        await asyncio.sleep(FIRST_RECHECK_S + 3 * RECHECK_S)
        assert world.places == len(CONTAINERS)
        assert all("segment 'a' offsets 0 to 100" in told for told in world.keeper.health())
        world.put_back()
        await asyncio.sleep(2 * RECHECK_S)
        assert (world.places, world.keeper.health()) == (0, [])
        assert all(container.held_max == 1 for container in world.containers.values())

    with_world(tmp_path, body)


def test_after_a_restart_it_is_still_reported(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.keeper.stop()
        evict(world)
        world.keeper = world.new_keeper()
        await world.begin()
        assert world.places == len(CONTAINERS)
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        assert world.places == len(CONTAINERS)
        assert all("segment 'a' offsets" in told for told in world.keeper.health())

    with_world(tmp_path, body)


def test_losses_of_a_container_that_leaves_are_kept_and_taken_up_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def body(world: World) -> None:
        seen = world.keeper.statistics().seen
        world.keeper.detach(0)
        assert (world.places, len(world.keeper.health())) == (1, 1)
        assert world.keeper.statistics().seen == seen
        await asyncio.sleep(FIRST_RECHECK_S + SAVE_AFTER_S + 1)
        assert sorted(load_losses(world.path, world.disk, STORE)) == [0, 1]
        world.storage.asked.clear()
        world.put_back()
        await asyncio.sleep(2 * RECHECK_S)
        # No request is sent for what belongs to another owner.
        assert set(world.storage.asked) == {world.name(1, 0)}
        assert list(load_losses(world.path, world.disk, STORE)) == [0]
        world.attach(0)
        assert world.places == 1
        await asyncio.sleep(FIRST_RECHECK_S + 2 * SAVE_AFTER_S + 1)
        assert (world.places, world.keeper.health()) == (0, [])
        assert load_losses(world.path, world.disk, STORE) == {}

    with_world(tmp_path, body)


def test_what_is_no_longer_needed_of_an_idle_segment_is_forgotten_with_the_next_check(
    tmp_path: Path,
) -> None:
    async def body(world: World) -> None:
        world.containers[0].activate(7)
        world.containers[0].metadata.segments[7].start_offset = len(PAYLOAD)
        evict(world)
        await asyncio.sleep(FIRST_RECHECK_S + SAVE_AFTER_S + 1)
        assert world.places == 1
        assert list(load_losses(world.path, world.disk, STORE)) == [1]

    with_world(tmp_path, body)


@pytest.mark.parametrize(
    "error",
    [
        TierUnavailableError("tier1", "the catalog is away"),
        DataCorruptionError("catalog", "it is damaged"),
    ],
)
def test_a_catalog_that_fails_hides_nothing_and_holds_up_no_check(
    tmp_path: Path, error: Exception
) -> None:
    async def body(world: World) -> None:
        evict(world)
        world.containers[0].error = error
        await asyncio.sleep(FIRST_RECHECK_S + 1)
        assert world.places == len(CONTAINERS)
        damaged = isinstance(error, DataCorruptionError)
        assert any("cannot be seen: " in told for told in world.keeper.health()) == damaged
        world.put_back()
        await asyncio.sleep(3 * RECHECK_S)
        assert (world.places, world.keeper.health()) == (0, [])

    with_world(tmp_path, body)
