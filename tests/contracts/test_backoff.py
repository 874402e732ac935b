"""Back-off: spans that double between their bounds, delays from the upper half of each."""

from __future__ import annotations

import random

import pytest

from segmentstore.contracts.backoff import Backoff, backoff_s

SPANS = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_the_span_doubles_up_to_the_longest() -> None:
    for seed in range(50):
        backoff = Backoff(random.Random(seed), min_s=0.1, max_s=1.0)
        for failures, span in enumerate(SPANS, start=1):
            assert span / 2 <= backoff.next_s() <= span
            assert backoff.failures == failures


def test_delays_are_spread_over_the_upper_half() -> None:
    rng = random.Random(1)
    delays = [backoff_s(rng, 3, 0.1, 1.0) for _ in range(1000)]
    assert min(delays) == pytest.approx(0.2, abs=0.01)
    assert max(delays) == pytest.approx(0.4, abs=0.01)


def test_a_success_begins_a_new_row() -> None:
    backoff = Backoff(random.Random(1), min_s=0.1, max_s=1.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_s() <= 0.1


def test_a_row_of_any_length_keeps_to_the_longest() -> None:
    assert 0.5 <= backoff_s(random.Random(1), 10**6, 0.1, 1.0) <= 1.0
    assert backoff_s(random.Random(1), 7, 0.0, 1.0) == 0.0


def test_two_callers_do_not_come_back_together() -> None:
    one, other = (Backoff(random.Random(seed), min_s=1.0, max_s=8.0) for seed in (1, 2))
    assert all(one.next_s() != other.next_s() for _ in range(5))
