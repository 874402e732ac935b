"""The report: a page that says everything it was given, and how the long run is divided."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from recovery.harness.reporting import report as driver
from recovery.harness.reporting.page import (
    EnumeratedPart,
    KillPart,
    MutantPart,
    Report,
    SimulatedPart,
    render,
)
from recovery.harness.reporting.parts import Shown, simulated
from recovery.harness.reporting.report import Parts, measure, shares
from recovery.harness.simulation.fault_points import TABLE
from recovery.harness.workloads.catalogue import WORKLOADS
from tests.support.suites import slow

DEFAULT = SimulatedPart(
    "default", "s-default", 100, 900, 1100, 50_000, 20_000, 7200.0, 36.25, 0, 10.0, 2
)
APPENDS = SimulatedPart(
    "appends", "s-appends", 10, 60, 80, 500_000, 480_000, 360.0, 4.0, 0, 12.0, 2
)
SMALL = Report(
    version="0.1.0",
    date="2026-01-02",
    machine="2 cores",
    command="make recovery-report MINUTES=1",
    simulated=(DEFAULT, APPENDS),
    enumerated=EnumeratedPart(12, 300, 4000, 500, 5000, 3, 0.02, 0, 90.0),
    kills=KillPart(
        1200,
        40,
        1300,
        90_000,
        0.1234,
        0,
        600.0,
        {"SIGKILL at random": 900, "SIGKILL at a sync": 300},
    ),
    mutants=(MutantPart("no-sync", "4.2, B18", "content", 2),),
    points={"power.cut": 1234, "crash.idle": 1},
    violations=(),
    excluded={"B5": "offsets have 64 bits"},
)
GOLDEN = Path(__file__).with_name("report_golden.txt")
BEFORE_POINTS = "## Fault points"


def test_the_page_is_as_it_was_agreed() -> None:
    page = render(SMALL).replace(f"of {len(TABLE)} |", "of ALL |")
    assert page.partition(BEFORE_POINTS)[0] == GOLDEN.read_text(encoding="utf-8")


def test_every_fault_point_has_its_row_met_or_not() -> None:
    rows = render(SMALL).partition(BEFORE_POINTS)[2].splitlines()
    assert "| `power.cut` | 1,234 | " + TABLE["power.cut"] + " |" in rows
    assert sum(row.startswith("| `") for row in rows) == len(TABLE)


def test_what_is_bad_stands_on_the_page() -> None:
    bad = dataclasses.replace(
        SMALL, violations=("seed s/1: lost | it",), mutants=(MutantPart("no-sync", "4.2", "", 50),)
    )
    page = render(bad)
    assert "- seed s/1: lost | it" in page
    assert "| no-sync | 4.2 | **not caught** | 50 |" in page
    assert "| violations | 1 | 0 | **no** |" in page
    assert not bad.clean
    assert SMALL.clean


def test_a_bar_that_is_met_says_yes() -> None:
    many = dataclasses.replace(
        SMALL,
        points=dict.fromkeys(TABLE, 1),
        mutants=[MutantPart(f"mutant-{number}", "B1", "content", 1) for number in range(25)],
        simulated=(
            dataclasses.replace(DEFAULT, crashes=200_000),
            dataclasses.replace(APPENDS, appends=600_000),
        ),
    )
    bars = render(many).partition("## Simulated")[0]
    assert "**no**" not in bars
    assert bars.count("| yes |") == 7


def test_all_simulated_time_is_given_to_workloads() -> None:
    divided = shares(1000.0)
    assert list(divided) == ["default", *(name for name in WORKLOADS if name != "default")]
    assert sum(divided.values()) == pytest.approx(780.0)
    assert divided["default"] == pytest.approx(390.0)


class StepClock:
    """Half a second passes with each reading."""

    def __init__(self) -> None:
        self.now_ms = 1_767_312_000_000

    def time_ms(self) -> int:
        self.now_ms += 500
        return self.now_ms


@slow(5)
def test_simulated_runs_end_with_their_time_and_are_counted() -> None:
    shown = simulated("default", "report", 1.0, jobs=1, clock=StepClock())
    assert shown.part.runs > 0
    assert shown.part.crashes > 0
    assert shown.part.seconds > 1.0
    assert shown.points["power.cut"] > 0
    assert shown.violations == []


def test_the_long_run_gathers_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, float]] = []

    def simulate(workload: str, seed: str, seconds: float) -> Shown[SimulatedPart]:
        asked.append((workload, seed, seconds))
        return Shown(
            dataclasses.replace(DEFAULT, workload=workload),
            ["bad"] if workload == "tier2" else [],
            {"power.cut": 1},
        )

    parts = Parts(
        simulate=simulate,
        direct=lambda seed: Shown(dataclasses.replace(DEFAULT, seed=seed, directed=True)),
        enumerate=lambda: Shown(SMALL.enumerated, [], {"power.cut": 5, "crash.idle": 2}),
        kill=lambda _seed, _seconds: Shown(SMALL.kills, ["worse"]),
        mutate=lambda: SMALL.mutants,
        excluded={},
    )
    said: list[str] = []
    made = measure(parts, seconds=60.0, seed="s", command="c", clock=StepClock(), say=said.append)
    assert [workload for workload, _, _ in asked] == list(shares(1.0))
    assert [part.directed for part in made.simulated] == [True] + [False] * len(WORKLOADS)
    assert "| `s`, directed |" in render(made)
    assert made.points == {"power.cut": 5 + len(WORKLOADS), "crash.idle": 2}
    assert made.violations == ["bad", "worse"]
    assert made.date == "2026-01-02"
    assert "VIOLATION worse" in said
    path = tmp_path / "crash-test-report.md"
    monkeypatch.setattr(driver, "default_parts", lambda **_arguments: parts)
    assert driver.main(["--minutes", "1", "--seed", "s", "--output", str(path)]) == 1
    assert "- worse" in path.read_text(encoding="utf-8")
