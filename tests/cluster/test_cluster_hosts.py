"""Hosts of one cluster share the containers, and the others serve what one of them had.

Each host is a process of a simulated world, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
)
from segmentstore.service import SegmentStore
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
        reading = self.stores[name].read(segment, 0, 1 << 20)
        return self.world.run_task(self.processes[name], reading)

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


async def _append(store: SegmentStore, name: str, data: bytes) -> int:
    return await store.append(name, data)
