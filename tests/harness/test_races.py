"""Races of two owners: an owner that is stopped between two checks gets no wrong answer, and loses
nothing; planted faults are found.
"""

from __future__ import annotations

import gc
from itertools import product

import pytest

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.plan import Tier1
from recovery.harness.runs.races import RACES, TIER1, race_plans
from recovery.harness.runs.scenario import Scenario
from recovery.harness.runs.simulate import run_plans
from tests.support.suites import share, size, sized, slow

PLANS_MIN: dict[Tier1, int] = {"file": 30, "bookkeeper": 5}
"""An opening has at least so many."""
STEP = size("HARNESS_RACE_STEP", 6, 1)
"""Behind each so many-th of them the first owner is stopped."""


@sized(12)
@pytest.mark.parametrize(("tier1", "name"), share(product(TIER1, RACES), 10, 12))
def test_no_race_of_two_owners_loses_anything_or_is_reported_wrong(tier1: Tier1, name: str) -> None:
    plans = list(race_plans("main", tier1, name))
    assert len(plans) >= PLANS_MIN[tier1]
    summary = run_plans(plans[::STEP])
    gc.collect()
    assert [f"{failure.plan}: {failure.violations[0]}" for failure in summary.failures] == []
    assert summary.points["owner.paused-behind-look"] == summary.runs == len(plans[::STEP])


@pytest.mark.parametrize(
    ("edit", "base", "name"),
    [
        (
            Edit(
                "segmentstore.store_folder:read_store_file",
                "if not there or not disk.exists(path):",
                "if True:",
            ),
            "a",
            "making",
        ),
        (
            Edit(
                "durablelog.file.log_folder:LogFolder._read_state",
                "# files.\nstate = read_state(self.directory, self.disk)",
                "# files.",
            ),
            "a",
            "making",
        ),
        pytest.param(
            Edit(
                "durablelog.file.log_folder:LogFolder._scan",
                "if seen == (state, str(error)):",
                "if True:",
            ),
            "a",
            "beside a living owner",
            marks=slow(5),
        ),
    ],
    ids=[
        "store.toml looked for once",
        "record looked for once",
        "corruption believed at first sight",
    ],
)
def test_what_is_checked_once_alone_is_found(edit: Edit, base: str, name: str) -> None:
    """Each of them was in the engine once, and was found by luck."""
    mutant = Mutant(
        "looked at once", "4.2", "Two looks that do not fit are believed.", (edit,), Hunt()
    )
    plans = list(race_plans(base, "file", name))
    with mutant.apply():
        assert any(Scenario(plan).run().violations for plan in plans)
    gc.collect()
