"""Shrink: the smallest plan that still breaks the same rule.

Greedy: take something out, run again, keep what still fails; from the largest pieces (whole process
runs) to the smallest. The seed stays, so a smaller plan may meet other choices; that is why each
try is run and not guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from recovery.harness.runs.dispatch import run_plan
from recovery.harness.runs.plan import Cycle, Plan
from recovery.harness.runs.run_result import RunResult

TRIES_MAX: Final = 120


def shrink(
    plan: Plan, *, tries: int = TRIES_MAX, run: Callable[[Plan], RunResult] | None = None
) -> Plan:
    """A smaller plan that fails by the same checker, or the plan itself.

    Runs at most `tries` plans.
    """
    run = run if run is not None else run_plan
    wanted = _checkers(run(plan))
    if not wanted:
        return plan
    left = tries - 1
    going_on = True
    while going_on:
        going_on = False
        for smaller in _smaller(plan):
            if left <= 0:
                return plan
            left -= 1
            if _checkers(run(smaller)) & wanted:
                plan = smaller
                going_on = True
                break
    return plan


def _checkers(result: RunResult) -> set[str]:
    return {violation.checker for violation in result.violations}


def _smaller(plan: Plan) -> Iterator[Plan]:
    count = len(plan.cycles)
    size = count // 2
    while size:
        for first in range(0, count, size):
            rest = plan.cycles[:first] + plan.cycles[first + size :]
            if rest:
                yield dataclasses.replace(plan, cycles=rest)
        size //= 2
    if plan.rates:
        yield dataclasses.replace(plan, rates={})
    for point in plan.rates:
        yield dataclasses.replace(
            plan, rates={name: rate for name, rate in plan.rates.items() if name != point}
        )
    if plan.kernel_syncs:
        yield dataclasses.replace(plan, kernel_syncs=False)
    for place, cycle in enumerate(plan.cycles):
        for simpler in _simpler(cycle):
            yield dataclasses.replace(
                plan, cycles=(*plan.cycles[:place], simpler, *plan.cycles[place + 1 :])
            )


def _simpler(cycle: Cycle) -> Iterator[Cycle]:
    if cycle.operations > 5:
        yield dataclasses.replace(cycle, operations=cycle.operations // 2)
    replace = dataclasses.replace
    simpler = (
        replace(cycle, again=False),
        replace(cycle, checked=False),
        replace(cycle, clock=""),
        replace(cycle, rot=""),
        replace(cycle, catalog=""),
        replace(cycle, under_load=False),
        replace(cycle, new_settings=False),
        replace(cycle, rival_dies_at=None),
        replace(cycle, stops_behind=None),
        replace(cycle, rival_stops_behind=None),
        replace(cycle, ending="kill"),
    )
    yield from (each for each in simpler if each != cycle)
