"""A ledger that a tool deleted under a running owner is found, said, and written no more."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.listed_ledgers import CHECK_S
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import numbers

FOUND_S = CHECK_S + 10


@pytest.mark.parametrize("frames", [0, 3])
def test_a_current_ledger_that_is_missing_is_said_and_followed_by_another(frames: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(frames))
        (lost,) = world.ids_listed()
        del world.cluster.ledgers[lost]
        await asyncio.sleep(FOUND_S)
        assert f"missing, ledger {lost}: a tool deleted it" in (log.health() or "") or not frames
        assert world.ids_listed()[-1] != lost
        # What was flushed by now is in Tier 2: the log needs the ledger no more.
        address = await log.append([payload(frames)])
        await log.truncate(address)
        assert log.health() is None
        await log.close()
        log = await world.opened()
        assert await read_payloads(log) == numbers(frames + 1)[frames:]
        await log.close()
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


def test_an_earlier_ledger_that_is_missing_is_said() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(60))
        *earlier, current = world.ids_listed()
        lost = earlier[1]
        del world.cluster.ledgers[lost]
        await asyncio.sleep(len(earlier) * FOUND_S)
        assert f"missing, ledger {lost}: a tool deleted it" in (log.health() or "")
        assert world.ids_listed() == [*earlier, current]
        await log.truncate(addresses[-1])
        assert log.health() is None
        await log.close()

    run(scenario())


@pytest.mark.parametrize("code", [-7, -8, -9])
def test_one_answer_that_says_so_is_not_believed(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        before = world.ids_listed()
        world.cluster.fail("describe", code)
        await asyncio.sleep(3 * FOUND_S)
        assert log.health() is None
        assert world.ids_listed() == before
        await log.close()

    run(scenario())


def test_a_ledger_that_a_later_owner_deleted_is_not_said_to_be_missing() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        old = await world.opened(process)
        await append_all(old, range(3))
        process.sleep()
        new = await world.opened()
        await new.truncate((await append_all(new, range(3, 40)))[-1])
        await asyncio.sleep(3 * FOUND_S)
        process.wake()
        await asyncio.sleep(3 * FOUND_S)
        assert "missing" not in (old.health() or "")
        assert new.health() is None
        await old.close()
        await new.close()

    run(scenario())


def test_a_log_costs_two_requests_a_minute_however_much_is_appended() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        for number in range(500):
            await log.append([payload(number)])
            await asyncio.sleep(CHECK_S / 50)
        assert process.calls.count("ledger describe") <= 2 * 10
        assert process.calls.count("ledger describe") >= 10
        await log.close()

    run(scenario())
