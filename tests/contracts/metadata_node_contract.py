"""What every MetadataNodes must do. Subclass once per implementation and give it a `NodeWorld`.

Proves that of several clients that change a node in the same version exactly one wins, that
versions count up by one, and that a loser changes nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeUnavailableError,
)


class NodeWorld(ABC):
    """What outlives the clients."""

    root: str = "/contract"
    """Nothing is there, and nothing of others below it."""

    @abstractmethod
    async def connect(self) -> MetadataNodes:
        """A new client, with a session of its own; the test closes it."""

    @abstractmethod
    async def lose_session(self, nodes: MetadataNodes) -> None:
        """Have the service end the session of a client, which is not asked."""

    async def clean_up(self) -> None:  # noqa: B027 - most have nothing to do
        """After the test."""


class NodeContract(ABC):
    """What the suites of nodes share."""

    world: NodeWorld

    @abstractmethod
    def make_world(self, tmp_path: Path) -> NodeWorld: ...

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path) -> Any:
        self.world = self.make_world(tmp_path)
        yield
        asyncio.run(self.world.clean_up())

    def path(self, name: str) -> str:
        return f"{self.world.root}/{name}"

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 240))


class MetadataNodeContract(NodeContract):
    def test_a_node_that_was_never_created_is_not_there(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            assert await nodes.read(self.path("none")) is None
            assert list(await nodes.children(self.path("none"))) == []
            await nodes.delete(self.path("none"), 0)
            await nodes.close()

        self.run(scenario())

    def test_a_new_node_is_in_version_0_and_has_its_parents(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            assert await nodes.create(self.path("a/b/c"), b"first") == 0
            assert await nodes.read(self.path("a/b/c")) == NodeContent(b"first", 0)
            assert list(await nodes.children(self.path("a"))) == ["b"]
            with pytest.raises(NodeConflictError) as caught:
                await nodes.create(self.path("a/b/c"), b"second")
            assert caught.value.path == self.path("a/b/c")
            assert await nodes.read(self.path("a/b/c")) == NodeContent(b"first", 0)
            await nodes.close()

        self.run(scenario())

    def test_a_node_is_created_without_parents_only_below_one_that_is_there(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            with pytest.raises(NodeConflictError):
                await nodes.create(self.path("a/b"), b"", parents=False)
            assert await nodes.read(self.path("a")) is None
            await nodes.create(self.path("a"), b"")
            assert await nodes.create(self.path("a/b"), b"below", parents=False) == 0
            assert await nodes.read(self.path("a/b")) == NodeContent(b"below", 0)
            with pytest.raises(NodeConflictError):
                await nodes.create(self.path("a/b"), b"", parents=False)
            await nodes.close()

        self.run(scenario())

    def test_versions_count_up_by_one_and_an_old_one_changes_nothing(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            await nodes.create(self.path("n"), b"0")
            for version in range(3):
                assert (
                    await nodes.write(self.path("n"), f"{version + 1}".encode(), version)
                    == version + 1
                )
            for version in (0, 1, 2, 4, 100):
                with pytest.raises(NodeConflictError):
                    await nodes.write(self.path("n"), b"late", version)
            assert await nodes.read(self.path("n")) == NodeContent(b"3", 3)
            await nodes.close()

        self.run(scenario())

    def test_writing_what_is_not_there_is_a_conflict(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            with pytest.raises(NodeConflictError):
                await nodes.write(self.path("none"), b"x", 0)
            assert await nodes.read(self.path("none")) is None
            await nodes.close()

        self.run(scenario())

    def test_empty_and_large_data_are_kept_as_they_are(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            large = bytes(range(256)) * 1024
            await nodes.create(self.path("n"), b"")
            assert await nodes.read(self.path("n")) == NodeContent(b"", 0)
            await nodes.write(self.path("n"), large, 0)
            assert await nodes.read(self.path("n")) == NodeContent(large, 1)
            await nodes.close()

        self.run(scenario())

    def test_of_several_that_write_in_one_version_exactly_one_wins(self) -> None:
        async def scenario() -> None:
            clients = [await self.world.connect() for _ in range(4)]
            await clients[0].create(self.path("n"), b"")
            for version in range(5):
                results = await asyncio.gather(
                    *[
                        nodes.write(self.path("n"), b"%d" % number, version)
                        for number, nodes in enumerate(clients)
                    ],
                    return_exceptions=True,
                )
                winners = [number for number, result in enumerate(results) if result == version + 1]
                assert len(winners) == 1
                assert (
                    sum(isinstance(result, NodeConflictError) for result in results)
                    == len(clients) - 1
                )
                for nodes in clients:
                    assert await nodes.read(self.path("n")) == NodeContent(
                        b"%d" % winners[0], version + 1
                    )
            for nodes in clients:
                await nodes.close()

        self.run(scenario())

    def test_of_several_that_make_a_node_exactly_one_wins(self) -> None:
        async def scenario() -> None:
            clients = [await self.world.connect() for _ in range(4)]
            results = await asyncio.gather(
                *[
                    nodes.create(self.path("deep/n"), b"%d" % number)
                    for number, nodes in enumerate(clients)
                ],
                return_exceptions=True,
            )
            assert sum(result == 0 for result in results) == 1
            assert (
                sum(isinstance(result, NodeConflictError) for result in results) == len(clients) - 1
            )
            assert await clients[0].read(self.path("deep/n")) == NodeContent(
                b"%d" % results.index(0), 0
            )
            for nodes in clients:
                await nodes.close()

        self.run(scenario())

    def test_a_change_is_seen_by_every_other_client_at_once(self) -> None:
        async def scenario() -> None:
            one, two = await self.world.connect(), await self.world.connect()
            await one.create(self.path("n"), b"")
            for version in range(20):
                writer, reader = (one, two) if version % 2 else (two, one)
                await writer.write(self.path("n"), b"%d" % version, version)
                assert await reader.read(self.path("n")) == NodeContent(
                    b"%d" % version, version + 1
                )
            await one.close()
            await two.close()

        self.run(scenario())

    def test_many_calls_may_be_in_flight(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            names = [f"n{number:03d}" for number in range(50)]
            await asyncio.gather(
                *[
                    nodes.create(self.path(f"many/{name}"), name.encode())
                    for name in reversed(names)
                ]
            )
            assert list(await nodes.children(self.path("many"))) == names
            contents = await asyncio.gather(
                *[nodes.read(self.path(f"many/{name}")) for name in names]
            )
            assert contents == [NodeContent(name.encode(), 0) for name in names]
            await nodes.close()

        self.run(scenario())

    def test_deleting_needs_the_version_and_no_children(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            await nodes.create(self.path("n/child"), b"")
            await nodes.create(self.path("m"), b"")
            await nodes.write(self.path("m"), b"1", 0)
            with pytest.raises(NodeConflictError):
                await nodes.delete(self.path("m"), 0)
            with pytest.raises(NodeConflictError):
                await nodes.delete(self.path("n"), 0)
            assert list(await nodes.children(self.world.root)) == ["m", "n"]
            await nodes.delete(self.path("m"), 1)
            await nodes.delete(self.path("m"), 1)
            await nodes.delete(self.path("n/child"), 0)
            await nodes.delete(self.path("n"), 0)
            assert list(await nodes.children(self.world.root)) == []
            await nodes.close()

        self.run(scenario())

    def test_closing_is_idempotent_and_ends_all_calls(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            await nodes.create(self.path("n"), b"")
            await nodes.close()
            await nodes.close()
            with pytest.raises(NodeUnavailableError):
                await nodes.read(self.path("n"))
            other = await self.world.connect()
            assert await other.read(self.path("n")) == NodeContent(b"", 0)
            await other.close()

        self.run(scenario())

    def test_a_healthy_session_has_nothing_to_say(self) -> None:
        async def scenario() -> None:
            nodes = await self.world.connect()
            await nodes.read(self.path("n"))
            assert nodes.health() is None
            await nodes.close()

        self.run(scenario())
