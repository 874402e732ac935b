"""The leader writes what follows from the map that is there."""

from __future__ import annotations

import asyncio
from functools import partial

from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.cluster.administration import edit_map
from segmentstore.cluster.assigner import SETTLE_S, Assigner
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.host_record import HostRecord
from segmentstore.cluster.map_edits import drain
from segmentstore.contracts.runtime import Runtime


async def register(tree: NodeTree, host_id: str) -> None:
    """Of a process of its own."""
    nodes = ClusterNodes(MemoryNodes(tree), "/store")
    record = HostRecord(host_id=host_id, host="localhost", port=1, version="", started_ms=1)
    await nodes.register(HostNode(host_id, 1, "0" * 16), record)


def test_an_edit_while_more_hosts_are_waited_for_is_kept() -> None:
    async def main() -> None:
        tree = NodeTree()
        for host_id in ("one", "two"):
            await register(tree, host_id)
        nodes = ClusterNodes(MemoryNodes(tree), "/store")
        assigner = Assigner(nodes, "one", 4, Runtime())
        assigner.start()
        # The leader has read that there is no map, and waits.
        await asyncio.sleep(SETTLE_S / 2)
        edited = await edit_map(
            ClusterNodes(MemoryNodes(tree), "/store"), partial(drain, host_id="two")
        )
        assert (edited.epoch, edited.owners) == (1, {})
        await asyncio.sleep(SETTLE_S)
        stored = await nodes.read_map()
        await assigner.stop()
        assert stored is not None
        assert stored.map.epoch == 2
        assert stored.map.draining == {"two"}
        assert set(stored.map.owners.values()) == {"one"}

    run_virtual(main())
