"""Shrinking finds a small plan that still breaks the same rule, and never one that breaks
another.
"""

from __future__ import annotations

import dataclasses

from recovery.harness.history import History, Violation
from recovery.harness.runs.plan import Plan, draw_plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.runs.shrink import shrink


def evaluated(plan: Plan) -> RunResult:
    """Breaks `order` if one of its process runs ends by power with the fault on, and `content`
    whenever the fault is off.
    """
    guilty = "disk.stall" in plan.rates
    broken = (
        [Violation("order", "x")]
        if guilty and any(cycle.ending == "power" for cycle in plan.cycles)
        else []
    )
    broken += [] if guilty else [Violation("content", "y")]
    return RunResult(plan, broken, 0, 0, 0, 0, 0.0, 0.0, 0, {}, "", History())


def large_plan() -> Plan:
    plan = draw_plan("shrink", "default", cycles=12)
    cycles = (
        *plan.cycles[:5],
        dataclasses.replace(plan.cycles[5], ending="power", operations=120),
        *plan.cycles[6:],
    )
    return dataclasses.replace(
        plan,
        cycles=cycles,
        rates={"disk.stall": 0.1, "disk.read.eio": 0.1, "object.slow": 1.0},
        kernel_syncs=True,
    )


def test_what_is_not_needed_goes() -> None:
    small = shrink(large_plan(), tries=400, run=evaluated)
    assert list(small.rates) == ["disk.stall"]
    assert not small.kernel_syncs
    assert [cycle.ending for cycle in small.cycles] == ["power"]
    assert small.cycles[0].operations <= 5
    assert [violation.checker for violation in evaluated(small).violations] == ["order"]


def test_a_bound_on_tries_is_kept() -> None:
    runs: list[Plan] = []

    def counted(plan: Plan) -> RunResult:
        runs.append(plan)
        return evaluated(plan)

    shrink(large_plan(), tries=7, run=counted)
    assert len(runs) == 7


def test_a_plan_that_breaks_nothing_stays_as_it_is() -> None:
    plan = large_plan()
    assert (
        shrink(plan, run=lambda each: dataclasses.replace(evaluated(each), violations=[])) is plan
    )
