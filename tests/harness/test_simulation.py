"""Simulated runs: the same seed gives the same trace, thousands of crashes lose nothing, every
fault point is met.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Iterator
from itertools import chain, islice

import pytest

from recovery.harness.runs.directed import directed_plans
from recovery.harness.runs.plan import CLUSTER, Plan, draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.runs.simulate import SimulationSummary, drawn_plans, run_all, run_plans
from recovery.harness.simulation.fault_points import TABLE, FaultPoints
from recovery.harness.simulation.virtual_loop import VirtualLoop
from recovery.harness.workloads.catalogue import WORKLOADS
from segmentstore.service import SegmentStore
from tests.harness.trace_program import of_another_process, shown_runs, traced_plan
from tests.support.suites import size, sized, slow

SEED = os.environ.get("HARNESS_SEED", "main")
FEW_RUNS = 6
"""Some ten crashes each."""
CRASHES = int(os.environ.get("HARNESS_CRASHES", "5200"))
"""More of them, and others: HARNESS_CRASHES=200000 HARNESS_SEED=anything."""

CLUSTERS = 20
"""Runs of hosts among them: more are in test_cluster_runs.py."""
TRACES = size("HARNESS_TRACES", 2, 20)
"""Runs that are made twice, of five workloads in turn."""


@sized(25)
def test_equal_seeds_give_equal_traces_byte_for_byte() -> None:
    """Here and in a process whose strings hash differently, and once more behind other runs."""
    shown = list(shown_runs(TRACES))
    assert "\n".join(shown).splitlines() == of_another_process("runs", TRACES)
    assert len(shown) > 600 * TRACES
    last = TRACES - 1
    alone = Scenario(traced_plan(last)).run()
    assert any(line.startswith(f"run {last}: {alone.digest} ") for line in shown)


@slow(2)
def test_other_seeds_give_other_traces() -> None:
    assert (
        len({Scenario(draw_plan(f"other/{number}", "default")).run().digest for number in range(3)})
        == 3
    )


def test_a_plan_survives_its_way_through_a_file() -> None:
    plan = draw_plan("file", "everything")
    again = Plan.from_json(plan.to_json())
    assert again == plan
    with pytest.raises(ValueError, match="no such fault point"):
        Plan.from_json(dataclasses.replace(plan, rates={"disk.burns": 1.0}).to_json())


def interleaved(*sources: Iterator[Plan]) -> Iterator[Plan]:
    return chain.from_iterable(zip(*sources, strict=False))


def all_drawn() -> Iterator[Plan]:
    """From all workloads but the ones that only load."""
    return interleaved(
        *(drawn_plans(f"{SEED}/{name}", name) for name in WORKLOADS if name != "appends")
    )


def test_dozens_of_crashes_lose_nothing() -> None:
    summary = run_plans(list(islice(all_drawn(), FEW_RUNS)))
    assert told(summary) == []
    assert summary.crashes >= 5 * FEW_RUNS


@slow(230)
@pytest.mark.timeout(900)
def test_thousands_of_crashes_lose_nothing_and_meet_every_fault() -> None:
    """On both cores. First what is directed, then what chance draws."""
    clusters = islice(drawn_plans(f"{SEED}/cluster", CLUSTER), CLUSTERS)
    plans = chain(directed_plans(SEED, 2), clusters, all_drawn())
    summary = run_all(plans, more=lambda so_far: so_far.crashes < CRASHES, jobs=2)
    print(
        f"seed {SEED}: {summary.runs} runs, {summary.crashes} crash-recoveries, "
        f"{summary.virtual_s / 3600:.1f} hours"
    )
    assert told(summary) == []
    assert summary.crashes >= CRASHES
    assert [point for point in TABLE if not summary.points[point]] == []


def told(summary: SimulationSummary) -> list[str]:
    return [
        f"segmentstore crashtest --workload {failure.workload} --replay {failure.seed}: "
        f"{failure.violations[0]}"
        for failure in summary.failures
    ]


@slow(8)
def test_a_run_that_is_over_leaves_nothing_behind() -> None:
    def left() -> int:
        gc.collect()
        return sum(isinstance(each, (SegmentStore, VirtualLoop)) for each in gc.get_objects())

    before = left()
    for number in range(3):
        Scenario(draw_plan(f"left/{number}", "default")).run()
    # A long run would slow down with each: what is left is checked by every later collection.
    assert left() <= before


def test_there_are_at_least_sixty_fault_points_and_unknown_ones_are_refused() -> None:
    assert len(TABLE) >= 60
    assert all(text and text == text.strip() for text in TABLE.values())
    with pytest.raises(AssertionError):
        FaultPoints().hit("disk.burns")
