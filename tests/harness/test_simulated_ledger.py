"""The simulated Tier-1 service: the contract, each fault by its exact meaning, death and fencing at
every moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import DurableDataLog, LogAddress
from recovery.harness.simulation.ledger import (
    LATENCY_US,
    SLOW_US,
    SimulatedLedgerLog,
    SimulatedLedgerStore,
)
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    DurableDataLogContract,
    LogWorld,
    append_all,
    payload,
    read_all,
    read_payloads,
)
from tests.harness.fake_process import DiedError, FakeProcess, FakeWorld, fake_world

Outcome = LogAddress | BaseException


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with fake_world() as made:
        yield made


@pytest.fixture
def store() -> SimulatedLedgerStore:
    return SimulatedLedgerStore()


class _LedgerWorld(LogWorld):
    def __init__(self, world: FakeWorld, process: FakeProcess) -> None:
        self.world = world
        self.process = process
        self.store = SimulatedLedgerStore()

    def make_log(self) -> DurableDataLog:
        return SimulatedLedgerLog(self.store, 0, self.process, PAYLOAD_BYTES_MAX)

    def usurp(self) -> None:
        """The service does not show which owners are alive."""

    def fail_append_after(self, appends: int) -> None:
        self.world.plan("ledger.append.lost", after=appends)


class TestSimulatedLedgerLog(DurableDataLogContract):
    @pytest.fixture(autouse=True)
    def _world(self, world: FakeWorld) -> None:
        self.process = world.process()
        self.world = _LedgerWorld(world, self.process)

    def make_world(self, tmp_path: Path) -> LogWorld:
        return self.world

    # Run by a process of the world.
    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:  # type: ignore[override]
        self.process.run(asyncio.wait_for(coroutine, 30))


def make_log(process: FakeProcess, store: SimulatedLedgerStore) -> SimulatedLedgerLog:
    return SimulatedLedgerLog(store, 0, process, PAYLOAD_BYTES_MAX)


def opened(process: FakeProcess, store: SimulatedLedgerStore) -> SimulatedLedgerLog:
    log = make_log(process, store)
    process.run(log.open())
    return log


def appended(process: FakeProcess, log: SimulatedLedgerLog, count: int) -> list[Outcome]:
    """Outcomes of so many appends made at once."""

    async def case() -> list[Outcome]:
        return list(
            await asyncio.gather(
                *[log.append([payload(n)]) for n in range(count)], return_exceptions=True
            )
        )

    return process.run(case())


def sent(
    process: FakeProcess, log: SimulatedLedgerLog, count: int
) -> list[asyncio.Future[LogAddress]]:
    """So many appends, on their way."""

    async def case() -> list[asyncio.Future[LogAddress]]:
        futures = [log.append([payload(n)]) for n in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return futures

    return process.run(case())


def stored(store: SimulatedLedgerStore) -> list[bytes]:
    return [bytes(frame.payload) for frame in store.frames(0)]


def payloads(count: int) -> list[bytes]:
    return [payload(n) for n in range(count)]


def test_appends_are_pipelined_and_take_their_time(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    begun = world.time.now_us
    assert all(isinstance(outcome, int) for outcome in appended(process, log, 200))
    assert LATENCY_US[1] * 0.8 < world.time.now_us - begun <= LATENCY_US[1]
    assert [kind for kind, _, _ in process.effects] == ["ledger.open"] + ["ledger.append"] * 200


def test_frames_are_durable_before_they_are_acknowledged(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    between = 0
    for _ in range(20):
        (future,) = sent(process, log, 1)
        before = len(stored(store))
        while not future.done():
            store.ledger(0).settle(world.time.now_us)
            between += len(stored(store)) > before
            process.run(asyncio.sleep(0.0001))
    assert between > 20
    assert len(stored(store)) == 20


def test_a_lost_append_leaves_nothing_and_finishes_the_log(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    world.plan("ledger.append.lost", after=2)
    outcomes = appended(process, log, 10)
    assert [isinstance(outcome, TierUnavailableError) for outcome in outcomes] == [False] * 2 + [
        True
    ] * 8
    assert isinstance(appended(process, log, 1)[0], TierUnavailableError)
    store.settle_all()
    assert stored(store) == payloads(2)
    assert world.struck == ["ledger.append.lost"]


def test_an_append_in_doubt_fails_and_is_there(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    world.plan("ledger.append.in-doubt", after=2)
    outcomes = appended(process, log, 10)
    assert [isinstance(outcome, TierUnavailableError) for outcome in outcomes] == [False] * 2 + [
        True
    ] * 8
    assert stored(store)[:3] == payloads(3)
    process.run(log.close())
    again = opened(process, store)
    left = stored(store)
    assert left == payloads(len(left))
    assert isinstance(appended(process, again, 1)[0], int)
    assert [frame.sequence for frame in store.frames(0)] == list(range(1, len(left) + 2))


def test_a_repeated_append_is_there_twice_and_read_as_one(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    world.plan("ledger.append.repeated", after=1)
    addresses = appended(process, log, 3)
    frames = store.frames(0)
    assert [frame.sequence for frame in frames] == [1, 2, 2, 3]
    assert [bytes(frame.payload) for frame in frames] == [
        payload(0),
        payload(1),
        payload(1),
        payload(2),
    ]
    assert addresses == [frames[0].address, frames[1].address, frames[3].address]
    assert [frame.address for frame in frames] == sorted({frame.address for frame in frames})
    reader = DataFrameReader()
    accepted = [reader._accept(frame) for frame in process.run(read_all(log))]
    assert accepted == [True, True, False, True]
    process.run(log.truncate(frames[1].address))
    assert [frame.sequence for frame in process.run(read_all(log))] == [2, 2, 3]


def test_a_slow_append_holds_up_those_behind_it(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    world.plan("ledger.append.slow")
    begun = world.time.now_us
    assert appended(process, log, 3) == [frame.address for frame in store.frames(0)]
    assert SLOW_US[0] < world.time.now_us - begun <= SLOW_US[1] + LATENCY_US[1]


def test_an_opening_that_is_refused_fences_no_owner_and_can_be_tried_again(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    old, new = world.process(), world.process()
    log = opened(old, store)
    world.plan("ledger.open.unavailable")
    other = make_log(new, store)
    with pytest.raises(TierUnavailableError):
        new.run(other.open())
    assert isinstance(appended(old, log, 1)[0], int)
    new.run(other.open())
    assert other.epoch == 2
    assert isinstance(appended(old, log, 1)[0], NotPrimaryError)


def test_a_read_that_is_refused_can_be_tried_again(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    appended(process, log, 3)
    world.plan("ledger.read.unavailable")
    with pytest.raises(TierUnavailableError):
        process.run(read_payloads(log))
    assert process.run(read_payloads(log)) == payloads(3)


def test_of_a_dead_owners_frames_a_prefix_of_any_length_is_left() -> None:
    lengths: dict[int, int] = {}
    for seed in range(60):
        with fake_world(seed) as world:
            store = SimulatedLedgerStore()
            process = world.process()
            sent(process, opened(process, store), 4)
            process.die()
            heir = world.process()
            left = heir.run(read_payloads(opened(heir, store)))
            assert left == payloads(len(left))
            lengths[len(left)] = lengths.get(len(left), 0) + 1
    assert sorted(lengths) == [0, 1, 2, 3, 4]


def test_a_process_dies_before_the_frame_is_sent(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    process.dies_before = "ledger.append"
    with pytest.raises(DiedError):
        appended(process, log, 1)
    store.settle_all()
    assert stored(store) == []


@pytest.mark.parametrize("kind", ["ledger.open", "ledger.truncate"])
def test_a_process_dies_before_it_opens_or_truncates(
    kind: str, world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    addresses = process.run(append_all(log, range(3)))
    process.dies_before = kind
    with pytest.raises(DiedError):
        process.run(
            log.truncate(addresses[2])
            if kind == "ledger.truncate"
            else make_log(process, store).open()
        )
    heir = world.process()
    again = opened(heir, store)
    assert (again.epoch, heir.run(read_payloads(again))) == (2, payloads(3))


def test_a_takeover_at_any_time_splits_the_frames_in_flight() -> None:
    """The old owner is paused in the middle of its appends; the new one sees what was durable, the
    old one is refused.
    """
    left_behind: dict[int, int] = {}
    for seed in range(40):
        with fake_world(seed) as world:
            store = SimulatedLedgerStore()
            old, new = world.process(), world.process()
            log = opened(old, store)
            futures = sent(old, log, 5)
            old.paused = True
            world.pass_time(seed / 10_000)
            heir = opened(new, store)
            seen = new.run(read_payloads(heir))
            old.paused = False
            outcomes = old.run(asyncio.wait_for(_outcomes(futures), 60))
            assert all(isinstance(outcome, NotPrimaryError) for outcome in outcomes)
            with pytest.raises(NotPrimaryError):
                old.run(_wait(log.append([b"late"])))
            assert seen == payloads(len(seen))
            assert new.run(read_payloads(heir)) == seen
            left_behind[len(seen)] = left_behind.get(len(seen), 0) + 1
    assert {0, 5} < set(left_behind)


def test_what_an_old_owner_gets_acknowledged_during_a_takeover_is_in_the_new_owners_log() -> None:
    acknowledged = refused = 0
    for seed in range(40):
        with fake_world(seed) as world:
            store = SimulatedLedgerStore()
            old, new = world.process(), world.process()
            log = opened(old, store)
            heir = make_log(new, store)
            opening = new.start(heir.open())
            outcomes = appended(old, log, 5)
            world.run(opening.done)
            good = [outcome for outcome in outcomes if isinstance(outcome, int)]
            assert outcomes[: len(good)] == good
            assert all(isinstance(outcome, NotPrimaryError) for outcome in outcomes[len(good) :])
            assert new.run(read_payloads(heir))[: len(good)] == payloads(len(good))
            acknowledged += len(good)
            refused += 5 - len(good)
    assert acknowledged
    assert refused


def test_a_process_stopped_before_a_frame_sends_it_when_it_goes_on(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    process.pauses_before = "ledger.append"
    appending = process.start(append_all(log, range(2)))
    world.run(lambda: process.paused)
    assert store.in_flight(0) == 0
    world.pass_time(100)
    process.pauses_before, process.paused = "", False
    world.run(appending.done)
    assert appending.result() == [frame.address for frame in store.frames(0)]
    assert len(process.effects) == 3


def test_a_process_stopped_before_a_truncation_is_refused_after_a_takeover(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    old, new = world.process(), world.process()
    log = opened(old, store)
    addresses = old.run(append_all(log, range(3)))
    old.pauses_before = "ledger.truncate"
    truncating = old.start(log.truncate(addresses[2]))
    world.run(lambda: old.paused)
    heir = opened(new, store)
    old.paused = False
    world.run(truncating.done)
    assert isinstance(truncating.exception(), NotPrimaryError)
    assert new.run(read_payloads(heir)) == payloads(3)


def test_a_copy_goes_its_own_way_with_as_many_frames_in_flight_as_asked_for(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    futures = sent(process, log, 3)
    copies = [store.copy(arrived) for arrived in range(store.in_flight(0) + 1)]
    process.run(_outcomes(futures))
    assert [stored(copy) for copy in copies] == [payloads(n) for n in range(4)]
    assert stored(store) == payloads(3)
    heir = world.process()
    assert opened(heir, copies[1]).epoch == 2
    assert isinstance(appended(process, log, 1)[0], int)


def test_a_log_that_is_closed_while_it_opens_stays_closed(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = make_log(process, store)

    async def case() -> None:
        opening = asyncio.create_task(log.open())
        await asyncio.sleep(0)
        await log.close()
        with pytest.raises(ContainerStoppedError):
            await opening
        with pytest.raises(ContainerStoppedError):
            await log.append([b"x"])

    process.run(case())


def test_settled_is_reported_once_for_all_that_settles_together(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    log = opened(process, store)
    done: list[int] = []

    async def case() -> None:
        futures = [log.append([payload(n)]) for n in range(20)]
        log.on_settled = lambda: done.append(sum(future.done() for future in futures))
        await asyncio.gather(*futures)

    process.run(case())
    assert done == sorted(set(done))
    assert done[-1] == 20


def test_containers_are_apart_and_a_payload_bound_below_one_is_refused(
    world: FakeWorld, store: SimulatedLedgerStore
) -> None:
    process = world.process()
    logs = [SimulatedLedgerLog(store, container_id, process, 200) for container_id in (0, 1)]
    for log in logs:
        process.run(log.open())
    appended(process, logs[0], 1)
    process.run(_wait(logs[1].append([b"b"])))
    assert [len(store.frames(container_id)) for container_id in (0, 1)] == [1, 1]
    with pytest.raises(ValueError, match="payload_bytes_max"):
        SimulatedLedgerLog(store, 0, process, 0)


def test_equal_seeds_give_equal_logs() -> None:
    def one_run() -> list[object]:
        with fake_world(7) as world:
            store = SimulatedLedgerStore()
            process = world.process()
            log = opened(process, store)
            world.plan("ledger.append.slow", 3, after=10)
            appended(process, log, 30)
            return [world.time.now_us, process.effects, stored(store)]

    assert one_run() == one_run()


async def _outcomes(futures: list[asyncio.Future[LogAddress]]) -> list[Outcome]:
    return list(await asyncio.gather(*futures, return_exceptions=True))


async def _wait(future: asyncio.Future[LogAddress]) -> LogAddress:
    return await future
