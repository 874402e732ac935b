"""An owner that ends, or falls asleep, in any of its calls: nothing acknowledged is lost, nothing
is doubled, nothing stays behind.

Each test runs a whole lifetime of a log once, counts its calls, and then runs it again for every
call, stopped there. It is stopped before the call happened, and after it happened with its reply
never received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.ledger_store import EMPTY
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.errors import ContainerStoppedError, NotPrimaryError
from tests.contracts.durable_data_log_contract import payload, read_all
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run

_PARTS = 12
"""The calls of a life are processed in so many tests."""


class _ProcessRun:
    """What an owner does, and what it was promised."""

    def __init__(self, world: BookKeeperWorld, process: MemoryProcess) -> None:
        self.world = world
        self.process = process
        self.log = world.log(process)
        self.asked = 0
        self.acknowledged = 0
        self.wanted_start = 0
        self.errors: list[BaseException] = []

    async def live(self) -> None:
        """Opening, rolls, a failure settled, truncations, removals, closing."""
        cluster = self.world.cluster
        await self.log.open()
        first = await self.append(30)
        await self.truncate(first, 20)
        cluster.fail_add(-12, after=3, kept=2)
        second = await self.append(20)
        await self.truncate(second, 15)
        await asyncio.sleep(100)
        cluster.fail_add(-101)
        await self.append(3)
        await self.log.close()

    async def append(self, count: int) -> dict[int, LogAddress]:
        futures: dict[int, asyncio.Future[LogAddress]] = {}
        for _ in range(count):
            futures[self.asked] = self.log.append([payload(self.asked)])
            self.asked += 1
        for future in futures.values():
            future.add_done_callback(self._done)
        return {number: await future for number, future in futures.items()}

    async def truncate(self, addresses: dict[int, LogAddress], index: int) -> None:
        number = list(addresses)[index]
        self.wanted_start = number
        await self.log.truncate(addresses[number])

    def _done(self, future: asyncio.Future[LogAddress]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


async def _settle_down(world: BookKeeperWorld, life: _ProcessRun, log: BookKeeperLog) -> None:
    """Whichever process is the owner now: everything acknowledged is there, once, in order, and the
    cluster holds nothing else.
    """
    frames = await read_all(log)
    numbers = [int(bytes(frame.payload)[:6]) for frame in frames]
    assert (
        numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        if numbers
        else life.acknowledged == 0
    )
    if numbers:
        assert numbers[0] <= life.wanted_start
        assert life.acknowledged <= numbers[-1] + 1 <= life.asked
        assert [frame.sequence for frame in frames] == [number + 1 for number in numbers]
    later = [await log.append([payload(number)]) for number in range(900, 925)]
    await log.truncate(later[-1])
    await asyncio.sleep(200)
    await log.append([payload(925)])
    assert [bytes(frame.payload) for frame in await read_all(log)] == [payload(924), payload(925)]
    orphans = [
        world.cluster.ledgers[number]
        for number in sorted(world.cluster.ledgers)
        if _orphan(world, number)
    ]
    assert len(orphans) <= 2, "one made ahead, one made for now"
    assert all(ledger.describe().last_entry == EMPTY for ledger in orphans)
    await log.close()


def _orphan(world: BookKeeperWorld, ledger_id: int) -> bool:
    return not world.record.names(ledger_id)


def _count() -> int:
    process = MemoryProcess()

    async def whole() -> None:
        life = _ProcessRun(BookKeeperWorld(), process)
        await life.live()
        assert life.acknowledged == life.asked

    run(whole())
    return len(process.calls)


def _calls_of(part: int) -> list[tuple[int, bool]]:
    calls = _count()
    assert calls > 100
    return [(call, happens) for call in range(part, calls, _PARTS) for happens in (False, True)]


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come about")


def _stopped_run(call: int, happens: bool, *, sleeps: bool) -> Coroutine[Any, Any, None]:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        (process.sleep_in if sleeps else process.die_in)(call, happens=happens)
        life = _ProcessRun(world, process)
        living = asyncio.create_task(life.live())
        await _until(lambda: process.stopped)
        await asyncio.sleep(10)
        log = world.log()
        await log.open()
        if sleeps:
            frames = await read_all(log)
            process.wake()
            await asyncio.wait([living])
            if life.log.epoch > log.epoch:
                # It slept before it had claimed anything: so it came second, and is the owner now.
                with pytest.raises(NotPrimaryError):
                    await log.append([payload(0)])
                log = await world.opened()
            else:
                assert await read_all(log) == frames
                error = living.exception()
                assert error is None or isinstance(
                    error, NotPrimaryError | ContainerStoppedError
                ), repr(error)
            await life.log.close()
        else:
            living.cancel()
        await _settle_down(world, life, log)

    return scenario()


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_owner_that_dies_in_any_call(part: int) -> None:
    for call, happens in _calls_of(part):
        try:
            run(_stopped_run(call, happens, sleeps=False))
        except BaseException as error:
            error.add_note(
                f"it died in call {call}, which {'happened' if happens else 'did not happen'}"
            )
            raise


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_owner_that_sleeps_in_any_call_while_another_takes_over(part: int) -> None:
    for call, happens in _calls_of(part):
        try:
            run(_stopped_run(call, happens, sleeps=True))
        except BaseException as error:
            error.add_note(
                f"it slept in call {call}, which {'happened' if happens else 'did not happen'}"
            )
            raise
