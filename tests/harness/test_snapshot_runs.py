"""Simulated runs of stores whose checkpoints are by reference to metadata snapshots."""

from __future__ import annotations

import dataclasses

import pytest

from recovery.harness.runs.directed import DIRECTIONS
from recovery.harness.runs.plan import CATALOG, draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.runs.simulate import run_plans
from recovery.harness.workloads.catalogue import WORKLOADS
from tests.support.suites import size, sized

RUNS = size("HARNESS_SNAPSHOT_RUNS", 4, 100)
DAMAGED_RUNS = size("HARNESS_CATALOG_DAMAGE_RUNS", 2, 40)
"""Each meets every kind of damage several times, and takes longer."""
WORKLOAD_NAMES = sorted(name for name in WORKLOADS if name != "appends")

FOUND = [
    ("b/25", "exactly-once"),
    ("b/26", "lifecycle"),
    ("b/28", "readers"),
    ("b/132", "conditional"),
    ("b/1", "attributes"),
    ("d2/224", "tier2"),
    ("e2/968", "lifecycle"),
]
"""Seeds that once met one of these: a checkpoint that waited for ever when its container had
stopped. Two owners that filled one directory. An error of the disk, taken for damage. A close that
waited in a task which a program cancelled with its own. A `checkpoint` that an owner answered
without a write, and that was fenced.
"""


def violations(seed: str, workload: str) -> list[str]:
    plan = draw_plan(seed, workload)
    settings = {**plan.settings, "inline_checkpoint_bytes_max": 0}
    result = Scenario(dataclasses.replace(plan, settings=settings)).run()
    return [str(each) for each in result.violations]


@pytest.mark.parametrize(("seed", "workload"), FOUND)
def test_what_was_found_does_not_come_back(seed: str, workload: str) -> None:
    assert violations(seed, workload) == []


@sized(60)
def test_nothing_is_lost_where_every_checkpoint_is_by_reference() -> None:
    plans = [
        draw_plan(f"snapshots/{number}", WORKLOAD_NAMES[number % len(WORKLOAD_NAMES)])
        for number in range(RUNS)
    ]
    summary = run_plans(
        [
            dataclasses.replace(plan, settings={**plan.settings, "inline_checkpoint_bytes_max": 0})
            for plan in plans
        ]
    )
    assert [failure.violations for failure in summary.failures] == []
    assert summary.crashes > 3 * RUNS


@sized(60)
def test_damage_of_the_catalogs_on_local_disk_costs_no_call() -> None:
    summary = run_plans(
        [
            DIRECTIONS["catalogs"](draw_plan(f"catalogs/{number}", "everything"))
            for number in range(DAMAGED_RUNS)
        ]
    )
    assert [failure.violations for failure in summary.failures] == []
    assert all(summary.points[point] > 0 for point in CATALOG)
