"""The watch of deletions in the simulated world: whose age of garbage it takes for true."""

from __future__ import annotations

import asyncio

import pytest

from recovery.harness.runs.deletion_watch import DeletionWatch
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import SimulatedProcess

LAG_S = 60.0
APART_S = 20.0


@pytest.mark.parametrize("announced", [True, False])
def test_an_owner_that_ends_in_its_opening_has_begun_to_count(announced: bool) -> None:
    """Its readings are in the log, though the watch saw none of them: the lag is over by them."""
    settings = {"containers": 1, "deletion_lag_s": LAG_S, "consolidation": False}
    world = StoreWorld("opening", settings=settings)
    watch = DeletionWatch(world.time)

    async def leave_garbage(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        await store.create_segment("x")
        await store.append("x", b"data")
        await store.flush()
        await store.delete("x")

    async def open_in_part(process: SimulatedProcess) -> None:
        if announced:
            watch.opening()
        await world.open_store(process)

    async def outlast(process: SimulatedProcess) -> None:
        await asyncio.sleep(APART_S)
        begun_us = world.time.now_us
        watch.opening()
        store = await world.open_store(process)
        watch.attach(store, begun_us)
        await asyncio.sleep(LAG_S)

    for process_run in (leave_garbage, open_in_part, outlast):
        process = world.process("owner")
        world.run_task(process, process_run(process))
        world.kill(process)
    world.close()
    assert watch.deletions == 1
    assert len(watch.violations) == (not announced)
