"""The rate limiter, with exact numbers and on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.rate_limiter import CHARGED_S_MAX, RateLimiter


def test_the_rate_is_kept_over_time_and_every_request_begins() -> None:
    limiter = RateLimiter(100)
    now, begun = 5.0, []
    for count in (50, 1000, 1, 100, 49):
        now += limiter.reserve(now, count)
        begun.append(now)
    assert begun == pytest.approx([5.0, 5.5, 15.5, 15.51, 16.51])
    assert limiter.wait_s(16.51) == pytest.approx(0.49)
    assert limiter.wait_s(20.0) == 0.0


def test_what_was_not_used_is_not_saved_up() -> None:
    limiter = RateLimiter(100)
    assert limiter.reserve(1000.0, 100) == 0.0
    assert limiter.reserve(1000.0, 100) == 1.0


def test_what_is_charged_is_owed_for_a_bounded_time() -> None:
    limiter = RateLimiter(100)
    limiter.charge(1000.0, 50)
    assert limiter.reserve(1000.0, 300) == 0.5
    limiter.charge(1000.0, 10**9)
    limiter.charge(1000.0, 10**9)
    assert limiter.reserve(1000.0, 1) == 3.5 + CHARGED_S_MAX / 2


def test_requests_that_do_not_wait_leave_half_of_the_rate_to_the_others() -> None:
    limiter = RateLimiter(100)
    now, taken = 0.0, 0
    while now < 1000.0:
        limiter.charge(now, 10**9)
        now += max(0.1, limiter.reserve(now, 20))
        taken += 20
    assert taken == pytest.approx(100 * 1000 / 2, rel=0.01)


def test_no_rate_is_no_bound() -> None:
    limiter = RateLimiter(0)
    limiter.charge(0.0, 10**12)
    assert [limiter.reserve(0.0, 10**12) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limiter.wait_s(0.0) == 0.0


def test_whoever_acquires_waits_until_it_is_its_turn() -> None:
    async def main() -> list[float]:
        loop, limiter, moments = asyncio.get_running_loop(), RateLimiter(100), []

        async def ask(count: int) -> None:
            await limiter.acquire(count)
            moments.append(loop.time())

        begun = loop.time()
        await asyncio.gather(*(ask(count) for count in (200, 50, 1)))
        return [moment - begun for moment in moments]

    assert run_virtual(main()) == pytest.approx([0.0, 2.0, 2.5])
