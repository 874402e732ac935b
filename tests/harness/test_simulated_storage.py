"""The simulated object storage: the contract, and each fault by its exact meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation import object_storage
from recovery.harness.simulation.clock import BEGINNING_MS
from recovery.harness.simulation.object_storage import (
    CALM_BODIES,
    SimulatedBucket,
    SimulatedObjectStorage,
)
from tests.contracts.object_storage_contract import (
    PAGE_OBJECTS,
    ObjectStorageContract,
    listed,
    unique_id,
)
from tests.harness.fake_process import DiedError, FakeProcess, FakeWorld, fake_world
from tests.support.suites import share
from tier2.object_storage import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
)

DATA = bytes(range(1, 201))


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with fake_world() as made:
        yield made


@pytest.fixture
def bucket() -> SimulatedBucket:
    return SimulatedBucket()


@pytest.fixture
def process(world: FakeWorld) -> FakeProcess:
    return world.process()


@pytest.fixture
def storage(bucket: SimulatedBucket, process: FakeProcess) -> SimulatedObjectStorage:
    return SimulatedObjectStorage(bucket, process, page_objects=PAGE_OBJECTS)


class TestSimulatedObjectStorage(ObjectStorageContract):
    @pytest.fixture(autouse=True)
    def _in(self, world: FakeWorld) -> None:
        self.world = world
        self.process = world.process()

    def make(self, folder: Path) -> ObjectStorage:
        return SimulatedObjectStorage(SimulatedBucket(), self.process, page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        assert isinstance(storage, SimulatedObjectStorage)
        return contents(storage.bucket)

    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        self.world.plan("object.put.lost-reply")

    def run(self, folder: Path, case: Callable[[ObjectStorage], Awaitable[None]]) -> None:
        async def body() -> None:
            storage = self.make(folder)
            try:
                await case(storage)
            finally:
                await storage.close()

        self.process.run(body())


def contents(bucket: SimulatedBucket) -> dict[str, bytes]:
    return {name: there.data for name, there in bucket.objects.items()}


def refused(process: FakeProcess, call: Coroutine[Any, Any, object]) -> None:
    with pytest.raises(StorageUnavailableError):
        process.run(call)


def put(
    process: FakeProcess,
    storage: ObjectStorage,
    name: str = "x",
    data: bytes = DATA,
    number: int = 1,
) -> None:
    process.run(storage.put(name, [data], unique_id(number)))


def test_a_failed_put_or_delete_had_no_effect(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    world.plan("object.put.failed")
    refused(process, storage.put("x", [DATA], unique_id(1)))
    storage.bucket.settle_all()
    assert contents(storage.bucket) == {}
    assert process.effects == []
    put(process, storage)
    world.plan("object.delete.failed")
    refused(process, storage.delete("x"))
    storage.bucket.settle_all()
    assert contents(storage.bucket) == {"x": DATA}
    assert process.effects == [("object.put", "x", "200")]
    assert storage.statistics().errors == 2


def test_a_change_whose_reply_is_lost_takes_effect(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    world.plan("object.put.lost-reply")
    refused(process, storage.put("x", [DATA], unique_id(1)))
    assert contents(storage.bucket) == {"x": DATA}
    put(process, storage)
    world.plan("object.delete.lost-reply")
    refused(process, storage.delete("x"))
    assert contents(storage.bucket) == {}
    process.run(storage.delete("x"))


def test_a_put_applied_twice_is_one(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    world.plan("object.put.twice")
    put(process, storage)
    assert world.struck == ["object.put.twice"]
    assert contents(storage.bucket) == {"x": DATA}
    assert storage.bucket.in_flight() == 0


def test_a_late_put_comes_later_even_if_its_process_is_dead(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    world.plan("object.put.late", 2)
    refused(process, storage.put("x", [DATA], unique_id(1)))
    refused(process, storage.put("y", [DATA], unique_id(2)))
    assert contents(storage.bucket) == {}
    begun = world.time.now_us
    process.die()
    world.pass_time(60)
    heir = world.process()
    other = SimulatedObjectStorage(storage.bucket, heir)
    assert heir.run(other.head("x")) is not None
    assert contents(storage.bucket) == {"x": DATA, "y": DATA}
    assert (
        begun // 1000
        < storage.bucket.objects["x"].modified_ms - BEGINNING_MS
        <= begun // 1000 + 60_000
    )


def test_a_late_put_of_a_taken_name_does_nothing_and_of_a_freed_one_comes_back(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    world.plan("object.put.late", 2)
    refused(process, storage.put("x", [DATA], unique_id(1)))
    refused(process, storage.put("y", [DATA], unique_id(2)))
    put(process, storage, "x", number=1)
    put(process, storage, "y", b"other", 3)
    process.run(storage.delete("x"))
    storage.bucket.settle_all()
    assert contents(storage.bucket) == {"x": DATA, "y": b"other"}


def test_a_late_delete_takes_the_object_later(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    put(process, storage)
    world.plan("object.delete.late")
    refused(process, storage.delete("x"))
    assert contents(storage.bucket) == {"x": DATA}
    process.run(asyncio.sleep(60))
    assert process.run(storage.head("x")) is None


def test_after_any_doubt_putting_again_with_the_same_id_succeeds(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    doubts = ("failed", "lost-reply", "late")
    for number, doubt in enumerate(doubts):
        world.plan(f"object.put.{doubt}")
        world.plan("object.put.twice", after=1)
        refused(process, storage.put(doubt, [DATA], unique_id(number)))
        put(process, storage, doubt, number=number)
        with pytest.raises(ObjectExistsError):
            put(process, storage, doubt, number=99)
    storage.bucket.settle_all()
    assert contents(storage.bucket) == dict.fromkeys(doubts, DATA)


def test_what_is_in_flight_when_its_process_dies_takes_effect_or_not() -> None:
    def left_by(seed: int) -> tuple[bool, bool]:
        with fake_world(seed) as world:
            bucket = SimulatedBucket()
            process = world.process()
            storage = SimulatedObjectStorage(bucket, process)
            put(process, storage, "old")
            calls = [
                process.start(storage.put("new", [DATA], unique_id(2))),
                process.start(storage.delete("old")),
            ]
            world.run(lambda: bucket.in_flight() == 2)
            process.die()
            bucket.settle_all()
            assert not any(call.done() for call in calls)
            assert bucket.outlived == bucket.objects.keys() - {"old"}
            return "old" in bucket.objects, "new" in bucket.objects

    assert {left_by(seed) for seed in range(40)} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


@pytest.mark.parametrize("kind", ["object.put", "object.delete"])
def test_a_process_that_dies_before_a_change_has_not_applied_it(
    kind: str, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    put(process, storage)
    process.dies_before = kind
    with pytest.raises(DiedError):
        process.run(
            storage.delete("x")
            if kind == "object.delete"
            else storage.put("y", [DATA], unique_id(2))
        )
    storage.bucket.settle_all()
    assert contents(storage.bucket) == {"x": DATA}


def test_a_process_stopped_before_a_change_makes_it_when_it_goes_on(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    process.pauses_before = "object.put"
    putting = process.start(storage.put("x", [DATA], unique_id(1)))
    world.run(lambda: process.paused)
    world.pass_time(100)
    storage.bucket.settle_all()
    assert contents(storage.bucket) == {}
    process.paused = False
    world.run(putting.done)
    assert putting.exception() is None
    assert contents(storage.bucket) == {"x": DATA}


def test_a_cancelled_put_may_still_take_effect(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    putting = process.start(storage.put("x", [DATA], unique_id(1)))
    world.run(lambda: bool(storage.bucket.in_flight()))
    putting.cancel()
    world.run(putting.done)
    process.run(asyncio.sleep(1))
    assert process.run(storage.head("x")) is not None


@pytest.mark.parametrize("point", ["object.get.failed", "object.head.failed", "object.list.failed"])
def test_a_refused_check_can_be_taken_again(
    point: str, world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    async def look() -> object:
        if point == "object.get.failed":
            return await storage.get_range("x", 0, 1)
        return await storage.head("x") if point == "object.head.failed" else await listed(storage)

    put(process, storage)
    world.plan(point)
    refused(process, look())
    assert process.run(look())
    assert storage.statistics().errors == 1


@pytest.mark.parametrize("point", ["object.get.truncated", "object.get.wrong-range"])
def test_a_wrong_body_is_an_error_or_has_the_right_length_and_is_not_given_twice(
    point: str,
) -> None:
    errors = wrong = 0
    for seed in range(20):
        with fake_world(seed) as world:
            process = world.process()
            storage = SimulatedObjectStorage(SimulatedBucket(), process)
            put(process, storage)
            world.plan(point, 1000)
            bodies: list[bytes] = []
            for _ in range(50):
                try:
                    bodies.append(process.run(storage.get_range("x", 10, 100)))
                except StorageUnavailableError:
                    errors += 1
            assert len(bodies) == 1
            assert len(bodies[0]) == 100
            wrong += bodies[0] != DATA[10:110]
    assert errors == 20 * 49
    assert wrong >= 18


def test_after_a_wrong_body_come_right_ones_for_a_while_however_long_the_reader_was_stopped(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    def body() -> bytes:
        while True:
            world.plan("object.get.truncated")
            try:
                return process.run(storage.get_range("x", 0, 200))
            except StorageUnavailableError:
                world.heal()
                if world.time.now_us > limit_us:
                    return process.run(storage.get_range("x", 0, 200))

    put(process, storage)
    limit_us = world.time.now_us + 60_000_000
    assert body() != DATA
    world.pass_time(object_storage.CALM_US / 1_000_000)
    assert [body() for _ in range(CALM_BODIES)] == [DATA] * CALM_BODIES
    limit_us = world.time.now_us + 60_000_000
    assert body() != DATA


def test_a_bucket_without_wrong_bodies_gives_none(world: FakeWorld, process: FakeProcess) -> None:
    storage = SimulatedObjectStorage(SimulatedBucket(wrong_bodies=False), process)
    put(process, storage)
    world.plan("object.get.wrong-range", 50)
    for _ in range(50):
        refused(process, storage.get_range("x", 0, 10))
    assert process.run(storage.get_range("x", 0, 10)) == DATA[:10]


def test_a_slow_request_takes_seconds(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    begun = world.time.now_us
    put(process, storage)
    assert 1_000 <= world.time.now_us - begun <= 20_000
    world.plan("object.slow")
    begun = world.time.now_us
    process.run(storage.head("x"))
    assert 1_000_000 <= world.time.now_us - begun <= 20_020_000


@pytest.mark.parametrize(
    ("point", "least_s", "most_s"),
    share([("object.burst", 1, 30), ("object.away", 600, 600)], 2, 6),
)
def test_for_a_while_every_request_is_refused_whoever_asks(
    point: str,
    least_s: float,
    most_s: float,
    world: FakeWorld,
    process: FakeProcess,
    storage: SimulatedObjectStorage,
) -> None:
    put(process, storage)
    other = world.process()
    elsewhere = SimulatedObjectStorage(storage.bucket, other)
    world.plan(point)
    begun = world.time.now_us
    refused(process, storage.put("y", [DATA], unique_id(2)))
    refused(other, elsewhere.get_range("x", 0, 1))
    refused(other, elsewhere.delete("x"))
    refused(process, listed(storage))
    while True:
        try:
            process.run(storage.head("x"))
        except StorageUnavailableError:
            continue
        break
    assert least_s * 1e6 <= world.time.now_us - begun <= most_s * 1e6 + 40_000
    assert contents(storage.bucket) == {"x": DATA}
    assert world.struck == [point]


def test_while_it_throttles_a_few_requests_a_second_pass(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    put(process, storage)
    world.plan("object.throttled")
    refused(process, storage.head("x"))
    passed: dict[int, int] = {}
    answers = 0
    while world.time.now_us < 40_000_000:
        second = world.time.now_us // 1_000_000
        try:
            process.run(storage.head("x"))
        except StorageUnavailableError:
            continue
        answers += 1
        passed[second] = passed.get(second, 0) + 1
    rate = passed[1]
    assert 1 <= rate <= object_storage.THROTTLED_RATE_MAX
    assert passed[39] > 3 * rate
    assert min(passed) <= 1
    assert answers > 100


def test_a_listing_that_lags_shows_what_was(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    def names() -> list[str]:
        return [found.name for found in process.run(listed(storage))]

    for number, name in enumerate("abc"):
        put(process, storage, name, number=number)
    process.run(asyncio.sleep(10))
    process.run(storage.delete("a"))
    put(process, storage, "d", number=9)
    assert names() == ["b", "c", "d"]
    seen = []
    for _ in range(40):
        world.plan("object.list.lags", 2)
        seen.append(tuple(names()))
    assert ("a", "b", "c") in seen
    # Each page lags for itself: the first may be older than the second.
    assert set(seen) <= {("a", "b", "c"), ("a", "b", "c", "d"), ("b", "c"), ("b", "c", "d")}
    process.run(asyncio.sleep(10))
    world.plan("object.list.lags")
    assert names() == ["b", "c", "d"]


def test_a_flipped_bit_stays(process: FakeProcess, storage: SimulatedObjectStorage) -> None:
    put(process, storage)
    before = storage.bucket.fingerprint()
    storage.bucket.flip_bit("x", 3, 7)
    assert storage.bucket.fingerprint() != before
    assert process.run(storage.get_range("x", 0, 5)) == bytes((1, 2, 3, 4 ^ 0x80, 5))
    storage.bucket.flip_bit("x", 3, 7)
    assert storage.bucket.fingerprint() == before


def test_a_copy_goes_its_own_way_with_what_still_takes_effect(
    world: FakeWorld, process: FakeProcess, storage: SimulatedObjectStorage
) -> None:
    bucket = storage.bucket
    put(process, storage, "there")
    world.plan("object.put.late")
    refused(process, storage.put("late", [DATA], unique_id(2)))
    puts = [process.start(storage.put(f"new-{n}", [DATA], unique_id(n))) for n in range(10, 30)]
    world.run(lambda: bucket.in_flight() == 21)
    twin = bucket.copy()
    world.run(lambda: all(one.done() for one in puts))
    bucket.settle_all()
    assert len(bucket.objects) == 22
    assert contents(twin) == {"there": DATA}
    twin.settle_all()
    assert {"there", "late"} < set(twin.objects)
    assert 3 < len(twin.objects) < 22


def test_equal_seeds_give_equal_buckets_and_times() -> None:
    def one_run() -> list[object]:
        with fake_world(7) as world:
            process = world.process()
            storage = SimulatedObjectStorage(SimulatedBucket(), process)
            world.plan("object.put.late", 2, after=3)
            for number in range(10):
                try:
                    put(process, storage, f"n-{number}", number=number)
                except StorageUnavailableError:
                    process.run(asyncio.sleep(5))
            process.run(storage.delete("n-1"))
            with pytest.raises(ObjectNotFoundError):
                process.run(storage.get_range("n-1", 0, 1))
            return [
                world.time.now_us,
                process.effects,
                storage.bucket.fingerprint(),
                storage.bucket.objects,
            ]

    assert one_run() == one_run()
