"""How a throttled storage slows down and recovers, and how much it lets in at once."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.weighted_gate import WeightedGate
from tier2.s3.adaptive_rate import RATE_MIN, STEPS, AdaptiveRate, RateGate


def sent_at(rate: AdaptiveRate, per_second: int, seconds: int, begin: float = 0.0) -> float:
    for number in range(per_second * seconds):
        rate.sent(begin + number / per_second)
    return begin + seconds


def test_without_throttling_there_is_no_limit() -> None:
    rate = AdaptiveRate()
    now = sent_at(rate, 500, 4)
    assert rate.limit(now) is None
    assert rate.delay(now, 0.9) == 0.0
    assert rate.measured(now) == pytest.approx(500, rel=0.01)


def test_a_throttling_halves_what_was_measured_and_those_in_flight_count_once() -> None:
    rate = AdaptiveRate()
    now = sent_at(rate, 100, 4)
    for number in range(50):
        rate.throttled(now + number / 100)
    assert rate.limit(now) == pytest.approx(50, rel=0.02)
    assert rate.throttled_count == 50
    later = now + 1.5
    limit = rate.limit(later)
    assert limit is not None
    sent_at(rate, 100, 1, now + 0.5)
    rate.throttled(later)
    halved = rate.limit(later)
    assert halved is not None
    assert halved <= limit / 2


def test_the_limit_grows_by_the_second_until_it_is_off() -> None:
    rate = AdaptiveRate()
    now = sent_at(rate, 90, 4)
    rate.throttled(now)
    limits = [rate.limit(now + second) for second in range(STEPS)]
    known = [limit for limit in limits if limit is not None]
    assert known[:2] == pytest.approx([45, 51], rel=0.05)
    steps = [after - before for before, after in pairwise(known)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert rate.limit(now + STEPS) is None
    assert rate.limit(now) is None


def test_a_rate_of_nothing_is_never_reached() -> None:
    rate = AdaptiveRate()
    for second in range(0, 100, 2):
        rate.throttled(float(second))
        limit = rate.limit(float(second))
        assert limit is not None
        assert limit >= RATE_MIN
    assert rate.delay(100.0, 0.99) <= 1.5 / RATE_MIN


def test_requests_wait_for_the_granted_rate_one_behind_another() -> None:
    async def case() -> None:
        loop = asyncio.get_running_loop()
        gate = RateGate(random.Random(1))
        order: list[int] = []
        times: list[float] = []

        async def one(number: int) -> None:
            await gate.enter()
            order.append(number)
            times.append(loop.time())

        await asyncio.gather(*(one(number) for number in range(20)))
        assert times[-1] == times[0]
        gate.throttled()
        begun = loop.time()
        await asyncio.gather(*(one(number) for number in range(20, 40)))
        assert order == list(range(40))
        # 20 in a window of 2 s were 10 a second: half of that, growing a little.
        assert 2.0 < loop.time() - begun < 4.5
        assert len(set(times[20:])) == 20

    run_virtual(case())


def test_a_provider_of_a_fixed_rate_is_found_and_used() -> None:
    """A server grants 20 requests a second and refuses the rest: most of what it grants is used,
    little is refused.
    """

    async def case() -> None:
        loop = asyncio.get_running_loop()
        gate = RateGate(random.Random(2))
        granted = refused = 0
        tokens = [20.0, loop.time()]

        async def client() -> None:
            nonlocal granted, refused
            while loop.time() < 120:
                await gate.enter()
                tokens[0] = min(20.0, tokens[0] + 20 * (loop.time() - tokens[1]))
                tokens[1] = loop.time()
                await asyncio.sleep(0.05)
                if tokens[0] >= 1:
                    tokens[0] -= 1
                    granted += 1
                else:
                    refused += 1
                    gate.throttled()

        await asyncio.gather(*(client() for _ in range(16)))
        assert granted > 120 * 20 * 0.6
        assert refused < granted * 0.25

    run_virtual(case())


def test_a_gate_lets_in_what_fits_first_come_first_served() -> None:
    async def case() -> None:
        gate = WeightedGate(10)
        order: list[int] = []

        async def one(number: int, weight: int) -> None:
            await gate.enter(weight)
            order.append(number)
            assert gate.inside <= max(10, weight)
            await asyncio.sleep(1)
            gate.leave(weight)

        # The fourth is heavier than the gate and goes alone; the fifth would fit beside the third,
        # and waits.
        await asyncio.gather(*(one(n, weight) for n, weight in enumerate([4, 4, 4, 50, 1, 0])))
        assert order == [0, 1, 5, 2, 3, 4]
        assert gate.inside == 0

    run_virtual(case())


def test_whoever_is_cancelled_at_the_gate_leaves_no_trace() -> None:
    async def case() -> None:
        gate = WeightedGate(2)
        await gate.enter(2)
        waiting = [asyncio.create_task(gate.enter(weight)) for weight in (2, 1, 1)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        gate.leave(2)
        # Let in, and cancelled before it could know.
        waiting[0].cancel()
        await asyncio.wait(waiting)
        assert [task.cancelled() for task in waiting] == [True, True, False]
        assert gate.inside == 1
        gate.leave(1)
        assert "0 of 2, 0 waiting" in repr(gate)

    run_virtual(case())
