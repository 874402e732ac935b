"""Ledgers that are made in vain: how many a log leaves behind while the nodes, and so the ledgers,
do not answer.
"""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.frame_pipeline import STRETCH_MAX
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.errors import (
    DataCorruptionError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import LEDGER_BYTES, BookKeeperWorld, options, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers, until_said

CREATE = "ledger create"


async def outage_in_a_roll(
    world: BookKeeperWorld, process: MemoryProcess, first_frames: int
) -> None:
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


def test_a_ledger_that_is_well_goes_on_beyond_its_size_while_there_are_too_few_bookies() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.cluster.fail("create", -6, times=12)
        frames = range(20)
        await append_all(log, frames)
        assert len(world.ids_listed()) == 1
        assert "goes on beyond its size: there are too few bookies" in (log.health() or "")
        while len(world.ids_listed()) == 1:
            await append_all(log, range(len(frames), len(frames) + 1))
            frames = range(len(frames) + 1)
        assert len(frames) < 40
        assert log.health() is None
        assert await read_payloads(log) == numbers(len(frames))
        await log.close()
        again = await world.opened()
        assert await read_payloads(again) == numbers(len(frames))
        await again.close()

    run(scenario())


def test_too_few_bookies_are_waited_for_once_the_ledger_is_far_beyond_its_size() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        world.cluster.fail("create", -6, times=60)
        await append_all(log, range(80))
        assert process.calls.count(CREATE) > 60
        first = world.record.ledgers[0]
        assert STRETCH_MAX * LEDGER_BYTES - 500 < first.length < STRETCH_MAX * LEDGER_BYTES + 500
        assert await read_payloads(log) == numbers(80)
        await log.close()

    run(scenario())


def test_a_ledger_that_falls_short_of_a_bookie_is_followed_by_the_next_one() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened(ledger_bytes=1 << 20)
        await append_all(log, range(3))
        log._pipeline.ledger.writer.on_short("a bookie does not keep up")
        await append_all(log, range(3, 6))
        assert [item.last_entry for item in world.record.ledgers] == [2, None]
        assert await read_payloads(log) == numbers(6)
        await log.close()

    run(scenario())


def test_an_opening_that_waits_for_its_record_with_a_create_gives_up_after_its_timeout() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        world.cluster.fail("create", -23, happens=True, times=100)
        log = world.log(process, log_options=options(open_timeout_s=60))
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
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(outcomes[-1], NotPrimaryError)
        await log.close()
        await new.close()

    run(scenario())


def test_an_opening_makes_its_ledger_while_it_fences_and_leaves_none_that_it_does_not_list() -> (
    None
):
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        first = await world.opened()
        await append_all(first, range(3))
        await first.close()
        second = await world.opened(process)
        assert process.calls.index(CREATE) < process.calls.index("ledger read")
        await append_all(second, range(3, 6))
        await second.close()
        listed = world.ids_listed()
        del world.cluster.ledgers[listed[-1]]
        failed = MemoryProcess()
        with pytest.raises(DataCorruptionError, match="the ledger is missing"):
            await world.opened(failed)
        assert failed.calls.count(CREATE) == 1
        assert world.ids_listed() == listed
        assert world.cluster.ledgers.keys() == {*listed[:-1]}

    run(scenario())
