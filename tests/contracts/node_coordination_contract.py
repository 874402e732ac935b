"""What every MetadataNodes must do for clients that work together: nodes that are held, watches,
elections. Subclass once per implementation, beside MetadataNodeContract.

Proves that no change of a watched node is missed, and that nothing is called behind a cancellation.
Candidates lead one at a time, in the order in which they asked.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeContent,
    NodeUnavailableError,
)
from tests.contracts.metadata_node_contract import NodeContract


class Calls:
    """Of a watch. A user reads at each call, and at no other time."""

    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._news.set()

    async def until(self, read: Callable[[], Awaitable[object]], wanted: object) -> None:
        """Return when a read behind a call gives this; never, if the last change is missed."""
        while True:
            await self._news.wait()
            self._news.clear()
            if await read() == wanted:
                return


async def candidates(nodes: MetadataNodes, path: str, identities: Sequence[bytes]) -> None:
    """Return when these are the candidates, in this order."""

    async def read() -> list[bytes]:
        names = await nodes.children(path)
        found = [await nodes.read(f"{path}/{name}") for name in sorted(names, key=number)]
        return [content.data for content in found if content is not None]

    calls = Calls()
    watch = nodes.watch(path, calls)
    await calls.until(read, list(identities))
    watch.cancel()


def number(name: str) -> str:
    """Of a candidate's node, as ZooKeeper numbers them."""
    return name[-10:]


class NodeCoordinationContract(NodeContract):
    def test_a_node_that_is_held_goes_with_its_holder(self) -> None:
        async def scenario() -> None:
            holder, other = await self.world.connect(), await self.world.connect()
            for name in ("one", "two"):
                await holder.hold(self.path(f"owners/{name}"), name.encode())
            await holder.hold(self.path("owners/one"), b"one")  # as after a lost reply
            assert await other.read(self.path("owners/one")) == NodeContent(b"one", 0)
            assert list(await other.children(self.path("owners"))) == ["one", "two"]
            await holder.release(self.path("owners/one"))
            await holder.release(self.path("owners/one"))
            assert list(await other.children(self.path("owners"))) == ["two"]
            assert isinstance(await holder.address(), str)
            await holder.close()
            assert await other.read(self.path("owners/two")) is None
            await other.close()

        self.run(scenario())

    def test_a_node_that_is_held_is_written_in_place_by_the_next_data(self) -> None:
        async def scenario() -> None:
            holder, other = await self.world.connect(), await self.world.connect()
            path = self.path("hosts/one")
            for version, data in enumerate((b"0", b"1", b"2")):
                for _ in range(2):
                    await holder.hold(path, data)
                    assert await other.read(path) == NodeContent(data, version)
            await holder.release(path)
            assert await other.read(path) is None
            await holder.hold(path, b"3")
            assert await other.read(path) == NodeContent(b"3", 0)
            await holder.close()
            await other.close()

        self.run(scenario())

    def test_the_next_session_holds_the_newest_data(self) -> None:
        async def scenario() -> None:
            holder, other = await self.world.connect(), await self.world.connect()
            path = self.path("hosts/one")
            calls = Calls()
            other.watch(path, calls)
            for data in (b"0", b"1", b"2"):
                await holder.hold(path, data)
            await self.world.lose_session(holder)
            await holder.read(path)
            await calls.until(lambda: other.read(path), NodeContent(b"2", 0))
            await holder.hold(path, b"3")
            assert await other.read(path) == NodeContent(b"3", 1)
            await holder.close()
            await other.close()

        self.run(scenario())

    def test_a_node_of_an_earlier_holder_is_replaced(self) -> None:
        async def scenario() -> None:
            before, after = await self.world.connect(), await self.world.connect()
            path = self.path("hosts/one")
            await before.hold(path, b"before")
            await before.hold(path, b"again")
            await after.hold(path, b"after")
            assert await before.read(path) == NodeContent(b"after", 0)
            await before.close()
            assert await after.read(path) == NodeContent(b"after", 0)
            await after.close()

        self.run(scenario())

    def test_each_kind_of_change_is_reported(self) -> None:
        async def scenario() -> None:
            nodes, other = await self.world.connect(), await self.world.connect()
            path = self.path("deep/n")
            content, names = Calls(), Calls()
            nodes.watch(path, content)
            nodes.watch(path, names)
            await content.until(lambda: nodes.read(path), None)
            for _ in range(2):
                await other.create(path, b"0")
                await content.until(lambda: nodes.read(path), NodeContent(b"0", 0))
                await other.write(path, b"1", 0)
                await content.until(lambda: nodes.read(path), NodeContent(b"1", 1))
                await other.create(f"{path}/a", b"")
                await names.until(lambda: nodes.children(path), ["a"])
                await other.hold(f"{path}/b", b"")
                await names.until(lambda: nodes.children(path), ["a", "b"])
                await other.release(f"{path}/b")
                await names.until(lambda: nodes.children(path), ["a"])
                await other.delete(f"{path}/a", 0)
                await names.until(lambda: nodes.children(path), [])
                await other.delete(path, 1)
                await content.until(lambda: nodes.read(path), None)
            await nodes.close()
            await other.close()

        self.run(scenario())

    def test_the_last_of_many_changes_is_reported(self) -> None:
        async def scenario() -> None:
            nodes, other = await self.world.connect(), await self.world.connect()
            calls: dict[str, Calls] = {name: Calls() for name in ("a", "b", "c")}
            for name, called in calls.items():
                nodes.watch(self.path(name), called)
                await other.create(self.path(name), b"")
            for version in range(30):
                await asyncio.gather(
                    *[other.write(self.path(name), b"%d" % version, version) for name in calls]
                )
            for name, called in calls.items():
                path = self.path(name)
                await called.until(functools.partial(nodes.read, path), NodeContent(b"29", 30))
            await nodes.close()
            await other.close()

        self.run(scenario())

    def test_nothing_is_called_behind_a_cancellation_or_a_close(self) -> None:
        async def scenario() -> None:
            nodes, other = await self.world.connect(), await self.world.connect()
            path = self.path("n")
            await other.create(path, b"0")
            cancelled, kept = Calls(), Calls()
            watch = nodes.watch(path, cancelled)
            nodes.watch(path, kept)
            await cancelled.until(lambda: nodes.read(path), NodeContent(b"0", 0))
            watch.cancel()
            watch.cancel()
            before = cancelled.count
            await other.write(path, b"1", 0)
            await kept.until(lambda: nodes.read(path), NodeContent(b"1", 1))
            assert cancelled.count == before
            await other.write(path, b"2", 1)
            await nodes.close()
            before = kept.count
            seen = Calls()
            other.watch(path, seen)
            await other.write(path, b"3", 2)
            await seen.until(lambda: other.read(path), NodeContent(b"3", 3))
            assert kept.count == before
            with pytest.raises(NodeUnavailableError):
                nodes.watch(path, kept)
            await other.close()

        self.run(scenario())

    def test_a_node_is_watched_again_after_a_cancellation(self) -> None:
        async def scenario() -> None:
            nodes, other = await self.world.connect(), await self.world.connect()
            path = self.path("n")
            for version in range(5):
                calls = Calls()
                watch = nodes.watch(path, calls)
                await other.create(path, b"") if not version else None
                await calls.until(lambda: nodes.read(path), NodeContent(b"", version))
                watch.cancel()
                await other.write(path, b"", version)
            await nodes.close()
            await other.close()

        self.run(scenario())

    def test_a_change_without_a_session_is_reported_in_the_next_one(self) -> None:
        async def scenario() -> None:
            nodes, other = await self.world.connect(), await self.world.connect()
            path = self.path("n")
            await other.create(path, b"")
            content, names = Calls(), Calls()
            nodes.watch(path, content)
            nodes.watch(self.world.root, names)
            await content.until(lambda: nodes.read(path), NodeContent(b"", 0))
            for version in range(3):
                await self.world.lose_session(nodes)
                await other.write(path, b"", version)
                await other.create(self.path(f"z{version}"), b"")
                await content.until(lambda: nodes.read(path), NodeContent(b"", version + 1))
                there = ["n", *[f"z{each}" for each in range(version + 1)]]
                await names.until(lambda: nodes.children(self.world.root), there)
            await nodes.close()
            await other.close()

        self.run(scenario())

    def test_candidates_lead_one_at_a_time_in_the_order_they_asked(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            clients = [await self.world.connect() for _ in range(4)]
            leading: list[asyncio.Task[None]] = []
            for place, nodes in enumerate(clients):
                leading.append(asyncio.ensure_future(nodes.lead(path, f"client {place}")))
                identities = [b"client %d" % each for each in range(place + 1)]
                await candidates(clients[0], path, identities)
            for place, nodes in enumerate(clients):
                await leading[place]
                led = [each.leads(path) for each in clients]
                assert led == [each == place for each in range(len(clients))]
                assert not any(task.done() for task in leading[place + 1 :])
                if place % 2:
                    await nodes.close()
                    assert not nodes.leads(path)
                else:
                    await nodes.resign(path)
                    assert not nodes.leads(path)
                    await nodes.resign(path)
            for nodes in clients:
                await nodes.close()

        self.run(scenario())

    def test_who_resigned_leads_again_behind_the_others(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            one, two = await self.world.connect(), await self.world.connect()
            await one.lead(path, "one")
            waiting = asyncio.ensure_future(two.lead(path, "two"))
            await candidates(one, path, [b"one", b"two"])
            await one.lead(path, "one")  # it leads
            with pytest.raises(ValueError, match="already"):
                await one.lead(path, "another")
            with pytest.raises(ValueError, match="already"):
                await two.lead(path, "two")
            await one.resign(path)
            await waiting
            again = asyncio.ensure_future(one.lead(path, "one"))
            await candidates(two, path, [b"two", b"one"])
            assert two.leads(path)
            assert not one.leads(path)
            await two.close()
            await again
            assert one.leads(path)
            await one.close()

        self.run(scenario())

    def test_a_cancelled_candidate_is_passed_over(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            clients = [await self.world.connect() for _ in range(3)]
            await clients[0].lead(path, "0")
            waiting = []
            for place in (1, 2):
                task = asyncio.ensure_future(clients[place].lead(path, f"{place}"))
                waiting.append(task)
                await candidates(clients[0], path, [b"%d" % each for each in range(place + 1)])
            waiting[0].cancel()
            await candidates(clients[0], path, [b"0", b"2"])
            assert clients[0].leads(path)
            await clients[0].resign(path)
            await waiting[1]
            assert not clients[1].leads(path)
            # Cancelled before anything was sent, it leaves nothing either.
            task = asyncio.ensure_future(clients[1].lead(path, "1"))
            await asyncio.sleep(0)
            task.cancel()
            await clients[1].resign(path)
            await candidates(clients[0], path, [b"2"])
            for nodes in clients:
                await nodes.close()

        self.run(scenario())

    def test_leadership_ends_with_the_session_and_is_reported(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            one, two = await self.world.connect(), await self.world.connect()
            ended = asyncio.Event()
            await one.lead(path, "one", ended.set)
            waiting = asyncio.ensure_future(two.lead(path, "two"))
            await candidates(two, path, [b"one", b"two"])
            await self.world.lose_session(one)
            await waiting
            await ended.wait()
            assert not one.leads(path)
            assert two.leads(path)
            again = asyncio.ensure_future(one.lead(path, "one"))
            await candidates(two, path, [b"two", b"one"])
            await two.resign(path)
            await again
            assert one.leads(path)
            assert not two.leads(path)
            await one.close()
            await two.close()

        self.run(scenario())

    def test_who_waits_keeps_its_wish_when_its_session_ends(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            one, two = await self.world.connect(), await self.world.connect()
            await one.lead(path, "one")
            waiting = asyncio.ensure_future(two.lead(path, "two"))
            await candidates(one, path, [b"one", b"two"])
            await self.world.lose_session(two)
            await one.resign(path)
            await waiting
            assert two.leads(path)
            await one.close()
            await two.close()

        self.run(scenario())

    def test_a_close_ends_who_waits_to_lead(self) -> None:
        async def scenario() -> None:
            path = self.path("leader")
            one, two = await self.world.connect(), await self.world.connect()
            ended = Calls()
            await one.lead(path, "one", ended)
            waiting = asyncio.ensure_future(two.lead(path, "two"))
            await candidates(one, path, [b"one", b"two"])
            await two.close()
            with pytest.raises(NodeUnavailableError):
                await waiting
            with pytest.raises(NodeUnavailableError):
                await two.lead(path, "two")
            await one.resign(path)
            await one.close()
            assert ended.count == 0, "it ended as it was asked to"

        self.run(scenario())

    def test_paths_are_checked(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            with pytest.raises(ValueError, match="begins with /"):
                nodes.watch("n", Calls())
            with pytest.raises(ValueError, match="begins with /"):
                await nodes.lead("n", "me")
            assert not nodes.leads(self.path("n"))
            await nodes.resign(self.path("n"))
            await nodes.close()

        self.run(scenario())
