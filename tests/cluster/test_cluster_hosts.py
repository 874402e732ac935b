"""Hosts of one cluster share the containers, and the others serve what one of them had.

Each host is a process of a simulated world, in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from recovery.harness.services.server import free_port
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore import (
    AppendOutcomeUnknownError,
    ConfigError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
    StoreHealth,
)
from segmentstore.config import StoreConfig
from segmentstore.contracts.store_hosts import StoreHosts
from segmentstore.service import SegmentStore
from segmentstore.stats_types import ClusterStats
from tests.store.bookkeeper_world import name_in
from tests.store.harness import LAZY

CONTAINERS = 6
NOT_ACKNOWLEDGED = (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
)


class Hosts:
    """The hosts of one world, by name."""

    def __init__(self, seed: str, containers: int = CONTAINERS) -> None:
        self.world = StoreWorld(
            seed, settings={**LAZY, "containers": containers}, tier1="bookkeeper"
        )
        self.containers = containers
        self.processes: dict[str, SimulatedProcess] = {}
        self.stores: dict[str, SegmentStore] = {}

    def start(self, *names: str) -> None:
        """Start these, one after another."""
        for name in names:
            process = self.processes[name] = self.world.process(name)
            self.stores[name] = self.world.run_task(process, self.world.open_host(process, name))

    def stop(self, name: str) -> None:
        """Close a host's store in order, and end its process."""
        store = self.stores.pop(name)
        process = self.processes.pop(name)
        self.world.run_task(process, store.close())
        self.world.kill(process)

    def kill(self, name: str) -> None:
        del self.stores[name]
        self.world.kill(self.processes.pop(name))

    def served(self) -> dict[str, list[int]]:
        """By host."""
        return {name: store.served for name, store in sorted(self.stores.items())}

    def until(self, holds: Callable[[], bool], timeout_s: float = 120.0) -> float:
        """Let time pass until it holds; the seconds it took."""
        begun_us = self.world.time.now_us
        self.world.run(holds, timeout_s)
        return (self.world.time.now_us - begun_us) / 1e6

    def until_all_served(self, but: str = "") -> float:
        """Until each container is served by one host exactly, `but` aside."""

        def all_served() -> bool:
            numbers = [
                number for name, served in self.served().items() if name != but for number in served
            ]
            return sorted(numbers) == list(range(self.containers))

        return self.until(all_served)

    def health(self, name: str) -> StoreHealth:
        return self.world.run_task(self.processes[name], self.stores[name].fetch_health())

    def numbers(self, name: str) -> ClusterStats:
        stats = self.world.run_task(self.processes[name], self.stores[name].fetch_stats())
        assert stats["cluster"] is not None
        return stats["cluster"]

    def owner(self, container: int) -> str:
        return next(name for name, served in self.served().items() if container in served)

    def append(self, container: int, data: bytes) -> None:
        """By whichever host serves it."""
        name = self.owner(container)
        segment = name_in(container, self.containers)
        self.world.run_task(self.processes[name], _append(self.stores[name], segment, data))

    def read(self, container: int) -> bytes:
        name = self.owner(container)
        segment = name_in(container, self.containers)
        return self.world.run_task(self.processes[name], _read_all(self.stores[name], segment))

    def create(self, container: int) -> None:
        name = self.owner(container)
        segment = name_in(container, self.containers)
        creation = self.stores[name].create_segment(segment)
        self.world.run_task(self.processes[name], creation)


@contextmanager
def hosts(seed: str, *names: str) -> Iterator[Hosts]:
    """Hosts that serve everything between them."""
    made = Hosts(seed)
    try:
        made.start(*names)
        made.until_all_served()
        yield made
    finally:
        made.world.close()
    assert not made.world.unhandled


def test_containers_are_shared_and_rebalanced_when_a_host_joins() -> None:
    with hosts("join", "one") as cluster:
        assert cluster.served() == {"one": [*range(CONTAINERS)]}
        for container in range(CONTAINERS):
            cluster.create(container)
            cluster.append(container, b"before")
        cluster.start("two", "three")
        cluster.until(lambda: all(len(each) == 2 for each in cluster.served().values()))
        cluster.until_all_served()
        for container in range(CONTAINERS):
            cluster.append(container, b" after")
            assert cluster.read(container) == b"before after"


def test_any_host_says_where_each_container_is() -> None:
    with hosts("addresses", "one", "two", "three") as cluster:

        def seen_by(name: str) -> StoreHosts:
            return cluster.world.run_task(
                cluster.processes[name], cluster.stores[name].fetch_hosts()
            )

        cluster.until(lambda: all(len(each) == 2 for each in cluster.served().values()))
        cluster.until_all_served()
        seen = seen_by("one")
        assert seen == seen_by("two") == seen_by("three")
        assert seen.epoch > 0
        assert {(each.host, each.port) for each in seen.hosts} == {("127.0.0.1", 1)}
        assert [list(each.containers) for each in seen.hosts] == [
            cluster.served()[name] for name in sorted(cluster.stores)
        ]
        cluster.kill("two")
        cluster.until_all_served()
        later = seen_by("three")
        assert later.epoch > seen.epoch
        assert [list(each.containers) for each in later.hosts] == [*cluster.served().values()]


def test_a_host_that_leaves_has_its_containers_moved_before_it_ends() -> None:
    with hosts("leave", "one", "two", "three") as cluster:
        for container in range(CONTAINERS):
            cluster.create(container)
            cluster.append(container, b"x")
        cluster.stop("two")
        # Not the end of its session: it is 10 s.
        assert cluster.until_all_served() < 5
        for container in range(CONTAINERS):
            assert cluster.read(container) == b"x"


def test_a_killed_host_is_followed_when_its_session_has_ended() -> None:
    with hosts("kill", "one", "two", "three") as cluster:
        for container in range(CONTAINERS):
            cluster.create(container)
            cluster.append(container, b"x")
        cluster.kill("one")
        assert cluster.until_all_served() < 30
        for container in range(CONTAINERS):
            assert cluster.read(container) == b"x"
        cluster.start("one")
        cluster.until(lambda: all(len(each) == 2 for each in cluster.served().values()))
        cluster.until_all_served()


def test_a_stopped_host_does_not_acknowledge_any_more_when_others_serve() -> None:
    with hosts("pause", "one", "two", "three") as cluster:
        for container in range(CONTAINERS):
            cluster.create(container)
            cluster.append(container, b"x")
        container = cluster.served()["one"][0]
        name = name_in(container, CONTAINERS)
        old, process = cluster.stores["one"], cluster.processes["one"]
        process.pause()
        cluster.until_all_served(but="one")
        late = process.start(_append(old, name, b"late"))
        process.resume()
        cluster.until(late.done)
        with pytest.raises(NOT_ACKNOWLEDGED):
            late.result()
        cluster.until_all_served()
        assert cluster.read(container) == b"x"
        # It is a host as before.
        cluster.until(lambda: all(len(each) == 2 for each in cluster.served().values()))


def test_of_two_processes_with_one_name_the_later_one_is_the_host() -> None:
    with hosts("twins", "one", "two") as cluster:
        older = cluster.stores["two"]
        process = cluster.world.process("two again")
        cluster.world.clock.jump(1000)
        cluster.stores["later"] = cluster.world.run_task(
            process, cluster.world.open_host(process, "two", "/two-again")
        )
        cluster.processes["later"] = process
        cluster.until(lambda: older.served == [])
        cluster.until_all_served()
        findings = cluster.world.run_task(cluster.processes["two"], _health(older))
        assert any("another process has joined as host two" in each for each in findings)
        cluster.kill("later")
        cluster.until_all_served()
        cluster.until(lambda: older.served != [])
        assert cluster.world.run_task(cluster.processes["two"], _health(older)) == []


def test_a_close_does_not_wait_for_a_zookeeper_that_is_away() -> None:
    with hosts("away", "one", "two") as cluster:
        now_us = cluster.world.time.now_us
        cluster.world.bookkeeper.zookeeper.stop(now_us, 60.0)
        store, process = cluster.stores.pop("two"), cluster.processes.pop("two")
        closing = process.start(store.close())
        # LEAVE_S_MAX, and what a log takes to give up.
        assert cluster.until(closing.done) < 40
        cluster.world.kill(process)
        cluster.until_all_served()


def test_a_host_is_ready_when_it_serves_what_is_assigned_to_it() -> None:
    with hosts("ready", "one") as cluster:
        cluster.until(lambda: cluster.health("one")["ready"])
        cluster.start("two")
        health = cluster.health("two")
        assert "no leader has assigned containers" in health["waits_for"][0]
        # What is given to it, it waits for; in the end all of its share is there.
        cluster.until(lambda: len(cluster.served()["two"]) == CONTAINERS // 2)
        cluster.until_all_served()
        cluster.until(lambda: all(cluster.health(name)["ready"] for name in cluster.stores))
        (host,) = cluster.health("two")["hosts"]
        assert host["name"] == "host two"
        assert {"membership", "tier1", "cache"} <= {each["name"] for each in host["parts"]}
        numbers = cluster.numbers("two")
        assert (numbers["moved_in"], numbers["taken_over"]) == (CONTAINERS // 2, 0)
        assert sorted(numbers["arrival_s"]) == sorted(numbers["start_s"]) == cluster.served()["two"]
        assert sorted(cluster.numbers("one")["stop_s"]) == cluster.served()["two"]
        cluster.kill("one")
        cluster.until_all_served()
        cluster.until(lambda: cluster.health("two")["ready"])
        assert cluster.numbers("two")["taken_over"] == CONTAINERS // 2


def test_a_host_that_is_drained_stays_and_serves_nothing() -> None:
    with hosts("drained", "one", "two") as cluster:
        left = cluster.world.run_task(cluster.processes["one"], cluster.stores["one"].drain())
        assert left == []
        cluster.until_all_served()
        assert cluster.served() == {"one": [], "two": [*range(CONTAINERS)]}
        assert "leaves" in cluster.health("one")["waits_for"][0]
        # The last one keeps what no other host may take.
        left = cluster.world.run_task(cluster.processes["two"], cluster.stores["two"].drain())
        assert left == [*range(CONTAINERS)]
        cluster.stop("one")
        cluster.start("one")
        cluster.until(lambda: cluster.served()["one"] == [*range(CONTAINERS)])


def test_a_host_stays_ready_while_zookeeper_is_away() -> None:
    with hosts("blind", "one", "two") as cluster:
        cluster.until(lambda: all(cluster.health(name)["ready"] for name in cluster.stores))
        cluster.world.bookkeeper.zookeeper.stop(cluster.world.time.now_us, 60.0)
        cluster.until(lambda: cluster.health("one")["hosts"][0]["state"] == "impaired")
        assert cluster.health("one")["ready"]
        assert cluster.health("two")["ready"]
        cluster.until(lambda: cluster.health("one")["hosts"][0]["state"] == "well")


def test_a_host_does_not_start_or_stop_containers_on_request() -> None:
    with hosts("request", "one") as cluster:
        store, process = cluster.stores["one"], cluster.processes["one"]
        for call in (store.start_container, store.stop_container):
            with pytest.raises(ConfigError, match="assignment map"):
                cluster.world.run_task(process, call(0))
        assert store.served == [*range(CONTAINERS)]


def test_a_store_of_one_process_is_no_host(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="BookKeeper"):
            await segmentstore.open(tmp_path / "s", serve="cluster", wire_port=free_port())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({}, "wire_port"),
        ({"wire_port": 1, "wire_host": "0.0.0.0", "insecure_network": True}, "wire_host"),
        (
            {"wire_port": 1, "controller_port": 2, "controller_host": "0.0.0.0"},
            "controller_host",
        ),
        ({"wire_port": 1, "wire_hosts": "0=h:1"}, "wire_hosts"),
        ({"wire_port": 1, "host_id": "a/b"}, "host_id"),
    ],
)
def test_settings_that_no_host_can_have_are_refused(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        StoreConfig(serve="cluster", **settings)


async def _health(store: SegmentStore) -> list[str]:
    return store.stats()["health"]


async def _read_all(store: SegmentStore, name: str) -> bytes:
    """A call gives what one tier has: the bytes of a move are in Tier 2, later ones in the log."""
    data = b""
    while len(data) < (await store.get_info(name)).length:
        data += await store.read(name, len(data), 1 << 20)
    return data


async def _append(store: SegmentStore, name: str, data: bytes) -> int:
    return await store.append(name, data)
