"""Every row of the table of failure codes, met by a log: what it does, and what it says
meanwhile.
"""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.failure_codes import REACTIONS, LedgerCall, Reaction
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.errors import DataCorruptionError, NotPrimaryError, TierUnavailableError
from tests.contracts.durable_data_log_contract import append_all, payload, read_all, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run
from tests.durablelog.bookkeeper.memory_ledgers import LedgerCallName

FATAL_CODES = (-14, -22, -100, -999, -4242)
LONG_S = 600.0


def rows(call: LedgerCall, *reactions: Reaction) -> list[int]:
    return sorted(code for code, reaction in REACTIONS[call].items() if reaction in reactions)


def numbers(count: int) -> list[bytes]:
    return [payload(number) for number in range(count)]


async def until_said(log: BookKeeperLog, words: str) -> str:
    """What `health` says, as soon as these words are in it."""
    for _ in range(100):
        said = log.health() or ""
        if words in said:
            return said
        await asyncio.sleep(0.1)
    raise AssertionError(f"{words!r} was never said, but: {log.health()}")


# --- appends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2, 9])
@pytest.mark.parametrize("code", rows(LedgerCall.ADD, Reaction.SETTLE))
def test_a_failed_ledger_is_settled_and_followed_by_another(code: int, kept: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        (first,) = world.ids_listed()
        world.cluster.fail_add(code, after=4, kept=kept)
        addresses = await append_all(log, range(9))
        assert addresses == sorted(set(addresses))
        frames = await read_all(log)
        assert [bytes(frame.payload) for frame in frames] == numbers(9)
        assert [frame.address for frame in frames] == addresses
        assert [item.last_entry for item in world.record.ledgers] == [3 + min(kept, 5), None]
        assert world.ids_listed()[0] == first
        assert world.cluster.ledgers[first].closed
        assert log.health() is None
        await log.close()

    run(scenario())


@pytest.mark.parametrize("code", [*rows(LedgerCall.ADD, Reaction.SETTLE), *FATAL_CODES])
def test_who_owns_a_log_is_said_by_its_record_and_not_by_the_code(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        new = await world.opened()
        world.cluster.fenced_code = code
        before = world.record
        results = await asyncio.gather(
            *[log.append([payload(9)]) for _ in range(5)], return_exceptions=True
        )
        assert all(isinstance(result, NotPrimaryError) for result in results)
        assert world.record == before
        assert await read_payloads(new) == numbers(3)
        await log.close()
        await new.close()
        assert sorted(world.cluster.ledgers) == world.ids_listed()

    run(scenario())


@pytest.mark.parametrize("code", FATAL_CODES)
def test_an_unexpected_code_stops_the_log_and_leaves_everything_as_it_is(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        before = world.record
        world.cluster.fail_add(code, after=1)
        results = await asyncio.gather(
            *[log.append([payload(9)]) for _ in range(3)], return_exceptions=True
        )
        assert isinstance(results[0], int)
        assert all(
            isinstance(result, TierUnavailableError) and str(code) in str(result)
            for result in results[1:]
        )
        with pytest.raises(TierUnavailableError):
            await log.append([payload(9)])
        with pytest.raises(TierUnavailableError):
            await log.truncate(results[0])
        assert world.record == before
        assert not world.cluster.ledgers[before.ledgers[0].ledger_id].closed
        await log.close()

    run(scenario())


def test_a_fence_without_a_new_owner_is_settled_slower_and_slower() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        for _ in range(20):
            world.cluster.fail_add(-101)
        begun = asyncio.get_running_loop().time()
        waiting = log.append([payload(0)])
        assert "nothing acknowledged" in await until_said(log, "nothing acknowledged")
        await waiting
        assert asyncio.get_running_loop().time() - begun > 30
        await asyncio.sleep(LONG_S)
        await append_all(log, range(1, 20))
        assert await read_payloads(log) == numbers(20)
        assert sorted(world.cluster.ledgers) == world.ids_listed(), "the empty ones are gone"
        await log.close()

    run(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_who_was_overtaken_while_he_settled_acknowledges_nothing(happens: bool) -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        await append_all(log, range(3))
        world.cluster.fail_add(-12, kept=2)
        # The appends, the check of the record, and then the recovery.
        process.sleep_in(len(process.calls) + 4, happens=happens)
        futures = [log.append([payload(number)]) for number in range(3, 6)]
        await asyncio.sleep(10)
        assert process.calls[-1] == "ledger recover"
        new = await world.opened()
        assert await read_payloads(new) == numbers(5)
        process.wake()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, NotPrimaryError) for result in results)
        await log.close()
        await new.close()

    run(scenario())


def test_a_ledger_that_lost_what_was_acknowledged_is_corruption() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(5))
        ledger = world.cluster.ledgers[world.ids_listed()[0]]
        del ledger.entries[3:]
        world.cluster.fail_add(-6)
        with pytest.raises(
            DataCorruptionError, match=f"ledger {ledger.ledger_id}.*entry 2; 5 entries"
        ):
            await log.append([payload(5)])
        await log.close()

    run(scenario())


# --- too few bookies ------------------------------------------------------------------------------


def test_writers_wait_for_bookies_as_long_as_it_takes_and_health_says_so() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        world.cluster.bookies_up = 1
        waiting = [log.append([payload(number)]) for number in range(3, 9)]
        assert "LedgerRecovery" in await until_said(log, "recovering a ledger failed")
        await asyncio.sleep(LONG_S)
        world.cluster.bookies_up = 2
        assert "NotEnoughBookies" in await until_said(log, "creating a ledger failed")
        await asyncio.sleep(LONG_S)
        # One bookie of two kept an entry of unknown outcome; it counts.
        assert [future.done() for future in waiting] == [True] + [False] * 5
        world.cluster.bookies_up = 3
        await asyncio.gather(*waiting)
        assert log.health() is None
        assert await read_payloads(log) == numbers(9)
        await log.close()

    run(scenario())


def test_who_waits_for_bookies_notices_that_another_has_taken_over() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        world.cluster.bookies_up = 1
        waiting = log.append([payload(3)])
        await until_said(log, "recovering a ledger failed")
        successor = world.log()
        opening = asyncio.create_task(successor.open())
        with pytest.raises(NotPrimaryError):
            await waiting
        world.cluster.bookies_up = 3
        await opening
        assert (await read_payloads(successor))[:3] == numbers(3)
        await log.close()
        await successor.close()

    run(scenario())


def test_a_smaller_ensemble_serves_until_the_next_roll_where_that_is_allowed() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened(degraded_replication=Replication(2, 2, 2))
        await append_all(log, range(3))
        world.cluster.bookies_up = 2
        world.cluster.fail_add(-6)
        await append_all(log, range(3, 6))
        said = log.health() or ""
        assert f"ledger {world.ids_listed()[-1]} is on 2/2/2" in said
        assert "too few bookies for 3/3/2" in said
        assert [item.replication for item in world.record.ledgers] == [
            Replication(),
            Replication(2, 2, 2),
        ]
        world.cluster.bookies_up = 3
        await append_all(log, range(6, 26))
        assert world.record.ledgers[-1].replication == Replication()
        assert log.health() is None
        assert await read_payloads(log) == numbers(26)
        await log.close()

    run(scenario())


# --- ledgers that cannot be made ------------------------------------------------------------------


@pytest.mark.parametrize("code", rows(LedgerCall.CREATE, Reaction.RETRY, Reaction.TOO_FEW_BOOKIES))
@pytest.mark.parametrize("happens", [False, True])
def test_making_a_ledger_is_tried_again(code: int, happens: bool) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.cluster.fail("create", code, times=3, happens=happens)
        log = await world.opened()
        assert log.health() is None
        world.cluster.fail("create", code, times=4, happens=happens)
        await append_all(log, range(20))
        assert len(world.record.ledgers) == 2
        assert await read_payloads(log) == numbers(20)
        await log.close()

    run(scenario())


@pytest.mark.parametrize("code", FATAL_CODES)
def test_an_unexpected_code_of_making_a_ledger_stops_the_log(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.cluster.fail("create", code, times=2)
        results = await asyncio.gather(
            *[log.append([payload(n)]) for n in range(20)], return_exceptions=True
        )
        acknowledged = [result for result in results if isinstance(result, int)]
        assert results[: len(acknowledged)] == acknowledged
        assert all(
            isinstance(result, TierUnavailableError) for result in results[len(acknowledged) :]
        )
        await log.close()
        world.cluster.fail("create", code)
        with pytest.raises(TierUnavailableError, match=str(code)):
            await world.opened()
        again = await world.opened()
        assert await read_payloads(again) == numbers(len(acknowledged))
        await again.close()

    run(scenario())


# --- recovering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", rows(LedgerCall.RECOVER, Reaction.RETRY))
@pytest.mark.parametrize("happens", [False, True])
def test_recovering_is_tried_again(code: int, happens: bool) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.cluster.fail("recover", code, times=5, happens=happens)
        world.cluster.fail_add(-11, after=2, kept=1)
        await append_all(log, range(5))
        world.cluster.fail("recover", code, times=5, happens=happens)
        new = await world.opened()
        assert await read_payloads(new) == numbers(5)
        await log.close()
        await new.close()

    run(scenario())


@pytest.mark.parametrize("call", ["recover", "create"])
def test_an_opening_gives_up_after_its_timeout_and_says_why(call: LedgerCallName) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        await log.close()
        world.cluster.fail(call, -10, times=1000)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TierUnavailableError, match="-10 LedgerRecovery"):
            await world.opened(open_timeout_s=30.0)
        assert 20 < asyncio.get_running_loop().time() - begun <= 30

    run(scenario())


@pytest.mark.parametrize("code", rows(LedgerCall.RECOVER, Reaction.NO_LEDGER))
def test_a_listed_ledger_that_is_missing_is_corruption(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        world.cluster.fail("recover", code)
        with pytest.raises(DataCorruptionError, match="missing"):
            await world.opened()
        await log.close()
        log = await world.opened()
        world.cluster.fail_add(-12)
        world.cluster.fail("recover", code)
        with pytest.raises(DataCorruptionError, match="missing"):
            await log.append([payload(3)])
        await log.close()

    run(scenario())


@pytest.mark.parametrize("code", FATAL_CODES)
def test_an_unexpected_code_of_recovering_stops_the_log(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        world.cluster.fail_add(-12)
        world.cluster.fail("recover", code)
        with pytest.raises(TierUnavailableError, match=str(code)):
            await log.append([payload(3)])
        await log.close()
        world.cluster.fail("recover", code)
        with pytest.raises(TierUnavailableError, match=str(code)):
            await world.opened()

    run(scenario())


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", rows(LedgerCall.READ, Reaction.RETRY, Reaction.MISSING))
def test_a_reading_goes_on_where_it_was_when_a_bookie_did_not_answer(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.cluster.read_batch = 3
        log = await world.opened()
        await append_all(log, range(20))
        seen = []
        async for batch in log.read():
            seen += [bytes(frame.payload) for frame in batch]
            if len(seen) < 15:
                world.cluster.fail("read", code, times=5)
        assert seen == numbers(20)
        await log.close()

    run(scenario())


@pytest.mark.parametrize(
    "code", rows(LedgerCall.READ, Reaction.RETRY, Reaction.MISSING, Reaction.NO_LEDGER)
)
def test_a_reading_that_gets_nothing_ends_with_the_reason(code: int) -> None:
    expected = (
        TierUnavailableError
        if REACTIONS[LedgerCall.READ][code] is Reaction.RETRY
        else DataCorruptionError
    )

    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        world.cluster.fail("read", code, times=20)
        with pytest.raises(expected, match=f"ledger {world.ids_listed()[0]} entry 0"):
            await read_all(log)
        await log.close()

    run(scenario())


@pytest.mark.parametrize("code", FATAL_CODES)
@pytest.mark.parametrize("outage", [False, True])
def test_an_unexpected_code_of_reading_stops_the_log_and_leaves_everything_as_it_is(
    code: int, outage: bool
) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(3))
        before = world.record
        world.cluster.fail("read", code)
        world.tree.outage = outage
        with pytest.raises(TierUnavailableError, match=str(code)):
            await read_all(log)
        world.tree.outage = False
        with pytest.raises(TierUnavailableError, match=str(code)):
            await log.append([payload(3)])
        with pytest.raises(TierUnavailableError, match=str(code)):
            await log.truncate(addresses[1])
        assert world.record == before
        assert not world.cluster.ledgers[before.ledgers[0].ledger_id].closed
        await log.close()
        again = await world.opened()
        assert await read_payloads(again) == numbers(3)
        await again.close()

    run(scenario())


@pytest.mark.parametrize("code", [*FATAL_CODES, *rows(LedgerCall.READ, Reaction.REFUSED)])
def test_a_reader_that_is_the_owner_no_more_learns_that_and_not_of_an_unexpected_code(
    code: int,
) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        old = await world.opened()
        await append_all(old, range(3))
        new = await world.opened()
        world.cluster.fail("read", code)
        with pytest.raises(NotPrimaryError):
            await read_all(old)
        assert await read_payloads(new) == numbers(3)
        await old.close()
        await new.close()

    run(scenario())


def test_a_reader_whose_ledger_a_new_owner_has_truncated_learns_that_and_not_of_corruption() -> (
    None
):
    async def scenario() -> None:
        world = BookKeeperWorld()
        old = await world.opened()
        addresses = await append_all(old, range(40))
        new = await world.opened()
        await new.truncate(addresses[39])
        await asyncio.sleep(LONG_S)
        with pytest.raises(NotPrimaryError):
            await read_all(old)
        await old.close()
        await new.close()

    run(scenario())


# --- deleting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["delete", "recover"])
@pytest.mark.parametrize("code", [*REACTIONS[LedgerCall.DELETE], *FATAL_CODES, -102])
def test_a_truncated_ledger_is_deleted_in_the_end_whatever_comes_between(
    code: int, call: LedgerCallName
) -> None:
    gone = REACTIONS[LedgerCall.DELETE].get(code) is Reaction.NO_LEDGER

    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(40))
        first = world.ids_listed()[0]
        if gone:
            del world.cluster.ledgers[first]
        world.cluster.fail(call, code, times=1 if gone else 30)
        await log.truncate(addresses[13])
        assert first in world.ids_removing()
        if not gone:
            assert f"ledger {first} cannot be deleted" in await until_said(log, "cannot be deleted")
        await asyncio.sleep(30 * 60)
        assert first not in world.cluster.ledgers
        assert log.health() is None
        await log.truncate(addresses[14])
        assert world.record.removing == ()
        await log.close()

    run(scenario())
