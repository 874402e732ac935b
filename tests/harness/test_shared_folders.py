"""Two stores in one place, in the simulated world: tag and marker each keep one store from the
other's objects.
"""

from __future__ import annotations

import dataclasses
import gc

import pytest

from recovery.harness.mutants.mutant import Mutant
from recovery.harness.mutants.shared_folders import SHARED_FOLDERS
from recovery.harness.runs.plan import Plan, draw_plan
from recovery.harness.runs.shared_folders import SharedFolders
from tests.support.suites import share, size, sized

HUNTED = size("HARNESS_SWEPT_PLANS", 1, 3)
(STRANGER_SWEPT,) = SHARED_FOLDERS
SWEEPING = {"orphan_sweep_interval_s": 0.01, "deletion_lag_s": 0.0}


def violations_of(plan: Plan, mutant: Mutant | None = None) -> list[str]:
    try:
        if mutant is None:
            return [str(violation) for violation in SharedFolders(plan).run().violations]
        with mutant.apply():
            return [str(violation) for violation in SharedFolders(plan).run().violations]
    finally:
        gc.collect()


@pytest.mark.parametrize("tier2", share(["object", "file"], 2, 6))
@pytest.mark.parametrize("number", share(range(3), 3, 6))
def test_drawn_process_runs_delete_nothing_of_the_other_store(number: int, tier2: str) -> None:
    drawn = draw_plan(f"shared/{number}", "everything", cycles=4)
    settings = {**drawn.settings, **SWEEPING}
    cycles = tuple(dataclasses.replace(cycle, rot="", checked=False) for cycle in drawn.cycles)
    plan = dataclasses.replace(
        drawn,
        tier1="file",
        tier2=tier2,  # type: ignore[arg-type] # by name
        rates={},
        settings=settings,
        cycles=cycles,
    )
    settings.pop("tier1", None)
    assert violations_of(plan) == []


@sized(4)
@pytest.mark.parametrize("missing", share(["tag", "marker"], 2, 4))
def test_either_the_tag_or_the_marker_is_enough(missing: str) -> None:
    rules = [
        edit
        for edit in STRANGER_SWEPT.edits
        if edit.place.endswith(("judge_object", ".mark_for_deletion"))
    ]
    marker = [edit for edit in STRANGER_SWEPT.edits if edit not in rules]
    assert rules
    assert marker
    half = dataclasses.replace(STRANGER_SWEPT, edits=tuple(rules if missing == "tag" else marker))
    for number in range(HUNTED):
        plan = STRANGER_SWEPT.hunt.plan(STRANGER_SWEPT.name, number)
        assert violations_of(plan) == []
        assert violations_of(plan, half) == []
        assert violations_of(plan, STRANGER_SWEPT)
