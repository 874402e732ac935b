"""When an owner may acknowledge, and when a later one may delete: of the two one sees the other,
whatever bookies forget.
"""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.ledger_deleter import DELETE_AFTER_S
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.ownership_lease import LEASE_S
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, options, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers, until_said

READ = "node read"


def looks(process: MemoryProcess) -> int:
    return process.calls.count(READ)


def test_two_ages_fit_together() -> None:
    assert 2 * LEASE_S <= DELETE_AFTER_S


@pytest.mark.parametrize("idle_s", [1.0, LEASE_S / 2 + 1, LEASE_S + 1, DELETE_AFTER_S + 1, LONG_S])
@pytest.mark.parametrize("asleep", [False, True])
def test_an_idle_owner_whose_ledger_was_deleted_and_forgotten_acknowledges_nothing(
    idle_s: float, asleep: bool
) -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        old = await world.opened(process)
        await append_all(old, range(3))
        (forgotten,) = world.ids_listed()
        if asleep:
            process.sleep()
        new = await world.opened()
        addresses = await append_all(new, range(3, 40))
        await new.truncate(addresses[-1])
        await asyncio.sleep(idle_s)
        assert (forgotten in world.cluster.ledgers) == (idle_s < DELETE_AFTER_S)
        stale = old.append([payload(99)])
        process.wake()
        with pytest.raises(NotPrimaryError):
            await stale
        assert await read_payloads(new) == numbers(40)[-1:]
        await old.close()
        await new.close()

    run(scenario())


@pytest.mark.parametrize("claimed_after_s", [0.0, LEASE_S / 2, LEASE_S - 1])
def test_an_owner_with_a_valid_lease_finds_its_ledger_fenced(
    claimed_after_s: float,
) -> None:
    """The ages are counted from the last check, and from the claim: whatever lies between them."""

    async def scenario() -> None:
        world = BookKeeperWorld()
        old = await world.opened()
        await asyncio.sleep(claimed_after_s)
        new = await world.opened()
        later = [await new.append([payload(number)]) for number in range(40)]
        await new.truncate(later[-1])
        for _ in range(100):
            await asyncio.sleep(1)
            try:
                await old.append([payload(99)])
            except NotPrimaryError:
                break
            raise AssertionError("a stale owner acknowledged")
        await old.close()
        await new.close()

    run(scenario())


def test_a_busy_owner_checks_now_and_then_and_an_idle_one_no_more_often() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process, ledger_bytes=1 << 20)
        before = looks(process)
        await asyncio.sleep(600)
        assert 600 / LEASE_S <= looks(process) - before <= 2 * 600 / LEASE_S + 1
        before = looks(process)
        for number in range(600):
            await log.append([payload(number)])
            await asyncio.sleep(1)
        assert 600 / LEASE_S <= looks(process) - before <= 2 * 600 / LEASE_S + 1
        await log.close()

    run(scenario())


def test_an_idle_owner_that_was_overtaken_learns_it_by_itself() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        old = await world.opened()
        await append_all(old, range(3))
        failures: list[SegmentStoreError] = []
        old.on_failed = failures.append
        new = await world.opened()
        assert failures == []
        await asyncio.sleep(LEASE_S)
        assert [type(failure) for failure in failures] == [NotPrimaryError]
        with pytest.raises(NotPrimaryError):
            await old.append([payload(3)])
        await old.close()
        await new.close()
        assert len(failures) == 1
        assert not owned_tasks()

    run(scenario())


def test_an_idle_owner_outlives_an_outage_of_its_record_and_checks_again() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.tree.outage = True
        await asyncio.sleep(LEASE_S)
        assert "does not answer" in await until_said(log, "acknowledgements wait")
        world.tree.outage = False
        await asyncio.sleep(LONG_S)
        assert log.health() is None
        await append_all(log, range(3))
        await log.close()

    run(scenario())


def test_changes_of_the_record_are_checks_as_well() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process, ledger_bytes=1 << 20)
        before = looks(process)
        for number in range(60):
            address = await log.append([payload(number)])
            await log.truncate(address)
            await asyncio.sleep(LEASE_S / 4)
        assert looks(process) == before
        await log.close()

    run(scenario())


def test_a_short_outage_of_the_nodes_is_not_seen_and_in_a_long_one_acknowledgements_wait() -> None:
    async def scenario() -> None:
        world, loop = BookKeeperWorld(), asyncio.get_running_loop()
        log = await world.opened(ledger_bytes=1 << 20)
        world.tree.outage = True
        begun, number = loop.time(), 0
        while loop.time() < begun + LEASE_S - 2:
            await log.append([payload(number)])
            assert (
                log.health() == "the nodes do not answer"
            )  # that is what the nodes themselves say
            number += 1
            await asyncio.sleep(1)
        await asyncio.sleep(2)
        held = [log.append([payload(number + more)]) for more in range(20)]
        assert "acknowledgements wait" in await until_said(log, "acknowledgements wait")
        await asyncio.sleep(LONG_S)
        assert not any(future.done() for future in held)
        assert log.statistics().frames_in_flight == len(held)
        assert await read_payloads(log) == numbers(number)
        world.tree.outage = False
        addresses = await asyncio.gather(*held)
        assert addresses == sorted(addresses)
        assert log.health() is None
        assert await read_payloads(log) == numbers(number + 20)
        await log.close()

    run(scenario())


@pytest.mark.parametrize("what", ["full", "fails", "fails for good"])
def test_frames_that_are_held_come_through_what_happens_to_their_ledger(what: str) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.tree.outage = True
        await asyncio.sleep(LEASE_S)
        held = [log.append([payload(number)]) for number in range(5)]
        await until_said(log, "acknowledgements wait")
        if what == "full":
            held += [log.append([payload(number)]) for number in range(5, 40)]
        else:
            world.cluster.fail_add(-12 if what == "fails" else -999, after=2, kept=1)
            held += [log.append([payload(number)]) for number in range(5, 10)]
        await asyncio.sleep(LONG_S)
        assert not any(future.done() for future in held)
        world.tree.outage = False
        results = await asyncio.gather(*held, return_exceptions=True)
        if what == "fails for good":
            failed = [result for result in results if isinstance(result, TierUnavailableError)]
            assert results[len(results) - len(failed) :] == failed
            assert 3 <= len(failed) <= len(results)
        else:
            assert results == sorted(result for result in results if isinstance(result, int))
            assert await read_payloads(log) == numbers(len(held))
            assert log.health() is None
        await log.close()

    run(scenario())


@pytest.mark.parametrize("end", ["closed", "overtaken", "refused"])
def test_frames_that_are_held_fail_with_the_log(end: str) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.tree.outage = True
        await asyncio.sleep(LEASE_S)
        held = [log.append([payload(number)]) for number in range(5)]
        await until_said(log, "acknowledgements wait")
        expected: type[Exception] = ContainerStoppedError
        if end == "overtaken":
            world.tree.outage = False
            new = await world.opened()
            await new.close()
            expected = NotPrimaryError
        elif end == "refused":
            world.tree.refuse("read", times=100)
            world.tree.outage = False
            expected = ConfigError
        else:
            await log.close()
        for result in await asyncio.gather(*held, return_exceptions=True):
            assert isinstance(result, expected)
        with pytest.raises(expected):
            await log.append([payload(9)])
        await log.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


@pytest.mark.parametrize("killed", [False, True])
def test_ledgers_of_owners_that_closed_go_at_once_and_those_of_others_later(killed: bool) -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        await append_all(log, range(20))
        if killed:
            process.die()
        await log.close()
        earlier = world.ids_listed()
        log = await world.opened()
        addresses = await append_all(log, range(20, 60))
        await log.truncate(addresses[-1])
        await asyncio.sleep(1)
        kept = earlier if killed else []
        assert sorted(world.cluster.ledgers) == kept + world.ids_listed()
        await asyncio.sleep(DELETE_AFTER_S - 3)
        assert sorted(world.cluster.ledgers) == kept + world.ids_listed()
        await asyncio.sleep(4)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()

    run(scenario())


async def append_and_truncate(world: BookKeeperWorld, number: int) -> None:
    """An owner of a few seconds that closes."""
    log = await world.opened()
    await log.truncate(await log.append([payload(number)]))
    await asyncio.sleep(1)
    await log.close()


def test_owners_that_are_never_there_for_long_leave_no_ledgers() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        for number in range(20):
            await append_and_truncate(world, number)
            assert len(world.cluster.ledgers) <= 2
            assert len(world.record.removing) <= 1

    run(scenario())


def test_one_owner_that_was_killed_keeps_no_ledgers_of_later_ones() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        await append_all(log, range(20))
        killed = world.ids_listed()
        process.die()
        await log.close()
        for number in range(20, 40):
            await append_and_truncate(world, number)
            assert set(killed) < world.cluster.ledgers.keys()
            assert len(world.cluster.ledgers) <= len(killed) + 2
        log = await world.opened()
        await asyncio.sleep(LONG_S)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()

    run(scenario())


@pytest.mark.parametrize("stays_s", [1.0, DELETE_AFTER_S + 1])
def test_an_owner_that_was_there_for_long_settles_those_before_it(stays_s: float) -> None:
    """Also if it deletes nothing itself."""

    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        await append_all(log, range(20))
        killed = world.ids_listed()
        process.die()
        await log.close()
        log = await world.opened()
        await asyncio.sleep(stays_s)
        await log.close()
        await append_and_truncate(world, 20)
        assert (set(killed) <= world.cluster.ledgers.keys()) == (stays_s < DELETE_AFTER_S)

    run(scenario())


def test_an_owner_that_was_overtaken_does_not_say_that_it_closed() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        old = await world.opened()
        new = await world.opened()
        await old.close()
        after = [(world.record.closed, world.record.unclosed)]
        await new.close()
        after.append((world.record.closed, world.record.unclosed))
        assert after == [(False, old.epoch), (True, old.epoch)]

    run(scenario())


def test_what_owners_that_were_killed_leave_is_removed_by_one_that_is_alive_long_enough() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        for number in range(5):
            process = MemoryProcess()
            log = await world.opened(process)
            address = await log.append([payload(number)])
            await log.truncate(address)
            await asyncio.sleep(DELETE_AFTER_S / 2)
            process.die()
            await log.close()
        assert len(world.cluster.ledgers) == 5
        log = await world.opened()
        await asyncio.sleep(LONG_S)
        await log.truncate(await log.append([payload(5)]))
        assert world.ids_removing() == sorted(set(world.cluster.ledgers) - set(world.ids_listed()))
        await asyncio.sleep(LONG_S)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


def test_an_opening_whose_ledger_a_later_owner_has_deleted_is_overtaken() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        first = await world.opened()
        await append_all(first, range(20))
        await first.close()
        process.sleep_in(2, happens=False)
        slow = world.log(process, log_options=options(open_timeout_s=1e6))
        opening = asyncio.create_task(slow.open())
        await asyncio.sleep(1)
        assert process.calls[-1] == "ledger recover"
        new = await world.opened()
        await new.truncate(await new.append([payload(20)]))
        await asyncio.sleep(LONG_S)
        process.wake()
        with pytest.raises(NotPrimaryError):
            await opening
        await new.close()

    run(scenario())


@pytest.mark.parametrize("code", [-23, -13])
def test_a_last_frame_that_cannot_be_read_does_not_stop_the_container_for_ever(code: int) -> None:
    """While a log opens its reader checks the record as later; without an answer nothing is taken
    for corruption.
    """

    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        await log.close()
        world.cluster.fail("read", code, times=8)
        failure = asyncio.create_task(world.opened())
        if code == -13:
            await asyncio.sleep(1)
            world.tree.outage = True
        with pytest.raises(TierUnavailableError):
            await failure
        world.tree.outage = False
        log = await world.opened()
        assert await read_payloads(log) == numbers(3)
        await log.close()

    run(scenario())
