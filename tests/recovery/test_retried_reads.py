"""Reads that are repeated: an answer that does not come once ends nothing, and gives nothing
twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObjectStorage, Method
from tier2.object_storage import StorageUnavailableError
from tier2.retried_reads import RETRY_DELAYS_S, TRIED_S, RetriedReads, tried_again

NAMES = [f"a/{number:02}" for number in range(10)]
TRIES = len(RETRY_DELAYS_S) + 1


def over(case: Callable[[RetriedReads, MemoryObjectStorage, LoopClock], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = LoopClock()
        runtime = Runtime(clock=clock, random=random.Random(1), executor=inline_executor)
        storage = MemoryObjectStorage(runtime, page_objects=3)
        for number, name in enumerate(NAMES):
            await storage.put(name, [name.encode()], bytes(15) + bytes([number]))
        await case(RetriedReads(storage), storage, clock)

    run_virtual(whole())


def test_each_read_is_repeated_a_few_times() -> None:
    async def case(reads: RetriedReads, storage: MemoryObjectStorage, _: LoopClock) -> None:
        async def checked(method: Method, call: Callable[[], Awaitable[object]]) -> None:
            expected = await call()
            storage.fail(method, TRIES - 1)
            assert await call() == expected
            storage.fail(method, TRIES)
            with pytest.raises(StorageUnavailableError):
                await call()

        await checked("get_range", lambda: reads.get_range(NAMES[3], 2, 2))
        await checked("head", lambda: reads.get_whole(NAMES[3], 9))
        await checked("head", lambda: reads.head(NAMES[3]))

    over(case)


def test_a_listing_goes_on_behind_the_last_page_that_came() -> None:
    async def case(reads: RetriedReads, storage: MemoryObjectStorage, _: LoopClock) -> None:
        listed: list[str] = []
        storage.fail("list", TRIES - 1)
        async for page in reads.list("a/", NAMES[0]):
            listed += [each.name for each in page]
            storage.fail("list", TRIES - 1)
        assert listed == NAMES[1:]
        storage.heal()
        storage.fail("list", TRIES)
        with pytest.raises(StorageUnavailableError):
            [page async for page in reads.list()]

    over(case)


def test_what_has_tried_for_long_by_itself_is_not_asked_again() -> None:
    async def case(reads: RetriedReads, _: MemoryObjectStorage, clock: LoopClock) -> None:
        begun = clock.time_ms()
        calls = 0

        async def slow() -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(TRIED_S - 1)
            raise StorageUnavailableError("x", "no answer")

        with pytest.raises(StorageUnavailableError):
            await tried_again(slow)
        assert calls == 2
        assert clock.time_ms() - begun < 2000 * TRIED_S

    over(case)


def test_a_burst_of_ten_seconds_is_waited_for() -> None:
    async def case(_: RetriedReads, __: MemoryObjectStorage, clock: LoopClock) -> None:
        end = clock.time_ms() + 10_000

        async def call() -> str:
            if clock.time_ms() < end:
                raise StorageUnavailableError("x", "SlowDown")
            return "answered"

        assert await tried_again(call) == "answered"

    over(case)
