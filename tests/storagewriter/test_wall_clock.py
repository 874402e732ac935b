"""The wall clock that ages of messages and uploads are counted by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.runtime import BootTime, Runtime
from storagewriter.wall_clock import REPORTED_FOR_S, TRUSTED_AFTER_S, SteadyWallClock
from tests.support.loop_clock import LoopBoot, LoopClock

YEAR_MS = 365 * 24 * 3600 * 1000


def clocked(body: Callable[[SteadyWallClock, LoopClock], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        wall = LoopClock()
        steady = SteadyWallClock(Runtime(clock=wall, boot=LoopBoot()))
        assert steady.time_ms() == wall.time_ms()
        await body(steady, wall)

    run_virtual(main())


def test_it_goes_as_the_clock_does_and_takes_small_corrections_over() -> None:
    async def body(steady: SteadyWallClock, wall: LoopClock) -> None:
        for step_ms in (0, 500, -700, 59_000, -59_000):
            wall.offset_ms += step_ms
            await asyncio.sleep(1000)
            assert steady.time_ms() == wall.time_ms()
        assert (steady.jumps, steady.describe()) == (0, None)

    clocked(body)


def test_a_jump_ahead_is_believed_once_it_has_lasted() -> None:
    async def body(steady: SteadyWallClock, wall: LoopClock) -> None:
        wall.offset_ms += 10 * YEAR_MS
        for _ in range(24):
            assert wall.time_ms() - steady.time_ms() == 10 * YEAR_MS
            await asyncio.sleep(TRUSTED_AFTER_S / 24)
        assert steady.describe() is None or "ahead" in str(steady.describe())
        assert steady.time_ms() == wall.time_ms()
        assert (steady.jumps, steady.describe()) == (1, None)

    clocked(body)


def test_a_jump_ahead_that_is_taken_back_was_never_there() -> None:
    async def body(steady: SteadyWallClock, wall: LoopClock) -> None:
        wall.offset_ms += 10 * YEAR_MS
        assert "jumped ahead by 3650 days" in str(steady.describe())
        await asyncio.sleep(TRUSTED_AFTER_S / 2)
        steady.time_ms()
        wall.offset_ms -= 10 * YEAR_MS
        assert steady.time_ms() == wall.time_ms()
        assert steady.jumps == 2
        await asyncio.sleep(REPORTED_FOR_S)
        assert steady.describe() is None

    clocked(body)


def test_a_jump_back_is_believed_at_once() -> None:
    async def body(steady: SteadyWallClock, wall: LoopClock) -> None:
        wall.offset_ms -= 10 * YEAR_MS
        assert steady.time_ms() == wall.time_ms()
        assert "jumped back" in str(steady.describe())
        await asyncio.sleep(REPORTED_FOR_S)
        assert (steady.jumps, steady.describe()) == (1, None)

    clocked(body)


def test_a_machine_that_slept_has_not_jumped() -> None:
    async def main() -> None:
        slept_ms = 0
        wall = LoopClock()
        steady = SteadyWallClock(Runtime(clock=wall, boot=lambda: BootTime(bytes(16), slept_ms)))
        steady.time_ms()
        slept_ms = 8 * 3600 * 1000
        wall.offset_ms += slept_ms
        assert steady.time_ms() == wall.time_ms()
        assert steady.jumps == 0

    run_virtual(main())


def test_a_clock_beyond_all_years_is_shown_as_a_number() -> None:
    async def body(steady: SteadyWallClock, wall: LoopClock) -> None:
        wall.offset_ms = 10**17
        assert "ms since 1970" in str(steady.describe())

    clocked(body)
