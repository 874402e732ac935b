"""Simulated runs of clusters: hosts die, hang, leave and are cut off, and no acknowledged append is
lost or doubled.

More of it: HARNESS_CLUSTER_RUNS, or `segmentstore crashtest --workload cluster`.
"""

from __future__ import annotations

from itertools import islice

import pytest

from recovery.harness.runs.plan import CLUSTER
from recovery.harness.runs.simulate import drawn_plans, run_plans
from tests.support.suites import size, sized

RUNS = size("HARNESS_CLUSTER_RUNS", 2, 40)


@sized(150)
@pytest.mark.timeout(300 + 30 * RUNS)
def test_whatever_happens_to_hosts_nothing_is_lost_and_everything_is_served_again() -> None:
    summary = run_plans(list(islice(drawn_plans("owners", CLUSTER), RUNS)))
    assert [failure.violations for failure in summary.failures] == []
    assert summary.cluster["take-overs"] > RUNS
    assert summary.cluster["moves"] > 0
    assert summary.appends > 100 * RUNS
