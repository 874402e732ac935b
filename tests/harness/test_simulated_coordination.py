"""Watches, elections and held nodes of several simulated processes: what reaches whom, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from durablelog.bookkeeper.memory_sessions import CHECK_S, SESSION_S
from durablelog.bookkeeper.metadata_node import NodeContent, NodeUnavailableError
from recovery.harness.simulation.bookkeeper_bookies import BookKeeperServers
from recovery.harness.simulation.bookkeeper_network import LATENCY_S, SLOW_S
from recovery.harness.simulation.bookkeeper_nodes import SimulatedNodes
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from tests.contracts.node_coordination_contract import Calls, candidates
from tests.harness.fake_process import FakeProcess, FakeWorld, fake_world

LEADER = "/leader"


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with fake_world() as made:
        yield made


class Host:
    """A process with a client, which wants to lead, and watches a node of the others."""

    def __init__(self, world: FakeWorld, servers: BookKeeperServers, name: str) -> None:
        self.world = world
        self.name = name
        self.process: FakeProcess = world.process(name)
        self.nodes = SimulatedNodes(servers, self.process)
        self.calls = Calls()
        self._leading: asyncio.Task[None] | None = None
        self.led = 0
        self.lost = 0

    def begin(self) -> None:
        self._leading = self.process.start(self._lead())

    def enters(self, order: list[str]) -> None:
        """Begin, and wait until the candidates are these."""
        self.begin()
        identities = [name.encode() for name in order]
        self.process.run(candidates(self.nodes, LEADER, identities))

    def leads(self) -> bool:
        return self.nodes.leads(LEADER)

    def until_leads(self) -> float:
        """Seconds until it does."""
        begun_us = self.world.time.now_us
        self.world.run(self.leads)
        return (self.world.time.now_us - begun_us) / MICROSECONDS

    def until_lost(self) -> None:
        lost = self.lost
        self.world.run(lambda: self.lost > lost)

    async def _lead(self) -> None:
        while True:
            ended = asyncio.Event()
            await self.nodes.lead(LEADER, self.name, ended.set)
            self.led += 1
            await ended.wait()
            self.lost += 1


@pytest.fixture
def servers() -> BookKeeperServers:
    return BookKeeperServers()


@pytest.fixture
def hosts(world: FakeWorld, servers: BookKeeperServers) -> list[Host]:
    """Three, the first of which leads, and the others wait in order."""
    made = [Host(world, servers, name) for name in ("a", "b", "c")]
    for place, host in enumerate(made):
        host.enters(["a", "b", "c"][: place + 1])
    made[0].until_leads()
    return made


def test_a_dead_leader_is_followed_by_the_next_within_a_session(hosts: list[Host]) -> None:
    for dead, follower in ((0, 1), (1, 2)):
        hosts[dead].process.die()
        took_s = hosts[follower].until_leads()
        assert SESSION_S <= took_s <= SESSION_S + 2 * CHECK_S
        assert hosts[follower].led == 1
    assert not hosts[0].lost


def test_a_stopped_leader_believes_in_itself_until_it_goes_on(
    world: FakeWorld, hosts: list[Host]
) -> None:
    first, second, third = hosts
    first.process.paused = True
    second.until_leads()
    assert first.leads()
    first.process.paused = False
    world.run(lambda: first.lost == 1)
    assert not first.leads()
    third.process.run(candidates(third.nodes, LEADER, [b"b", b"c", b"a"]))
    assert [host.led for host in hosts] == [1, 1, 0]


def test_a_process_that_is_stopped_for_less_than_a_session_leads_on(
    world: FakeWorld, hosts: list[Host]
) -> None:
    first, second, _ = hosts
    for _ in range(3):
        first.process.paused = True
        second.process.run(asyncio.sleep(SESSION_S - 2 * CHECK_S))
        first.process.paused = False
        first.process.run(asyncio.sleep(2 * CHECK_S))
    assert [host.led for host in hosts] == [1, 0, 0]
    assert first.leads()
    assert not first.lost


def test_a_session_that_ends_behind_its_leader_is_noticed_and_followed(
    world: FakeWorld, hosts: list[Host]
) -> None:
    for host in (*hosts, *hosts):
        host.until_leads()
        host.nodes.lose_session()
        host.until_lost()
    assert [host.led for host in hosts] == [2, 2, 2]


def test_a_change_takes_its_time_to_who_watches_it(
    world: FakeWorld, servers: BookKeeperServers, hosts: list[Host]
) -> None:
    watcher, writer = hosts[0], hosts[1]
    watch_node(watcher, None)
    writer.process.run(writer.nodes.create("/n", b"0"))
    assert servers.tree.content("/n") is not None
    before, called = world.time.now_us, watcher.calls.count
    world.run(lambda: watcher.calls.count > called)
    took_s = (world.time.now_us - before) / MICROSECONDS
    assert took_s <= max(LATENCY_S)
    watch_node(watcher, NodeContent(b"0", 0))


def watch_node(host: Host, content: NodeContent | None) -> None:
    """Watch "/n", until it has this content."""

    async def scenario() -> None:
        host.nodes.watch("/n", host.calls)
        await host.calls.until(lambda: host.nodes.read("/n"), content)

    host.process.run(scenario())


def test_what_changes_while_the_service_is_stopped_is_reported_when_it_goes_on(
    world: FakeWorld, servers: BookKeeperServers, hosts: list[Host]
) -> None:
    watcher = hosts[0]
    watch_node(watcher, None)
    stopped_us = world.time.now_us
    servers.zookeeper.stop(stopped_us, 60)
    called = watcher.calls.count
    servers.tree.put("/n", b"0")
    world.run(lambda: watcher.calls.count > called)
    assert world.time.now_us >= stopped_us + 60 * MICROSECONDS
    watch_node(watcher, NodeContent(b"0", 0))


def test_a_connection_that_breaks_ends_leadership_until_it_is_asked_for_again(
    world: FakeWorld, servers: BookKeeperServers, hosts: list[Host]
) -> None:
    leader = hosts[0]
    called = leader.calls.count
    watch_node(leader, None)
    servers.zookeeper.kill(world.time.now_us, 2)

    async def read() -> None:
        with pytest.raises(NodeUnavailableError):
            await leader.nodes.read("/n")

    leader.process.run(read())
    assert not leader.leads()
    leader.until_leads()
    world.run(lambda: leader.calls.count > called + 1)
    assert leader.lost == 1
    assert [host.led for host in hosts] == [2, 0, 0], "its session kept its place"


def test_nothing_reaches_a_dead_process_or_a_closed_client(
    world: FakeWorld, servers: BookKeeperServers, hosts: list[Host]
) -> None:
    dead, closed, other = hosts
    for host in (dead, closed):
        watch_node(host, None)
    dead.process.die()
    closed.process.run(closed.nodes.close())
    called = dead.calls.count, closed.calls.count
    other.process.run(other.nodes.create("/n", b""))
    other.process.run(asyncio.sleep(max(SLOW_S)))
    assert (dead.calls.count, closed.calls.count) == called


def test_a_process_that_is_cut_off_is_followed_and_comes_back(
    world: FakeWorld, servers: BookKeeperServers, hosts: list[Host]
) -> None:
    first, second, third = hosts
    first.process.run(first.nodes.hold("/held", b"0"))
    first.nodes.cut_off(2 * SESSION_S)
    second.until_leads()
    assert servers.tree.content("/held") is None
    with pytest.raises(NodeUnavailableError):
        first.process.run(first.nodes.read("/n"))
    first.nodes.heal()
    first.process.run(asyncio.sleep(2 * CHECK_S))
    assert servers.tree.content("/held") is not None
    third.process.run(candidates(third.nodes, LEADER, [b"b", b"c", b"a"]))
