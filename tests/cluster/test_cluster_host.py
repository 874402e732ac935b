"""What a host does as the map changes, and how often it asks for it. Its containers are those of a
registry that has nothing behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.metadata_node import NodeContent
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_host import ClusterHost
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode, StoredMap
from segmentstore.cluster.host_record import (
    ContainerReport,
    HostLoad,
    HostRecord,
    ReportedState,
)
from segmentstore.cluster.host_reports import HostIdentity
from segmentstore.container import ContainerStatus, HostState
from segmentstore.contracts.runtime import Runtime

ROOT = "/store"
SETTLES_S = 3.0


class CountedNodes(MemoryNodes):
    """Says how often it was read."""

    reads = 0

    async def read(self, path: str) -> NodeContent | None:
        self.reads += 1
        return await super().read(path)


class BareContainers:
    """States, and what was asked for."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.states: dict[int, ContainerStatus] = {}
        self.confirmed: list[int] = []

    def statuses(self) -> dict[int, ContainerStatus]:
        return dict(self.states)

    def has(self, number: int) -> bool:
        status = self.states.get(number)
        return status is not None and status.state is HostState.RUNNING

    async def start(self, number: int) -> None:
        self._set(number, HostState.RUNNING)

    async def hand_over(self, number: int, is_wanted: Callable[[], bool]) -> None:
        await asyncio.sleep(SETTLES_S)
        if is_wanted():
            await self.stop(number)

    async def stop(self, number: int) -> None:
        self._set(number, HostState.STOPPED)

    def confirm(self, number: int) -> None:
        self.confirmed.append(number)

    def _set(self, number: int, state: HostState) -> None:
        self.states[number] = ContainerStatus(state, 1)
        self.on_change()


class OneHost:
    """The host `one`, and a writer of the map."""

    def __init__(self) -> None:
        self.tree = NodeTree()
        self.nodes = CountedNodes(self.tree)
        self.containers = BareContainers()
        me = HostIdentity("one", "localhost", 1, "", 100)
        self.host = ClusterHost(
            ClusterNodes(self.nodes, ROOT), self.containers, me, HostLoad, Runtime()
        )
        self.others = ClusterNodes(MemoryNodes(self.tree), ROOT)
        self.stored: StoredMap | None = None

    async def assign(self, *owners: str) -> None:
        """Containers in turn to these hosts."""
        epoch = 1 if self.stored is None else self.stored.map.epoch + 1
        after = AssignmentMap(epoch=epoch, owners=dict(enumerate(owners)))
        self.stored = await self.others.write_map(after, self.stored)

    async def report_other(self, *containers: int) -> None:
        """The host `two` has these."""
        record = HostRecord(
            host_id="two",
            host="localhost",
            port=2,
            version="",
            started_ms=1,
            containers={each: ContainerReport(ReportedState.RUNNING, 1) for each in containers},
        )
        await self.others.register(HostNode("two", 1, "0" * 16), record)

    async def until_it_has(self, *containers: int) -> None:
        async with asyncio.timeout(60):
            while not all(map(self.containers.has, containers)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_a_host_that_waits_for_another_one_does_not_ask_again_and_again() -> None:
    async def main() -> None:
        one = OneHost()
        await one.report_other(0, 1)
        await one.assign("one", "two")
        await one.host.join()
        await asyncio.sleep(1)
        before = one.nodes.reads
        await asyncio.sleep(20)
        assert not one.containers.has(0), "it waits for two"
        assert one.nodes.reads - before <= 2
        await one.report_other(1)
        await one.until_it_has(0)
        await one.host.leave()

    run_virtual(main())


def test_a_container_that_may_have_been_elsewhere_is_confirmed() -> None:
    async def main() -> None:
        one = OneHost()
        await one.assign("one", "one")
        await one.host.join()
        await one.until_it_has(0, 1)
        await one.assign("one", "one")
        await asyncio.sleep(1)
        assert one.containers.confirmed == [], "every map was seen"
        # Two at once: it sees the second one alone.
        await one.assign("two", "two")
        await one.assign("one", "one")
        await asyncio.sleep(SETTLES_S + 1)
        assert one.containers.confirmed == [0, 1]
        assert one.containers.has(0)
        await one.host.leave()

    run_virtual(main())


def test_a_container_that_is_given_back_while_it_is_handed_over_is_confirmed() -> None:
    async def main() -> None:
        one = OneHost()
        await one.assign("one", "one")
        await one.host.join()
        await one.until_it_has(0, 1)
        await one.assign("one", "two")
        await asyncio.sleep(1)
        await one.assign("one", "one")
        await asyncio.sleep(1)
        assert set(one.containers.confirmed) == {1}
        await asyncio.sleep(SETTLES_S)
        assert one.containers.has(1), "it was not stopped"
        await one.host.leave()

    run_virtual(main())


def test_a_container_serves_while_its_stop_is_prepared_and_may_be_given_back() -> None:
    async def main() -> None:
        one = OneHost()
        await one.assign("one", "one")
        await one.host.join()
        await one.until_it_has(0, 1)
        await one.assign("two", "two")
        await asyncio.sleep(SETTLES_S / 2)
        assert one.containers.has(0)
        assert one.containers.has(1)
        await one.assign("two", "one")
        await asyncio.sleep(SETTLES_S)
        assert not one.containers.has(0)
        assert one.containers.has(1), "it was not stopped"
        await one.host.leave()

    run_virtual(main())
