"""A right store is never accused, whatever its clients do at once, however it dies, whatever owner
takes over.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.harness.checkers.all_checks import check_history
from tests.harness.checkers.schedules import random_history
from tests.support.suites import examples


@settings(max_examples=examples(120), deadline=None)
@given(rng=st.randoms(use_true_random=False), steps=st.integers(5, 120))
def test_random_schedules_on_a_right_store_are_no_violation(rng: random.Random, steps: int) -> None:
    assert [str(violation) for violation in check_history(random_history(rng, steps))] == []


def test_long_schedules_on_a_right_store_are_no_violation() -> None:
    for seed in range(60):
        assert [
            str(violation) for violation in check_history(random_history(random.Random(seed), 500))
        ] == [], seed


def test_the_same_history_is_checked_the_same() -> None:
    history = random_history(random.Random(3), 300)
    for call in history.calls[::7]:
        call.result = None if call.result is None else call.result + 1
    assert (
        [str(found) for found in check_history(history)]
        == [str(found) for found in check_history(history)]
        != []
    )
