"""Simulated hosts with very many containers, which are a log and nothing else. One owner at a time
acknowledges, and nothing is lost by take-overs.

More of it: HARNESS_TAKE_OVER_RUNS, or `segmentstore crashtest --workload take-overs`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from recovery.harness.checkers.logged_appends import LoggedAppend, check_appends
from recovery.harness.runs.plan import TAKE_OVERS, Cycle
from recovery.harness.runs.simulate import drawn_plans, run_plans
from tests.support.suites import size, slow

RUNS = size("HARNESS_TAKE_OVER_RUNS", 1, 4)


@slow(120)
@pytest.mark.timeout(300 + 120 * RUNS)
def test_very_many_take_overs_lose_nothing() -> None:
    summary = run_plans(list(islice(drawn_plans("take-overs", TAKE_OVERS), RUNS)))
    assert [failure.violations for failure in summary.failures] == []
    assert summary.cluster["take-overs"] > 100 * RUNS


def test_some_take_overs_lose_nothing() -> None:
    plan = next(drawn_plans("few take-overs", TAKE_OVERS))
    cycles = tuple(
        Cycle(operations=15, ending="kill", fault=fault)
        for fault in ("host.edits", "host.killed", "host.paused.long", "host.killed.all")
    )
    summary = run_plans(
        [replace(plan, settings={**plan.settings, "containers": 32}, rates={}, cycles=cycles)]
    )
    assert [failure.violations for failure in summary.failures] == []
    assert summary.cluster["take-overs"] >= 32
    assert summary.appends > 100


A, B = LoggedAppend(0, b"a", 1, 2), LoggedAppend(0, b"b", 3, 4)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([b"a", b"b"], ""),
        ([b"a", b"c", b"b"], ""),
        ([b"a"], "1 acknowledged appends are not in its log"),
        ([b"a", b"b", b"c", b"c"], "twice"),
        ([b"b", b"a"], "behind an append that began"),
    ],
)
def test_what_is_lost_doubled_or_out_of_order_is_found(held: list[bytes], words: str) -> None:
    found = [str(each) for each in check_appends([A, B], {0: held})]
    assert len(found) == bool(words)
    assert words in "".join(found)
