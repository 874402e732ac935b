"""A disk that becomes full, at every moment: nothing acknowledged is lost, nothing stops, and
appends go on by themselves.
"""

from __future__ import annotations

import dataclasses

import pytest

from recovery.harness.runs.directed import BUSY
from recovery.harness.runs.plan import Cycle, Plan, draw_plan
from recovery.harness.runs.scenario import Scenario
from tests.support.suites import share

EFFECTS = 120
"""Of a process run, before which the disk becomes full in turn: the opening, appends, rolls,
truncations.
"""
STEP = 6


def plan(fills_at: int, *, dies: bool) -> Plan:
    drawn = draw_plan(f"full/{fills_at}/{dies}", "default", cycles=4)
    cycles = (
        Cycle(operations=40, ending="kill"),
        Cycle(
            operations=60,
            ending="power",
            fills_at=fills_at,
            dies_at=fills_at + 25 if dies else None,
        ),
        Cycle(operations=20, ending="kill"),
        Cycle(operations=40, ending="close", fills_at=0 if dies else fills_at),
    )
    settings = {**drawn.settings, **BUSY}
    return dataclasses.replace(
        drawn,
        workload="appends",
        tier1="file",
        tier2="object",
        rates={},
        settings=settings,
        cycles=cycles,
    )


@pytest.mark.parametrize("dies", share([True, False], 2, 5), ids=["dies", "lives"])
@pytest.mark.parametrize("first", share(range(0, STEP, 3), 2, 5))
def test_a_disk_that_becomes_full_at_any_moment_costs_nothing_but_time(
    first: int, dies: bool
) -> None:
    reached = 0
    for fills_at in range(first, EFFECTS, STEP):
        result = Scenario(plan(fills_at, dies=dies)).run()
        assert [str(violation) for violation in result.violations] == [], fills_at
        assert result.appends > 0
        reached += result.points.get("disk.full", 0)
    assert reached > 0, "no life of these met a full disk"
