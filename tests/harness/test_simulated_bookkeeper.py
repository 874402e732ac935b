"""The simulated BookKeeper: both contracts, and each thing it does to a log by its exact
meaning.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.ledger_store import (
    OK,
    LedgerDescription,
    LedgerError,
    LedgerState,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from durablelog.bookkeeper.metadata_node import MetadataNodes, NodeContent, NodeUnavailableError
from recovery.harness.runs.directed import DIRECTIONS
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.bookkeeper_bookies import (
    CLOSED,
    COLLECTED_S,
    FENCED,
    GATEWAY_LOST,
    NO_RECOVERY,
    NOT_ENOUGH_BOOKIES,
    QUORUM_LATE,
    SESSION_S,
    TIMED_OUT,
    BookKeeperServers,
)
from recovery.harness.simulation.bookkeeper_gateway import ADD_TIMEOUT_S, METADATA_TIMEOUT_S
from recovery.harness.simulation.bookkeeper_ledgers import SimulatedLedgers, SimulatedWriter
from recovery.harness.simulation.bookkeeper_nodes import SimulatedNodes
from tests.contracts.ledger_store_contract import (
    LedgerStoreContract,
    LedgerWorld,
    Results,
    read_all,
)
from tests.contracts.metadata_node_contract import MetadataNodeContract, NodeWorld
from tests.contracts.node_coordination_contract import NodeCoordinationContract
from tests.harness.fake_process import DiedError, FakeProcess, FakeWorld, fake_world

REPLICATION = Replication(3, 3, 2)


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with fake_world() as made:
        yield made


class _Ledgers(LedgerWorld):
    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        self.servers = BookKeeperServers()

    async def connect(self) -> LedgerStore:
        return SimulatedLedgers(self.servers, self.process)


class TestSimulatedLedgers(LedgerStoreContract):
    @pytest.fixture(autouse=True)
    def _world(self, world: FakeWorld) -> None:
        self.process = world.process()
        self.world = _Ledgers(self.process)

    def make_world(self, tmp_path: Path) -> LedgerWorld:
        return self.world

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.process.run(asyncio.wait_for(coroutine, 600))


class _Nodes(NodeWorld):
    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        self.servers = BookKeeperServers()

    async def connect(self) -> MetadataNodes:
        return SimulatedNodes(self.servers, self.process)

    async def lose_session(self, nodes: MetadataNodes) -> None:
        assert isinstance(nodes, SimulatedNodes)
        nodes.lose_session()


class TestSimulatedNodes(MetadataNodeContract, NodeCoordinationContract):
    @pytest.fixture(autouse=True)
    def _world(self, world: FakeWorld) -> None:
        self.process = world.process()
        self.world = _Nodes(self.process)

    def make_world(self, tmp_path: Path) -> NodeWorld:
        return self.world

    # Run by a process of the world.
    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:  # type: ignore[override]
        self.process.run(asyncio.wait_for(coroutine, 60))


class Stage:
    """A cluster, and a process whose writer has some entries OK."""

    def __init__(self, world: FakeWorld, entries: int = 3) -> None:
        self.world = world
        self.servers = BookKeeperServers()
        self.process = world.process("writer")
        self.store = SimulatedLedgers(self.servers, self.process)
        self.other = world.process("other")
        self.other_store = SimulatedLedgers(self.servers, self.other)
        self.writer, self.results = self.process.run(self._begin(entries))
        self.sent = entries

    def append(self, count: int) -> list[int]:
        """Append so many, wait for all; their codes."""
        return self.process.run(self._append(count))

    def send(self, count: int) -> None:
        """Hand so many to the gateway."""

        async def case() -> None:
            self._add(count)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.process.run(case())

    def recover(self) -> LedgerDescription:
        """By the other process."""
        return self.other.run(self.other_store.recover(self.writer.ledger_id))

    def read(self, last: int) -> list[bytes]:
        return self.other.run(read_all(self.other_store, self.writer.ledger_id, 0, last))

    async def stream(self, count: int) -> None:
        """Append so many, one after another without waiting for it."""
        for _ in range(count):
            self._add(1)
            await asyncio.sleep(0.0003)

    def codes(self) -> list[int]:
        """Of all reports so far."""
        return [result.code for result in self.results.got]

    async def _begin(self, entries: int) -> tuple[LedgerWriter, Results]:
        writer = await self.store.create(REPLICATION, {})
        results = Results(writer)
        for number in range(entries):
            writer.append([data(number)])
        await results.until(entries)
        return writer, results

    def _add(self, count: int) -> None:
        for _ in range(count):
            self.writer.append([data(self.sent)])
            self.sent += 1

    async def _append(self, count: int) -> list[int]:
        before = len(self.results.got)
        self._add(count)
        await self.results.until(self.sent)
        return [result.code for result in self.results.got[before:]]


def data(number: int) -> bytes:
    return b"entry %d" % number


@pytest.fixture
def stage(world: FakeWorld) -> Stage:
    return Stage(world)


def test_entries_go_on_with_one_bookie_dead_and_the_recovery_has_them(stage: Stage) -> None:
    stage.servers.bookies[1].kill(stage.world.time.now_us, 60)
    assert stage.append(20) == [OK] * 20
    assert stage.recover().last_entry == 22
    assert stage.read(22) == [data(number) for number in range(23)]


def test_with_two_dead_everything_pending_fails_alike_and_what_comes_later_finds_a_dead_handle(
    stage: Stage,
) -> None:
    for bookie in stage.servers.bookies[:2]:
        bookie.kill(stage.world.time.now_us, 60)
    assert stage.append(5) == [NOT_ENOUGH_BOOKIES] * 5
    assert stage.append(2) == [CLOSED] * 2
    assert "bookkeeper.add.not-enough" in stage.world.struck
    stage.world.pass_time(70)
    assert stage.recover().last_entry == 2


def test_with_two_stopped_entries_fail_at_the_timeout_and_are_stored_all_the_same() -> None:
    seen = set()
    for seed in range(20):
        with fake_world(seed) as world:
            stage = Stage(world)
            for bookie in stage.servers.bookies[:2]:
                bookie.stop(world.time.now_us, 20)
            begun = world.time.now_us
            codes = stage.append(3)
            assert len(set(codes)) == 1
            assert ADD_TIMEOUT_S * 1e6 <= world.time.now_us - begun < ADD_TIMEOUT_S * 1e6 + 10_000
            seen.add(codes[0])
            world.pass_time(30)
            assert stage.recover().last_entry == 2
            assert all(
                5 in bookie.replica(stage.writer.ledger_id).entries
                for bookie in stage.servers.bookies
            )
    assert seen == {NOT_ENOUGH_BOOKIES, QUORUM_LATE, TIMED_OUT}


def test_a_fenced_writer_learns_of_the_fence_or_of_a_closed_ledger_first() -> None:
    first = set()
    for seed in range(60):
        with fake_world(seed) as world:
            stage = Stage(world)
            streaming = stage.process.start(stage.stream(60))
            recovering = stage.other.start(stage.other_store.recover(stage.writer.ledger_id))
            world.run(
                lambda recovering=recovering, streaming=streaming: (  # type: ignore[misc]
                    recovering.done() and streaming.done()
                )
            )
            codes = stage.append(1)
            assert codes[-1] in {FENCED, CLOSED}
            told = stage.codes()
            good = told.count(OK)
            assert told[:good] == [OK] * good
            assert recovering.result().last_entry >= good - 1
            bad = [code for code in told if code != OK]
            first.add(bad[0])
            assert stage.read(good - 1) == [data(number) for number in range(good)]
    assert first == {FENCED, CLOSED}


def test_of_a_dead_writers_entries_what_was_ok_is_left_and_of_the_others_some_prefix() -> None:
    lasts = set()
    for seed in range(60):
        with fake_world(seed) as world:
            stage = Stage(world)
            stage.send(4)
            stage.process.die()
            world.pass_time(seed % 3)
            last = stage.recover().last_entry
            assert stage.read(last) == [data(number) for number in range(last + 1)]
            assert stage.recover().last_entry == last
            lasts.add(last)
    assert lasts == {2, 3, 4, 5, 6}


def test_a_process_dies_before_an_entry_is_sent(stage: Stage) -> None:
    stage.process.dies_before = "bookkeeper.append"
    with pytest.raises(DiedError):
        stage.append(1)
    stage.world.pass_time(100)
    assert stage.recover().last_entry == 2


@pytest.mark.parametrize("kind", ["recover", "fence", "rewrite", "close"])
def test_a_recovery_dies_at_any_step_and_another_one_finds_the_same(
    kind: str, stage: Stage
) -> None:
    stage.other.dies_before = f"bookkeeper.{kind}"
    with pytest.raises(DiedError):
        stage.recover()
    stage.other = stage.world.process("heir")
    stage.other_store = SimulatedLedgers(stage.servers, stage.other)
    found = stage.recover()
    assert (found.state, found.last_entry) == (LedgerState.CLOSED, 2)


def test_two_recoveries_at_once_end_at_the_same_entry() -> None:
    for seed in range(40):
        with fake_world(seed) as world:
            stage = Stage(world)
            stage.send(5)
            third = world.process("third")
            both = [
                process.start(
                    SimulatedLedgers(stage.servers, process).recover(stage.writer.ledger_id)
                )
                for process in (stage.other, third)
            ]
            # A default is a default.
            world.run(lambda both=both: all(each.done() for each in both))  # type: ignore[misc]
            assert both[0].result() == both[1].result()


def test_a_recovery_needs_two_of_three(stage: Stage) -> None:
    for bookie in stage.servers.bookies[:2]:
        bookie.kill(stage.world.time.now_us, 30)
    with pytest.raises(LedgerError) as refused:
        stage.recover()
    assert refused.value.code == NO_RECOVERY
    stage.world.pass_time(40)
    assert stage.recover().last_entry == 2


def test_a_wiped_bookie_says_nothing_of_what_it_may_have_had() -> None:
    for seed in range(30):
        with fake_world(seed) as world:
            stage = Stage(world)
            stage.servers.bookies[2].stop(world.time.now_us, 3)
            assert stage.append(3) == [OK] * 3
            stage.servers.bookies[0].wipe()
            stage.servers.bookies[2].kill(world.time.now_us, 10)
            with pytest.raises(LedgerError) as refused:
                stage.recover()
            assert refused.value.code == NO_RECOVERY
            world.pass_time(20)
            assert stage.recover().last_entry == 5
            assert stage.read(5) == [data(number) for number in range(6)]


def test_a_killed_gateway_leaves_every_outcome_open_and_the_next_call_starts_another() -> None:
    lasts = set()
    for seed in range(40):
        with fake_world(seed) as world:
            stage = Stage(world)
            world.plan("bookkeeper.gateway.killed", after=3)
            assert set(stage.append(6)) <= {OK, GATEWAY_LOST}
            good = stage.codes().count(OK)
            assert stage.codes() == [OK] * good + [GATEWAY_LOST] * (9 - good)
            found = stage.process.run(stage.store.recover(stage.writer.ledger_id))
            assert good - 1 <= found.last_entry <= 6
            lasts.add(found.last_entry)
    assert len(lasts) > 2


def test_a_ledger_whose_gateway_is_killed_behind_its_answer_has_a_writer_that_learns_of_it(
    stage: Stage,
) -> None:
    ledger_id = stage.writer.ledger_id
    gateway = stage.store._gateway
    assert gateway is not None
    gateway.end()

    async def case() -> None:
        writer = SimulatedWriter(stage.store, gateway, ledger_id, stage.servers.records[ledger_id])
        results = Results(writer)
        writer.append([data(0)])
        assert [result.code for result in await results.until(1)] == [GATEWAY_LOST]

    stage.process.run(case())


def test_a_stopped_process_gets_when_it_goes_on_what_was_ok_before_it_was_fenced(
    stage: Stage,
) -> None:
    stage.send(4)
    stage.process.paused = True
    stage.world.pass_time(0.1)
    last = stage.recover().last_entry
    assert last == 6
    assert len(stage.results.got) == 3
    stage.process.paused = False
    assert stage.append(1)[-1] == FENCED
    assert stage.codes() == [OK] * 7 + [FENCED]


def test_a_writer_stopped_before_an_entry_sends_it_when_it_goes_on(stage: Stage) -> None:
    stage.process.pauses_before = "bookkeeper.append"
    appending = stage.process.start(stage._append(2))
    stage.world.run(lambda: stage.process.paused)
    stage.world.pass_time(10)
    stage.process.pauses_before, stage.process.paused = "", False
    stage.world.run(appending.done)
    assert appending.result() == [OK] * 2


def test_a_deleted_ledger_takes_entries_again_when_its_fence_was_collected(stage: Stage) -> None:
    stage.recover()
    stage.other.run(stage.other_store.delete(stage.writer.ledger_id))
    stage.world.pass_time(COLLECTED_S + 1)
    assert stage.append(1) == [OK]


def test_dead_bookies_are_registered_for_a_while_and_then_too_few_for_a_ledger(
    stage: Stage,
) -> None:
    stage.servers.bookies[0].kill(stage.world.time.now_us, 100)
    stage.other.run(stage.other_store.create(REPLICATION, {}))
    stage.world.pass_time(SESSION_S + 1)
    with pytest.raises(LedgerError) as refused:
        stage.other.run(stage.other_store.create(REPLICATION, {}))
    assert refused.value.code == NOT_ENOUGH_BOOKIES
    writer = stage.other.run(stage.other_store.create(Replication(2, 2, 2), {}))
    found = stage.other.run(stage.other_store.describe(writer.ledger_id))
    assert sorted(found.bookies) == ["bookie-1", "bookie-2"]


def test_calls_wait_for_zookeeper_and_may_be_done_when_no_caller_waits_any_more(
    stage: Stage,
) -> None:
    stage.servers.zookeeper.stop(stage.world.time.now_us, METADATA_TIMEOUT_S - 5)
    stage.other.run(stage.other_store.create(REPLICATION, {}))
    stage.servers.zookeeper.stop(stage.world.time.now_us, METADATA_TIMEOUT_S + 5)
    assert stage.append(3) == [OK] * 3
    with pytest.raises(LedgerError) as late:
        stage.other.run(stage.other_store.create(REPLICATION, {}))
    assert late.value.code == TIMED_OUT
    stage.other.run(asyncio.sleep(10))
    assert stage.other.run(stage.other_store.list_ids()) == [0, 1, 2]


def test_a_late_answer_comes_of_a_call_that_was_done(stage: Stage) -> None:
    stage.world.plan("bookkeeper.call.late")
    with pytest.raises(LedgerError) as late:
        stage.recover()
    assert late.value.code == TIMED_OUT
    assert stage.servers.records[stage.writer.ledger_id].state is LedgerState.CLOSED


@pytest.mark.parametrize(
    ("point", "left"), [("node.change.lost", b"0"), ("node.change.lost-reply", b"1")]
)
def test_a_change_of_a_node_without_an_answer_happened_or_not(
    point: str, left: bytes, world: FakeWorld
) -> None:
    process = world.process()
    nodes = SimulatedNodes(BookKeeperServers(), process)
    process.run(nodes.create("/a", b"0"))
    world.plan(point)
    with pytest.raises(NodeUnavailableError):
        process.run(nodes.write("/a", b"1", 0))
    assert process.run(nodes.read("/a")) == NodeContent(left, int(left))


def test_an_abandoned_change_comes_before_the_next_call(world: FakeWorld) -> None:
    process, servers = world.process(), BookKeeperServers()
    nodes = SimulatedNodes(servers, process)
    process.run(nodes.create("/a", b"0"))
    servers.zookeeper.stop(world.time.now_us, 15)
    with pytest.raises(NodeUnavailableError):
        process.run(nodes.write("/a", b"1", 0))
    assert process.run(nodes.read("/a")) == NodeContent(b"1", 1)


def test_what_a_dead_process_had_sent_to_a_node_arrives_or_not_and_maybe_late() -> None:
    found = set()
    for seed in range(40):
        with fake_world(seed) as world:
            process, other, servers = world.process(), world.process(), BookKeeperServers()
            nodes, others = SimulatedNodes(servers, process), SimulatedNodes(servers, other)
            process.run(nodes.create("/a", b"0"))
            writing = process.start(nodes.write("/a", b"1", 0))
            process.loop.run_ready()
            process.die()
            assert not writing.done()
            seen = [other.run(others.read("/a")) for _ in range(2)]
            found.add(tuple(content.data for content in seen if content is not None))
    assert found == {(b"0", b"0"), (b"0", b"1"), (b"1", b"1")}


def test_a_store_on_the_simulated_cluster_runs_the_same_way_from_the_same_seed() -> None:
    drawn = DIRECTIONS["bookkeeper"](draw_plan("same/0", "everything"))
    plan = dataclasses.replace(drawn, cycles=drawn.cycles[:4])
    one, again = Scenario(plan).run(), Scenario(plan).run()
    assert (one.digest, one.points) == (again.digest, again.points)
    assert [str(violation) for violation in one.violations] == []
    assert any(point.startswith("bookkeeper.bookie.") for point in one.points)
