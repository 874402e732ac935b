"""The workload of the faults on a real cluster, on the model of one: the same clients, the same
judgement.
"""

from __future__ import annotations

import dataclasses

from recovery.harness.history import CallKind, CallOutcome
from recovery.harness.runs.directed import DIRECTIONS
from recovery.harness.runs.plan import Cycle, Ending, Plan, draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.workloads.catalogue import (
    BY_NAME,
    CLUSTER,
    COMPACTION,
    FAULTS,
    TAKE_OVERS,
    WORKLOADS,
)


def test_what_runs_on_the_real_cluster_runs_on_the_model_by_its_name_in_a_plan() -> None:
    assert BY_NAME["faults"] is FAULTS
    drawn = DIRECTIONS["bookkeeper"](draw_plan("faults/1", "faults"))
    endings: tuple[Ending, ...] = ("kill", "power", "close")
    process_runs = tuple(Cycle(operations=120, ending=ending) for ending in endings)
    plan = Plan.from_json(dataclasses.replace(drawn, cycles=process_runs).to_json())
    result = Scenario(plan).run()
    assert [str(violation) for violation in result.violations] == []
    done = {call.kind for call in result.history.calls if call.outcome is CallOutcome.OK}
    assert {
        CallKind.APPEND,
        CallKind.EVENT,
        CallKind.TRUNCATE,
        CallKind.FLUSH,
        CallKind.CHECKPOINT,
        CallKind.READ,
    } <= done
    assert any(point.startswith("bookkeeper.bookie.") for point in result.points)


def test_it_takes_no_share_of_the_runs_that_the_others_divide_among_them() -> None:
    assert FAULTS.name not in WORKLOADS
    others = (FAULTS, COMPACTION, CLUSTER, TAKE_OVERS)
    assert dict(BY_NAME) == {**WORKLOADS, **{each.name: each for each in others}}
