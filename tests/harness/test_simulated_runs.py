"""What runs of the simulation are checked by, and what they count: errors of the harness, windows
that are searched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice

import pytest

from recovery.harness.checkers import all_checks
from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import Violation
from recovery.harness.runs.plan import Cycle, draw_plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.runs.scenario import Scenario
from recovery.harness.runs.simulate import drawn_plans, run_all
from tests.support.suites import size, sized

CONDITIONAL_RUNS = size("HARNESS_CONDITIONAL_RUNS", 6, 12)
DECIDED_SHARE = 0.55
"""Of the windows of these runs; they decide 0.75, and 0.59 to 0.66 of those of other seeds."""


def raises(index: HistoryIndex) -> Iterator[Violation]:
    yield Violation("planted", "before")
    raise KeyError(f"{len(index.calls) > 0}")


def test_a_run_whose_checker_raises_is_a_failure_of_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(all_checks, "CHECKERS", (raises,))
    summary = run_all(islice(drawn_plans("raises", "default"), 2))
    assert (summary.runs, summary.failed) == (2, 2)
    assert [failure.seed for failure in summary.failures] == ["raises/0", "raises/1"]
    for failure in summary.failures:
        before, error = failure.violations
        assert before == "planted: before"
        assert error.startswith("harness: KeyError: 'True' [")
        assert "test_simulated_runs.py" in error
        assert "\n" not in error


def test_a_run_whose_driver_raises_is_a_failure_of_its_seed_and_is_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(_self: Scenario) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Scenario, "_finish", planted)
    summary = run_all(islice(drawn_plans("raises", "default"), 1))
    (failure,) = summary.failures
    assert failure.seed == "raises/0"
    assert [each[:35] for each in failure.violations] == ["harness: ZeroDivisionError: planted"]
    assert summary.calls > 0


@sized(6)
def test_most_windows_of_conditional_appends_are_decided() -> None:
    """What the search for linearizability leaves alone it does not agree with: the share of it must
    not grow unseen.
    """
    summary = run_all(islice(drawn_plans("a", "conditional"), CONDITIONAL_RUNS))
    assert [failure.violations[0] for failure in summary.failures] == []
    assert summary.windows["decided"] > 0
    assert summary.windows["decided"] >= DECIDED_SHARE * summary.windows.total()


# --- fault points that say what they mean ---------------------------------------------------------


def lived(*cycles: Cycle) -> RunResult:
    """A run of a store on files without faults, but for what becomes of its owners."""
    plan = draw_plan("lived/0", "default")
    settings = {**plan.settings, "containers": 1}
    return Scenario(
        dataclasses.replace(
            plan, tier1="file", tier2="object", settings=settings, rates={}, cycles=cycles
        )
    ).run()


def test_a_takeover_is_met_only_if_the_second_owner_has_opened() -> None:
    stopped = Cycle(operations=120, ending="takeover", dies_at=100)
    dead = lived(dataclasses.replace(stopped, rival_dies_at=0))
    assert dead.violations == []
    assert dead.points["owner.paused-before-effect"] == 1
    assert "owner.takeover" not in dead.points
    assert "owner.overlap" not in dead.points
    met = lived(
        *(dataclasses.replace(stopped, dies_at=at, again=True) for at in range(60, 120, 10))
    )
    assert met.violations == []
    assert met.points["owner.takeover"] == met.points["owner.paused-before-effect"] == 6
    assert 0 < met.points["owner.overlap"] < 6


def test_a_first_owner_that_opens_late_has_taken_over_nothing() -> None:
    result = lived(Cycle(operations=20, ending="takeover", dies_at=2, rival_dies_at=0))
    assert result.violations == []
    assert "owner.takeover" not in result.points


def test_a_recovery_is_one_of_a_recovery_only_if_the_one_before_was_cut_off() -> None:
    works = Cycle(operations=60, ending="kill")
    cut = Cycle(operations=60, ending="kill", dies_at=1)
    again = Cycle(operations=60, ending="kill", again=True)
    once = lived(works, cut, again)
    assert once.violations == []
    assert once.points["crash.opening"] == 1
    assert "crash.opening-again" not in once.points
    twice = lived(works, cut, cut, again)
    assert twice.violations == []
    assert twice.points["crash.opening"] == twice.points["crash.opening-again"] == 1
