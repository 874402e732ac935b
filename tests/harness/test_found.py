"""What crash testing has found in the engine, kept as plans: clean on the engine as it is, broken
with the fault again.

A seed would not do: it means the same run only as long as plans are drawn in the same way. A plan
is the run itself, and the mutant of the same name makes the fault again, so each plan shows that it
can still fail. One that no longer does (the engine makes other effects by now) is hunted again:
`run_mutant(mutant)` has the `plan`, `to_json` is what is kept.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from recovery.harness.mutants.catalogue import MUTANTS
from recovery.harness.runs.plan import Plan
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parent.parent.parent
FOUND = ROOT / "tests/harness/found"
NAMES = sorted(path.stem for path in FOUND.glob("*.json"))
LONG = {
    "versions-used-up-not-noticed": 8,
    "acknowledged-without-a-look": 3,
    "earlier-owners-ledgers-deleted-at-once": 3,
    "working-directory-of-two-owners": 2,
    "state-written-over": 2,
}
"""Seconds of plans that `make test` leaves out."""
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=slow(LONG[name])) if name in LONG else name for name in NAMES],
)
def test_what_was_found_stays_mended_and_would_be_seen_again(name: str) -> None:
    mutant = BY_NAME[name]
    plan = Plan.from_json((FOUND / f"{name}.json").read_text(encoding="utf-8"))
    clean = mutant.hunt.scenario(plan).run().violations
    with mutant.apply():
        broken = mutant.hunt.scenario(plan).run().violations
    gc.collect()
    assert [str(violation) for violation in clean] == []
    assert broken, (
        "the plan does not show this fault any more, and so is no test of it: hunt it again"
    )


def test_the_page_of_what_was_found_names_every_plan_that_is_kept() -> None:
    page = (ROOT / "docs/found-by-crash-testing.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []
