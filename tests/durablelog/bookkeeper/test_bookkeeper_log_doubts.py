"""What a log does when its record's node, or the password of its ledgers, is the trouble: the other
half of the tables.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from durablelog.bookkeeper.failure_codes import (
    NODE_REACTIONS,
    LedgerCall,
    NodeAnswer,
    NodeCall,
    Reaction,
)
from durablelog.bookkeeper.frame_reports import frame_reports
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.errors import ConfigError, NotPrimaryError, TierUnavailableError
from tests.contracts.durable_data_log_contract import append_all, payload, read_all, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import PATH, BookKeeperWorld, run
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers, rows

# --- unforeseen errors ----------------------------------------------------------------------------


def test_a_log_that_stopped_for_an_unexpected_code_deletes_nothing_any_more() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(40))
        first = world.ids_listed()[0]
        world.cluster.fail("delete", -9, times=3)
        await log.truncate(addresses[13])
        world.cluster.fail("read", -999)
        with pytest.raises(TierUnavailableError, match="-999 UnexpectedCondition"):
            await read_all(log)
        await asyncio.sleep(LONG_S)
        assert first in world.cluster.ledgers
        await log.close()
        again = await world.opened()
        assert await read_payloads(again) == numbers(40)[13:]
        await asyncio.sleep(LONG_S)
        assert first not in world.cluster.ledgers
        await again.close()

    run(scenario())


# --- another password -----------------------------------------------------------------------------

ELSEWHERE = "that in /etc/elsewhere"
PASSWORD = f"made with another password than {ELSEWHERE}"


def said(code: int) -> str:
    """-24 is of TLS and authentication, the other refusals are of the ledger's password."""
    return "TLS and authentication are set by client_settings" if code == -24 else PASSWORD


@pytest.mark.parametrize("code", rows(LedgerCall.RECOVER, Reaction.REFUSED))
def test_an_opening_with_another_password_changes_nothing_but_the_epoch_and_says_what_to_mend(
    code: int,
) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        await log.close()
        before, held = (
            world.record,
            {number: list(ledger.entries) for number, ledger in world.cluster.ledgers.items()},
        )
        world.cluster.fail("recover", code)
        with pytest.raises(ConfigError, match=f"^setting tier1: .*{code} .*{said(code)}"):
            await world.opened(password_from=ELSEWHERE)
        after = world.record
        assert after == replace(
            before, epoch=before.epoch + 1, written_by=after.written_by, change=after.change
        )
        assert {number: ledger.entries for number, ledger in world.cluster.ledgers.items()} == held
        again = await world.opened()
        assert await read_payloads(again) == numbers(3)
        await again.close()

    run(scenario())


@pytest.mark.parametrize("code", rows(LedgerCall.RECOVER, Reaction.REFUSED))
def test_a_running_log_whose_ledger_wants_another_password_stops(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened(password_from=ELSEWHERE)
        await append_all(log, range(3))
        before = world.record
        world.cluster.fail_add(-12, kept=1)
        world.cluster.fail("recover", code)
        with pytest.raises(ConfigError, match=said(code)):
            await log.append([payload(3)])
        assert world.record == before
        await log.close()
        again = await world.opened()
        assert await read_payloads(again) == numbers(4)
        await again.close()

    run(scenario())


@pytest.mark.parametrize("code", rows(LedgerCall.READ, Reaction.REFUSED))
def test_a_reading_that_wants_another_password_stops_the_log(code: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened(password_from=ELSEWHERE)
        await append_all(log, range(3))
        world.cluster.fail("read", code)
        with pytest.raises(ConfigError, match=said(code)):
            await read_all(log)
        with pytest.raises(ConfigError, match=said(code)):
            await log.append([payload(3)])
        await log.close()

    run(scenario())


def test_who_checks_a_stopped_log_with_another_password_learns_what_to_mend() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        await log.close()
        stranger = MemoryLedgerStore(world.cluster, password=b"sesame")
        with pytest.raises(
            ConfigError, match="another password than the one given, by password_file"
        ) as caught:
            await anext(frame_reports(stranger, world.record))
        assert "sesame" not in str(caught.value)

    run(scenario())


# --- the record's node ----------------------------------------------------------------------------


def node_rows(reaction: Reaction) -> list[tuple[NodeCall, NodeAnswer]]:
    return [
        (call, answer)
        for call, answers in NODE_REACTIONS.items()
        for answer in answers
        if answers[answer] is reaction
    ]


def plant(
    world: BookKeeperWorld, call: NodeCall, answer: NodeAnswer, *, happens: bool, times: int = 1
) -> None:
    """The next such call has this answer."""
    change: Literal["create", "write"] = "create" if call is NodeCall.CREATE else "write"
    name: Literal["read", "create", "write"] = "read" if call is NodeCall.READ else change
    if answer is NodeAnswer.REFUSED:
        world.tree.refuse(name, times)
    elif answer is NodeAnswer.NONE:
        world.tree.fail(name, happens=happens, times=times)
    else:
        world.tree.conflict(change, happens=happens, times=times)


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize(("call", "answer"), node_rows(Reaction.READ_AGAIN))
def test_after_an_unconfirmed_change_the_record_is_read_before_anything_else(
    call: NodeCall, answer: NodeAnswer, happens: bool
) -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        begun = 0
        if call is NodeCall.CREATE:
            plant(world, call, answer, happens=happens)
        log = await world.opened(process)
        if call is NodeCall.WRITE:
            begun = len(process.calls)
            plant(world, call, answer, happens=happens)
        await append_all(log, range(20))
        made = process.calls[begun:]
        assert made[made.index(f"node {call.value}") + 1] == "node read"
        assert made.count(f"node {call.value}") == (1 if happens else 2)
        assert (log.epoch, len(world.record.ledgers)) == (1, 2), "neither lost nor done twice"
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        assert log.health() is None
        assert await read_payloads(log) == numbers(20)
        await log.close()

    run(scenario())


async def first_roll() -> int:
    """Where a process that appends 20 frames from the beginning lists its second ledger, among its
    calls.
    """
    world, process = BookKeeperWorld(), MemoryProcess()
    log = await world.opened(process)
    begun = len(process.calls)
    await append_all(log, range(20))
    await log.close()
    return process.calls.index("node write", begun)


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize(
    "answer", [answer for call, answer in node_rows(Reaction.READ_AGAIN) if call is NodeCall.WRITE]
)
def test_an_unconfirmed_change_that_another_owner_overtook_is_given_up(
    answer: NodeAnswer, happens: bool
) -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        old = await world.opened(process)
        process.sleep_in(await first_roll(), happens=True)
        plant(world, NodeCall.WRITE, answer, happens=happens)
        futures = [old.append([payload(number)]) for number in range(20)]
        await asyncio.sleep(10)
        assert process.stopped
        new = await world.opened()
        assert len(world.record.ledgers) == 2
        process.wake()
        results = await asyncio.gather(*futures, return_exceptions=True)
        acknowledged = sum(isinstance(result, int) for result in results)
        assert 0 < acknowledged < 20
        assert all(isinstance(result, NotPrimaryError) for result in results[acknowledged:])
        assert await read_payloads(new) == numbers(acknowledged)
        await old.close()
        await new.close()

    run(scenario())


@pytest.mark.parametrize(("call", "answer"), node_rows(Reaction.RETRY))
def test_a_record_that_does_not_answer_is_asked_again_and_nothing_is_concluded(
    call: NodeCall, answer: NodeAnswer
) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        plant(world, call, answer, happens=False, times=3)
        log = await world.opened()
        assert log.epoch == 1
        plant(world, call, answer, happens=False)
        with pytest.raises(TierUnavailableError):
            await log.check_primary()
        # Settling begins with a check of the record.
        plant(world, call, answer, happens=False, times=4)
        world.cluster.fail_add(-11, kept=1)
        await append_all(log, range(9))
        assert log.health() is None
        assert await read_payloads(log) == numbers(9)
        await log.close()

    run(scenario())


@pytest.mark.parametrize(("call", "answer"), node_rows(Reaction.REFUSED))
def test_a_record_that_is_refused_is_the_operators_move(call: NodeCall, answer: NodeAnswer) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        if call is NodeCall.CREATE:
            plant(world, call, answer, happens=False)
            with pytest.raises(ConfigError, match=PATH):
                await world.opened()
            assert world.tree.content(PATH) is None
        log = await world.opened()
        await append_all(log, range(3))
        if call is not NodeCall.CREATE:
            before = world.record
            plant(world, call, answer, happens=False)
            with pytest.raises(ConfigError, match=PATH):
                await world.opened()
            assert world.record == before
            plant(world, call, answer, happens=False)
            world.cluster.fail_add(-11)
            with pytest.raises(ConfigError, match=PATH):
                await log.append([payload(3)])
            assert world.record == before
        await log.close()

    run(scenario())
