"""Calls whose answers were lost: the process died behind some write. Clients call once more, and
have the answers that were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.controller.controller import Controller
from segmentstore.controller.deadlines import FIRST_S
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason
from segmentstore.controller.request_ids import KEPT_AT_START_MS, KEPT_MS
from segmentstore.controller.stream_model import StreamConfiguration
from segmentstore.controller.streams import FINISH_REPEATED_S, FINISH_S
from segmentstore.controller.transaction_model import KEPT_MS as TRANSACTIONS_KEPT_MS
from tests.controller.controller_world import (
    LEASE_MS,
    STREAM,
    TWO,
    refused,
    running,
    with_stream,
)
from tests.controller.fake_store import CrashError, FakeDisk, FakeProcess
from tests.support.loop_clock import LoopClock

GROUP: Final = ScopedName("s", "g")
TABLE: Final = ScopedName("s", "t")
KEYS: Final = KeyValueTableConfiguration(2, 4, 4, 0)
ID: Final = "-5"
OTHER_ID: Final = "6"
SUBSCRIBER: Final = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
RANGES: Final = [(0.2, 0.5), (0.0, 0.2)]


class Call(NamedTuple):
    before: Callable[[Controller], Awaitable[object]]
    call: Callable[[Controller], Awaitable[object]]


async def stream(controller: Controller) -> None:
    await controller.scopes.create("s")
    await controller.streams.create(STREAM, TWO)


async def sealed(controller: Controller) -> None:
    await stream(controller)
    await controller.streams.seal(STREAM)


async def table(controller: Controller) -> None:
    await controller.scopes.create("s")
    await controller.key_value_tables.create(TABLE, KEYS)


async def group(controller: Controller) -> None:
    await stream(controller)
    await controller.groups.create(GROUP, SUBSCRIBER)


CALLS: Final = {
    "create scope": Call(lambda _: asyncio.sleep(0), lambda c: c.scopes.create("s", ID)),
    "delete scope": Call(lambda c: c.scopes.create("s"), lambda c: c.scopes.delete("s", ID)),
    "delete scope with all": Call(sealed, lambda c: c.scopes.delete_recursively("s", ID)),
    "create stream": Call(
        lambda c: c.scopes.create("s"), lambda c: c.streams.create(STREAM, TWO, ID)
    ),
    "delete stream": Call(sealed, lambda c: c.streams.delete(STREAM, ID)),
    "create table": Call(
        lambda c: c.scopes.create("s"), lambda c: c.key_value_tables.create(TABLE, KEYS, ID)
    ),
    "delete table": Call(table, lambda c: c.key_value_tables.delete(TABLE, ID)),
    "delete group": Call(group, lambda c: c.groups.delete(GROUP, "u", ID)),
    "update": Call(stream, lambda c: c.streams.update(STREAM, StreamConfiguration())),
    "truncate": Call(stream, lambda c: c.streams.truncate(STREAM, {0: 0, 1: 0})),
    "scale": Call(stream, lambda c: c.streams.scale(STREAM, [0], RANGES)),
    "seal": Call(stream, lambda c: c.streams.seal(STREAM)),
    "create group": Call(stream, lambda c: c.groups.create(GROUP, SUBSCRIBER)),
    "update group": Call(group, lambda c: c.groups.update(GROUP, SUBSCRIBER)),
}


async def answered(call: Call) -> tuple[object, int]:
    """The answer, and how many writes it took."""
    process = FakeProcess(FakeDisk())
    async with running(process) as controller:
        await call.before(controller)
        before = process.changes
        answer = await call.call(controller)
        return answer, process.changes - before


async def answered_again(call: Call, dies_at: int, waits_s: float) -> object:
    process = FakeProcess(FakeDisk(), before=False)
    async with running(process) as controller:
        await call.before(controller)
        process.crash_at = process.changes + dies_at
        with pytest.raises(CrashError):
            await call.call(controller)
        process.dead = True
    async with running(FakeProcess(process.disk)) as controller:
        await asyncio.sleep(waits_s)
        return await call.call(controller)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("waits_s", [0, FINISH_S + 1, FINISH_REPEATED_S + 1])
def test_it_has_the_answer_that_was_lost(name: str, waits_s: float) -> None:
    call = CALLS[name]
    answer, writes = run_virtual(answered(call))
    for dies_at in range(1, writes + 1):
        assert run_virtual(answered_again(call, dies_at, waits_s)) == answer, dies_at


def test_a_scale_has_its_answer_behind_others_and_another_one_has_none() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, _):
            answer = await controller.streams.scale(STREAM, [0], RANGES)
            _, (low, high) = answer
            ends = [low.segment_id, high.segment_id]
            await controller.streams.scale(STREAM, ends, [(0.0, 0.5)])
            assert await controller.streams.scale(STREAM, [0], RANGES) == answer
            for sealed, ranges in (([0], [(0.0, 0.5)]), ([0, 1], RANGES), ([low.segment_id], [])):
                async with refused(Reason.PRECONDITION_FAILED):
                    await controller.streams.scale(STREAM, sealed, ranges)

    run_virtual(main())


def test_a_transaction_is_created_once_by_one_request() -> None:
    async def opened(controller: Controller) -> int:
        identity, _ = await controller.create_transaction(STREAM, LEASE_MS, ID)
        return identity

    async def main(dies_at: int) -> None:
        process = FakeProcess(FakeDisk(), before=False)
        async with running(process) as controller:
            await stream(controller)
            process.crash_at = process.changes + dies_at
            with pytest.raises(CrashError):
                await opened(controller)
            process.dead = True
        async with running(FakeProcess(process.disk), seed=2) as controller:
            identity = await opened(controller)
            assert await opened(controller) == identity
            assert controller.transactions.open_count == 1
            other, _ = await controller.create_transaction(STREAM, LEASE_MS, OTHER_ID)
            await controller.transactions.abort(STREAM, other)
            await controller.transactions.commit(STREAM, identity)
            assert await opened(controller) not in (identity, other)

    for dies_at in (1, 2, 3):
        run_virtual(main(dies_at))


@pytest.mark.parametrize("request_id", ["", OTHER_ID])
def test_another_request_is_refused(request_id: str) -> None:
    async def main() -> None:
        async with running(FakeProcess(FakeDisk())) as controller:
            await group(controller)
            await controller.key_value_tables.create(TABLE, KEYS, ID)
            async with refused(Reason.SCOPE_EXISTS):
                await controller.scopes.create("s", request_id)
            async with refused(Reason.STREAM_EXISTS):
                await controller.streams.create(STREAM, TWO, request_id)
            async with refused(Reason.TABLE_EXISTS):
                await controller.key_value_tables.create(TABLE, KEYS, request_id)
            await controller.key_value_tables.delete(TABLE, ID)
            async with refused(Reason.TABLE_NOT_FOUND):
                await controller.key_value_tables.delete(TABLE, request_id)
            await controller.scopes.delete_recursively("s", ID)
            async with refused(Reason.SCOPE_NOT_FOUND):
                await controller.scopes.delete("s", request_id)

    run_virtual(main())


def test_a_deletion_called_once_more_leaves_what_was_created_since() -> None:
    async def main() -> None:
        async with running(FakeProcess(FakeDisk())) as controller:
            for _ in range(2):
                await sealed(controller)
                await controller.key_value_tables.create(TABLE, KEYS)
                await controller.key_value_tables.delete(TABLE, "1")
                await controller.streams.delete(STREAM, "2")
                await controller.scopes.delete("s", "3")
                if await controller.scopes.exists("s"):
                    break
            else:
                raise AssertionError("the second deletions took effect")
            assert await controller.streams.exists(STREAM)
            assert await controller.key_value_tables.configuration(TABLE) == KEYS

    run_virtual(main())


def test_controllers_that_are_ended_after_minutes_forget_old_answers_too() -> None:
    async def main() -> None:
        clock, disk = LoopClock(), FakeDisk()
        async with running(FakeProcess(disk), clock=clock) as controller:
            await stream(controller)
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            await controller.transactions.abort(STREAM, identity)
            await controller.scopes.create("t")
            await controller.scopes.delete("t", ID)
            await asyncio.sleep(2 * FIRST_S)
        kinds = {bytes(key).partition(b"/")[0] for key in disk.rows}
        assert kinds >= {b"answered", b"ended"}
        # A clock that is ahead by some hours, of a Controller that has just begun, removes nothing.
        clock.offset_ms += KEPT_AT_START_MS // 2
        async with running(FakeProcess(disk), clock=clock):
            await asyncio.sleep(2 * FIRST_S)
        assert any(key.startswith(b"answered/") for key in disk.rows)
        clock.offset_ms += 2 * max(TRANSACTIONS_KEPT_MS, KEPT_AT_START_MS)
        async with running(FakeProcess(disk), clock=clock):
            await asyncio.sleep(2 * FIRST_S)
        kinds = {bytes(key).partition(b"/")[0] for key in disk.rows}
        assert not kinds & {b"answered", b"ended"}

    run_virtual(main())


def test_a_deletion_is_known_for_an_hour() -> None:
    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create("s")
            await controller.scopes.delete("s", ID)
            await asyncio.sleep(KEPT_MS / 1000 - 1)
            await controller.scopes.delete("s", ID)
            await asyncio.sleep(2 * KEPT_MS / 1000)
            async with refused(Reason.SCOPE_NOT_FOUND):
                await controller.scopes.delete("s", ID)
        assert not [key for key in process.disk.rows if key.startswith(b"answered/")]

    run_virtual(main())
