"""Ledgers that are made in vain: how many a log leaves behind while the nodes, and so the ledgers, do not answer."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.errors import NotPrimaryError, TierUnavailableError
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, options, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers, until_said

CREATE = "ledger create"


async def outage_in_a_roll(world: BookKeeperWorld, process: MemoryProcess, first_frames: int) -> None:
    """Whose creates end without an answer, and are done later. Returns after a long time of it."""
    log = await world.opened(process)
    await append_all(log, range(first_frames))
    before = process.calls.count(CREATE)
    world.tree.outage = True
    world.cluster.fail("create", -23, happens=True, times=3)
    waiting = [log.append([payload(number)]) for number in range(first_frames, 20)]
    assert "the log's record does not answer" in await until_said(log, "does not answer")
    await asyncio.sleep(LONG_S)
    assert process.calls.count(CREATE) - before <= 1
    assert not waiting[-1].done()
    assert "does not answer" in (log.health() or "")
    world.tree.outage = False
    await asyncio.gather(*waiting)
    assert await read_payloads(log) == numbers(20)
    assert log.health() is None
    await log.close()


@pytest.mark.parametrize("first_frames", [3, 8, 11])
def test_a_long_outage_leaves_one_ledger_behind_and_not_one_for_each_try(first_frames: int) -> None:
    async def scenario() -> None:
        await outage_in_a_roll(BookKeeperWorld(), MemoryProcess(), first_frames)

    run(scenario())


def test_too_few_bookies_are_waited_for_while_the_nodes_answer() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        world.cluster.fail("create", -6, times=10)
        await append_all(log, range(20))
        assert process.calls.count(CREATE) > 10
        await log.close()

    run(scenario())


def test_an_opening_that_waits_for_its_record_with_a_create_gives_up_after_its_patience() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        world.cluster.fail("create", -23, happens=True, times=100)
        log = world.log(process, log_options=options(open_patience_s=60))
        opening = asyncio.create_task(log.open())
        await until_said(log, "Timeout")
        world.tree.outage = True
        await asyncio.sleep(0.5)
        made = process.calls.count(CREATE)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TierUnavailableError, match="does not answer"):
            await opening
        assert 50 < asyncio.get_running_loop().time() - begun < 60
        assert process.calls.count(CREATE) <= made + 1

    run(scenario())


def test_a_new_owner_ends_the_wait_for_a_create() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.cluster.fail("create", -23, times=2)
        world.tree.outage = True
        waiting = [log.append([payload(number)]) for number in range(20)]
        await until_said(log, "does not answer")
        world.tree.outage = False
        new = await world.opened()
        with pytest.raises(NotPrimaryError):
            await waiting[-1]
        await log.close()
        await new.close()

    run(scenario())
