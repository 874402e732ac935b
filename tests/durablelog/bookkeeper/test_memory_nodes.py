"""Nodes in memory against the contract, and their planted failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from tests.contracts.metadata_node_contract import MetadataNodeContract, NodeWorld
from tests.contracts.node_coordination_contract import NodeCoordinationContract


class _MemoryWorld(NodeWorld):
    def __init__(self) -> None:
        self.tree = NodeTree()

    async def connect(self) -> MetadataNodes:
        return MemoryNodes(self.tree)

    async def lose_session(self, nodes: MetadataNodes) -> None:
        assert isinstance(nodes, MemoryNodes)
        nodes.lose_session()


class TestMemoryNodes(MetadataNodeContract, NodeCoordinationContract):
    def make_world(self, tmp_path: Path) -> NodeWorld:
        return _MemoryWorld()

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        run_virtual(asyncio.wait_for(coroutine, 60))


@pytest.mark.parametrize("happens", [False, True])
def test_a_write_without_an_answer_may_have_happened(happens: bool) -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        await nodes.create("/n", b"0")
        tree.fail("write", happens=happens)
        with pytest.raises(NodeUnavailableError):
            await nodes.write("/n", b"1", 0)
        assert await nodes.read("/n") == (NodeContent(b"1", 1) if happens else NodeContent(b"0", 0))

    asyncio.run(scenario())


def test_an_outage_fails_every_call_and_changes_nothing() -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        await nodes.create("/n", b"0")
        tree.outage = True
        for call in (
            nodes.read("/n"),
            nodes.write("/n", b"1", 0),
            nodes.create("/m", b""),
            nodes.delete("/n", 0),
        ):
            with pytest.raises(NodeUnavailableError):
                await call
        assert nodes.health() is not None
        tree.outage = False
        assert await nodes.read("/n") == NodeContent(b"0", 0)
        tree.refuse("read")
        with pytest.raises(NodeRefusedError):
            await nodes.read("/n")

    asyncio.run(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_a_process_that_dies_in_a_call_never_returns_from_it_nor_does_anything_more(
    happens: bool,
) -> None:
    async def scenario() -> None:
        tree = NodeTree()
        process = MemoryProcess()
        process.die_in(1, happens=happens)
        nodes = MemoryNodes(tree, process)
        await nodes.create("/n", b"0")
        for data in (b"1", b"2"):
            task = asyncio.create_task(nodes.write("/n", data, 0))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
        assert tree.content("/n") == (NodeContent(b"1", 1) if happens else NodeContent(b"0", 0))
        assert process.calls == ["node create", "node write"]

    asyncio.run(scenario())
