"""At what rate a backlog drains, and at what rate bytes are admitted: the rules alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.drain_pace import (
    HELD_SHARE,
    IDLE_S,
    STEP_S,
    UNPACED_SHARE,
    WINDOW_GAPS,
    WINDOW_S,
    Drain,
    DrainMeter,
    PaceBudget,
    pace,
)
from durablelog.throttler import NO_DELAY, TARGET, DrainingBytes, Load, Throttle, throttle
from tests.support.suites import examples

BOUND = 1 << 20
DRAINS = st.builds(
    Drain,
    bytes_per_s=st.one_of(st.just(0.0), st.floats(1e-3, 1e9)),
    gap_s=st.floats(1e-3, 1e5),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.none() | DRAINS, st.integers(0, 2 * BOUND), st.integers(1, BOUND))
def test_a_fuller_backlog_admits_less_and_only_one_that_is_held_admits_nothing(
    drain: Drain | None, level: int, more: int
) -> None:
    rates = [pace(each, BOUND, drain) for each in (level, level + more)]
    less_full, fuller = (float("inf") if rate is None else rate for rate in rates)
    assert less_full >= fuller
    assert (less_full == 0) == (level >= HELD_SHARE * BOUND)
    if rates[0] is not None and drain is not None:
        probe = (HELD_SHARE * BOUND - level) / 300
        assert less_full <= max(1.2 * drain.bytes_per_s, probe)


@settings(max_examples=examples(100), deadline=None)
@given(DRAINS | st.none())
def test_no_append_waits_while_little_of_the_room_is_used(drain: Drain | None) -> None:
    assert pace(0.2 * BOUND, BOUND, drain) is None


@given(st.none() | DRAINS, st.integers(0, int(UNPACED_SHARE * BOUND) - 1))
def test_below_a_share_there_is_no_pace_whatever_drains(drain: Drain | None, level: int) -> None:
    assert pace(level, BOUND, drain) is None


@given(st.floats(0, TARGET), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), DRAINS)))
def test_nothing_is_throttled_where_a_write_throttle_asks_no_further(
    cache: float, shares: list[tuple[float, Drain]]
) -> None:
    backlogs = [
        DrainingBytes("unflushed", int(share * (UNPACED_SHARE * BOUND - 1)), BOUND, drain)
        for share, drain in shares
    ]
    assert throttle(Load(cache, 0.0, backlogs)) is NO_DELAY


def test_from_that_share_on_a_slow_drain_has_a_pace() -> None:
    slow = Drain(bytes_per_s=BOUND, gap_s=100.0)
    assert pace(UNPACED_SHARE * BOUND, BOUND, slow) is not None


def test_the_zone_is_twice_what_drains_between_two_steps() -> None:
    held_at, drain = HELD_SHARE * BOUND, Drain(1000.0, 64.0)
    begin = held_at - 2 * 64_000
    assert pace(begin - 1, BOUND, drain) is None
    assert pace(begin, BOUND, drain) == pytest.approx(1200)
    assert pace(begin + 64_000, BOUND, drain) == pytest.approx(1000)
    assert pace(begin + 127_000, BOUND, drain) == pytest.approx(1000 * 5 / 128)
    # Of many small steps, and of large ones, it is a share of the bound.
    assert pace(held_at - BOUND / 16 - 1, BOUND, Drain(1000.0, 0.1)) is None
    assert pace(held_at - BOUND / 16, BOUND, Drain(1000.0, 0.1)) == pytest.approx(1200)
    assert pace(held_at / 4 - 1, BOUND, Drain(1e5, 1e5)) is None
    assert pace(held_at / 4, BOUND, Drain(1e5, 1e5)) == pytest.approx(1.2e5)


def test_without_a_drain_the_room_that_is_left_is_used_more_and_more_slowly() -> None:
    held_at = HELD_SHARE * BOUND
    assert pace(held_at - 3000, BOUND, None) == 100
    assert pace(held_at - 3000, BOUND, Drain(0.0, 1.0)) == 10
    assert pace(held_at - 3, BOUND, Drain(1e-9, 1.0)) == pytest.approx(0.01)


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0.05, 30), st.integers(1, 1 << 30), st.integers(0, 20))
def test_steps_of_one_length_give_their_rate_at_any_time(
    gap_s: float, length: int, part: int
) -> None:
    meter = DrainMeter()
    meter.observe(1000.0, 0, works=True)
    steps = max(3, int(3 / gap_s))
    for number in range(1, steps + 1):
        meter.observe(1000.0 + number * gap_s, number * length, works=True)
    drain = meter.drain(1000.0 + (steps + part / 20) * gap_s)
    assert drain is not None
    # A step that has only begun is not all there yet.
    assert drain.bytes_per_s == pytest.approx(length / gap_s, rel=0.35)
    assert drain.gap_s <= max(2 * gap_s, 0.5 + gap_s)


def test_a_drain_that_stops_is_measured_lower_and_lower_and_one_that_resumes_anew() -> None:
    meter, steps = DrainMeter(), 24
    for second in range(steps + 1):
        meter.observe(float(second), 100 * second, works=True)
    rates = []
    for second in range(steps, steps + 200):
        meter.observe(float(second), 100 * steps, works=True)
        drain = meter.drain(float(second))
        assert drain is not None
        rates.append(drain.bytes_per_s)
    assert rates[0] == pytest.approx(100, rel=0.1)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))
    assert rates[-1] < 15
    # It may as well have become slow: the next step says which.
    meter.observe(1000.0, 100 * steps + 300, works=True)
    assert meter.drain(1000.0) == Drain(300 / (1000 - steps), 1000.0 - steps)
    meter.observe(1001.0, 100 * steps + 600, works=True)
    assert meter.drain(1001.0) == Drain(300.0, 1.0)


def test_pauses_that_are_the_rule_count() -> None:
    """Uploads that end together, with long pauses between."""
    meter, drained = DrainMeter(), 0
    for burst in range(6):
        for number in range(4):
            now = 25.0 * burst + 0.7 * number
            meter.observe(now, drained, works=True)
            drained += 250
    drain = meter.drain(26 + 25.0 * 5)
    assert drain is not None
    assert drain.bytes_per_s == pytest.approx(40, rel=0.4)
    assert 22.9 <= drain.gap_s < 24


def test_time_without_work_does_not_count() -> None:
    meter = DrainMeter()
    meter.observe(0.0, 0, works=False)
    meter.observe(50.0, 500, works=False)
    assert meter.drain(50.0) is None
    meter.observe(100.0, 500, works=True)
    meter.observe(101.0, 600, works=True)
    # Between the end of one upload and the begin of the next none is under way.
    meter.observe(102.0, 700, works=False)
    meter.observe(102.0 + IDLE_S, 700, works=True)
    meter.observe(105.0, 1000, works=True)
    assert meter.drain(105.0) == Drain(100.0, 3.0)
    meter.observe(106.0, 1000, works=False)
    meter.observe(107.0 + IDLE_S, 1000, works=True)
    assert meter.drain(107.0 + IDLE_S) is None


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 40), st.integers(0, 1000)), max_size=300))
def test_what_is_remembered_is_bounded_and_adds_up(steps: list[tuple[float, int]]) -> None:
    meter, now, drained = DrainMeter(), 0.0, 0
    for gap_s, length in steps:
        now, drained = now + gap_s, drained + length
        meter.observe(now, drained, works=True)
        kept = meter._steps
        assert len(kept) <= WINDOW_GAPS * max(WINDOW_S, meter._gap_s) / STEP_S + 2
        assert meter._total == sum(each for _, each in kept)
        times = [meter._began, *(time for time, _ in kept)]
        assert times == sorted(times)
        if kept and length:
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert meter._gap_s == pytest.approx(max(gaps))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.floats(1, 1e6), st.integers(1, 100_000)),
        min_size=1,
        max_size=60,
    )
)
def test_no_more_is_admitted_than_the_rates_add_up_to(
    rounds: list[tuple[float, float, int]],
) -> None:
    budget, now, rate_before, allowed = PaceBudget(), 0.0, 0.0, 0.0
    for number, (gap_s, rate, length) in enumerate(rounds):
        now += gap_s
        allowed += gap_s * rate_before + (0.1 * rate if not number else 0)
        rate_before = rate
        if budget.at(now, rate) > 0:
            budget.take(length)
            allowed -= length
            assert allowed > -length - 1e-3
        else:
            assert budget.wait_s() >= 0.02
            # After the wait something is allowed, at the same rate.
            assert budget.at(now + budget.wait_s() * 1.001 + 1e-6, rate) > 0
            now += budget.wait_s() * 1.001 + 1e-6
            allowed += (budget.wait_s() * 1.001 + 1e-6) * rate


def test_what_goes_past_the_pace_keeps_no_others_for_more_than_a_second() -> None:
    budget = PaceBudget()
    assert budget.at(0.0, 1000.0) == 100
    budget.take_exempt(300)
    assert budget.at(0.1, 1000.0) == -100
    budget.take_exempt(1_000_000)
    assert budget.wait_s() == 1
    budget.take(5000)
    budget.take_exempt(1_000_000)
    assert budget.wait_s() == 6, "what was admitted at the pace counts in full"


def backlog(source: str, level: int, drain: Drain | None = None) -> DrainingBytes:
    return DrainingBytes(source, level, 1000, drain)


def test_the_largest_source_of_throttling_wins() -> None:
    assert throttle(Load(0.5, 0.0, [backlog("unflushed", 700)])) == NO_DELAY
    slow, fast = Drain(10.0, 1.0), Drain(100.0, 1.0)
    waiting = throttle(
        Load(0.8, 0.0, [backlog("unflushed", 840, slow), backlog("archive", 840, fast)])
    )
    assert (waiting.source, waiting.delay_s, waiting.full) == ("unflushed", 0.0, False)
    assert waiting.bytes_per_s == pytest.approx(10 * (0.8 + 0.4 * 35 / 62.5))
    full = throttle(Load(0.0, 0.0, [backlog("unflushed", 840, slow), backlog("archive", 900)]))
    assert full == Throttle(delay_s=1.0, source="archive", full=True)
    for load, source in ((Load(2.0), "cache"), (Load(0.9, 1.0), "log")):
        assert throttle(load) == Throttle(delay_s=1.0, source=source, full=True)
    half = throttle(Load(0.8125))
    assert half == Throttle(delay_s=0.5, source="cache", full=False)
