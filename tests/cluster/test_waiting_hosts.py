"""A host that cannot start what it is given waits for a change, and asks ZooKeeper nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.cluster.cluster_host import CHECK_S
from tests.client.cluster_world import ClusterWorld
from tests.store.harness import bury

UNAUTHORIZED = -102
CHECKS = 3


def test_a_host_whose_container_failed_asks_nothing_until_something_changes(tmp_path: Path) -> None:
    async def main() -> None:
        world = ClusterWorld(tmp_path, containers=1)
        world.ledgers.fail("create", UNAUTHORIZED)
        await world.start("one")
        host = world.hosts["one"]

        def has_failed() -> bool:
            states = host.store.stats()["container_states"]
            return 0 in states and states[0]["state"] == "failed"

        try:
            await world.until(has_failed)
            await asyncio.sleep(CHECK_S / 2)
            before = len(host.process.calls)
            await asyncio.sleep(CHECKS * CHECK_S)
            assert len(host.process.calls) - before < 10 * CHECKS
            await world.until_served()
            await world.close()
        finally:
            await bury()

    run_virtual(main())
