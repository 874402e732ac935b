"""Bit rot is found, named, and once it is undone nothing has been harmed by it."""

from __future__ import annotations

import dataclasses

from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from tests.support.suites import size, sized

RUNS = size("HARNESS_ROT_RUNS", 1, 4)


def test_bit_rot_behind_which_a_write_was_on_its_way_is_undone_after_a_power_cut() -> None:
    """The file is then not what it was when it rotted: a harness that compared it whole left the
    rot in.
    """
    result = Scenario(draw_plan("6b0177cc-attributes/671", "attributes")).run()
    assert result.violations == []


@sized(10)
def test_bit_rot_in_every_process_run_never_costs_a_byte() -> None:
    for number in range(RUNS):
        plan = draw_plan(f"rot/{number}", "default")
        cycles = tuple(
            dataclasses.replace(cycle, rot=("rot.log", "rot.object")[place % 2])
            for place, cycle in enumerate(plan.cycles)
        )
        result = Scenario(dataclasses.replace(plan, tier1="file", rates={}, cycles=cycles)).run()
        assert result.violations == []
        assert result.points.get("rot.log", 0) + result.points.get("rot.object", 0) > 0
