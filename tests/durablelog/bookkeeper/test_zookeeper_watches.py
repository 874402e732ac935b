"""ZookeeperWatches set what ZooKeeper's watches report once, in whatever order that arrives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from durablelog.bookkeeper.zookeeper_watches import AGAIN_MAX_S, ZookeeperWatches
from recovery.harness.simulation.virtual_loop import run_virtual
from tests.contracts.node_coordination_contract import Calls

Fired = Callable[[object], None]


class Service:
    """Nodes with a version each. It reports each watch once, as ZooKeeper does."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.names: dict[str, int] = {}
        """Changes of the children of each node."""
        self.answers = asyncio.Event()
        """Set while replies arrive; what was asked for happens at once, and events arrive."""
        self.answers.set()
        self.error: Exception | None = None
        self.reads = 0
        self._node: dict[str, set[Fired]] = {}
        self._children: dict[str, set[Fired]] = {}
        self.watches = ZookeeperWatches(self.watch_node, self.watch_children, random.Random(1))

    async def watch_node(self, path: str, fired: Fired) -> bool:
        there = path in self.versions
        return await self._answer(self._node, path, fired, there=there)

    async def watch_children(self, path: str, fired: Fired) -> bool:
        there = path in self.versions
        if not there:
            return await self._answer({}, path, fired, there=False)
        return await self._answer(self._children, path, fired, there=True)

    def write(self, path: str) -> None:
        self.versions[path] = self.versions.get(path, -1) + 1
        self._fire(self._node, path)

    def delete(self, path: str) -> None:
        del self.versions[path]
        self._fire(self._node, path)
        self._fire(self._children, path)

    def change_children(self, path: str) -> None:
        self.names[path] = self.names.get(path, 0) + 1
        self._fire(self._children, path)

    def forget_watches(self) -> None:
        """A connection is lost without a notice."""
        self._node.clear()
        self._children.clear()

    async def version(self, path: str) -> int | None:
        return self.versions.get(path)

    async def changes(self, path: str) -> int:
        return self.names.get(path, 0)

    async def _answer(
        self, kind: dict[str, set[Fired]], path: str, fired: Fired, *, there: bool
    ) -> bool:
        self.reads += 1
        if self.error is not None:
            raise self.error
        kind.setdefault(path, set()).add(fired)
        await asyncio.sleep(0)
        await self.answers.wait()
        return there

    def _fire(self, kind: dict[str, set[Fired]], path: str) -> None:
        for fired in kind.pop(path, ()):
            fired(None)


async def rest() -> None:
    """Until nothing moves any more: virtual time passes only then."""
    await asyncio.sleep(1)


def test_an_event_that_arrives_before_the_answer_of_its_watch_is_not_lost() -> None:
    async def scenario() -> None:
        service = Service()
        calls = Calls()
        for path in ("/missing", "/there"):
            service.versions["/there"] = 0
            service.answers.clear()
            service.watches.add(path, calls)
            await rest()
            service.write(path)
            await rest()
            service.answers.set()
            await rest()
            for _ in range(3):
                before = calls.count
                service.write(path)
                await rest()
                assert calls.count == before + 1
                service.change_children(path)
                await rest()
                assert calls.count == before + 2
        await service.watches.close()

    run_virtual(scenario())


def test_watches_that_were_lost_without_a_word_are_set_again_with_the_connection() -> None:
    async def scenario() -> None:
        service = Service()
        calls = Calls()
        service.watches.add("/n", calls)
        await calls.until(lambda: service.version("/n"), None)
        service.forget_watches()
        service.write("/n")
        service.watches.connected()
        await calls.until(lambda: service.version("/n"), 0)
        service.write("/n")
        await calls.until(lambda: service.version("/n"), 1)
        service.change_children("/n")
        await calls.until(lambda: service.changes("/n"), 1)
        await service.watches.close()

    run_virtual(scenario())


@pytest.mark.parametrize("error", [NodeUnavailableError, NodeRefusedError])
def test_a_watch_that_cannot_be_set_is_set_later(error: type[Exception]) -> None:
    async def scenario() -> None:
        service = Service()
        calls = Calls()
        service.error = error("/n", "not now")
        service.watches.add("/n", calls)
        await asyncio.sleep(100 * AGAIN_MAX_S)
        assert calls.count == 0
        assert 100 <= service.reads <= 300, "ever more rarely"
        service.error = None
        service.write("/n")
        await calls.until(lambda: service.version("/n"), 0)
        service.write("/n")
        await calls.until(lambda: service.version("/n"), 1)
        await service.watches.close()

    run_virtual(scenario())


def test_a_change_costs_one_read_for_each_watch_that_reported_it() -> None:
    async def scenario() -> None:
        service = Service()
        service.write("/n")
        calls = Calls()
        for _ in range(3):
            service.watches.add("/n", calls)
        await rest()
        for change, reads in (
            (service.write, 1),
            (service.change_children, 1),
            (service.delete, 1),
            (service.write, 2),
        ):
            before = service.reads
            change("/n")
            await rest()
            assert service.reads == before + reads
        before = service.reads
        await asyncio.sleep(10_000)
        assert service.reads == before, "nothing while nothing changes"
        await service.watches.close()

    run_virtual(scenario())


def test_a_watch_without_a_watcher_is_not_set_again() -> None:
    async def scenario() -> None:
        service = Service()
        service.write("/n")
        for _ in range(100):
            calls = Calls()
            watch = service.watches.add("/n", calls)
            await calls.until(lambda: service.version("/n"), 0)
            watch.cancel()
        assert service.reads == 2, "the watches of before stood"
        service.write("/n")
        service.watches.connected()
        await rest()
        assert service.reads == 2
        calls = Calls()
        service.watches.add("/n", calls)
        await calls.until(lambda: service.version("/n"), 1)
        await service.watches.close()

    run_virtual(scenario())
