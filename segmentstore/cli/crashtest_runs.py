"""What `segmentstore crashtest` runs, and what it brings back: numbers, fault points, and each
failure made small.

A failure is worth nothing until it can be checked. So the first ones are run again alone, shrunk,
kept as a plan in a file, and described in words. Rules of this file: nothing is printed here but
progress, on stderr and only to a terminal.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from recovery.harness.history import History, Violation
from recovery.harness.interrupts import stop_asked
from recovery.harness.reporting.narrate import narrate
from recovery.harness.runs.dispatch import plan_of, run_plan
from recovery.harness.runs.plan import Cycle, Plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.runs.shrink import TRIES_MAX, shrink
from recovery.harness.runs.simulate import Failure, SimulationSummary, drawn_plans, run_all
from segmentstore.cli import output

SHRUNK_MAX: Final = 1
"""Failures that are shrunk and described: they mostly have one cause, and each takes up to
TRIES_MAX runs.
"""
VIOLATIONS_SHOWN_MAX: Final = 20
"""Violations of one failure that are reported."""
COMMAND: Final = "segmentstore crashtest"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of the command asked for."""

    seconds: float
    runs: int | None
    seed: str
    workload: str
    jobs: int
    folder: Path
    exact: bool
    """Kill: at exact system calls too."""
    depth: int
    """Enumerate: operations of a workload, at most."""


@dataclass(slots=True)
class ShownFailure:
    """One failure, as a person needs it."""

    name: str
    """The seed, or the name of the point."""
    violations: list[str]
    replay: str = ""
    """The command that runs it again."""
    retry: str = ""
    """Where it cannot be run again: the command that tries the same things once more."""
    plan_file: str = ""
    plan_replay: str = ""
    """The command that runs what it was shrunk to."""
    lines: list[str] = field(default_factory=list)
    """The shrunken history in words."""


@dataclass(slots=True)
class RunOutcome:
    """What a call of the command showed."""

    mode: str
    seed: str
    workload: str
    seconds: float
    numbers: dict[str, object]
    points: Mapping[str, int]
    failed: int = 0
    failures: list[ShownFailure] = field(default_factory=list)
    interrupted: bool = False
    """Ended by Ctrl-C: these are the figures until then."""
    folder: str = ""
    """Where files of failures are; empty if there are none."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """One run in full."""

    name: str
    trace: Sequence[str]
    digest: str
    lines: Sequence[str]
    violations: Sequence[str]


# --- many simulated runs --------------------------------------------------------------------------


def simulate(asked: Asked) -> RunOutcome:
    """Runs until the time is over (or so many were made), then the failures."""
    begun = time.monotonic()

    def more(_summary: SimulationSummary) -> bool:
        return asked.runs is not None or time.monotonic() - begun < asked.seconds

    # No end to them if `runs` is None.
    plans = islice(drawn_plans(asked.seed, asked.workload), asked.runs)
    with progress(None if asked.runs is not None else asked.seconds) as bar:
        summary = run_all(
            plans, more=more, jobs=asked.jobs, on_progress=lambda sum_: bar.say(_said(sum_))
        )
        seconds = time.monotonic() - begun
        failures = [_replayable(failure) for failure in summary.failures]
        # An interrupted run does not wait for up to TRIES_MAX runs more.
        shrunk = 0 if stop_asked() else SHRUNK_MAX
        for failure, shown in zip(summary.failures[:shrunk], failures, strict=False):
            bar.say(f"making the failure of {failure.seed} smaller, in up to {TRIES_MAX} runs")
            _shrink(failure, shown, asked.folder)
    return RunOutcome(
        mode="simulate",
        seed=asked.seed,
        workload=asked.workload,
        seconds=seconds,
        numbers=_numbers(summary, seconds, asked.jobs),
        points=dict(summary.points),
        failed=summary.failed,
        failures=failures,
    )


def _numbers(summary: SimulationSummary, seconds: float, jobs: int) -> dict[str, object]:
    core_seconds = max(seconds, 1e-9) * jobs
    return {
        "runs": summary.runs,
        "crash-recoveries": summary.crashes,
        "crash-recoveries a second and core": summary.crashes / core_seconds,
        "openings": summary.openings,
        "simulated hours": summary.virtual_s / 3600,
        "calls": summary.calls,
        "acknowledged appends": summary.appends,
        "appends a second and core": summary.appends / core_seconds,
        "effects on the outside": summary.effects,
        "longest recovery, simulated seconds": summary.longest_recovery_s,
        **_windows(summary),
        "checks of the tiers": summary.tiers["looks"],
        "objects seen there, orphans among them": f"{summary.tiers['objects']:,}, "
        f"{summary.tiers['orphans']:,}",
        **_cluster(summary),
        "runs with violations": summary.failed,
    }


def _cluster(summary: SimulationSummary) -> dict[str, object]:
    """Of hosts; nothing where there was no cluster."""
    if not summary.cluster:
        return {}
    return {
        **{f"cluster: {name}": number for name, number in sorted(summary.cluster.items())},
        "longest time without owner, simulated seconds": summary.longest_unserved_s,
    }


def _windows(summary: SimulationSummary) -> dict[str, object]:
    """Of conditional appends; nothing where there were none."""
    decided, undecided = summary.windows["decided"], summary.windows["undecided"]
    return (
        {"windows decided, undecided": f"{decided:,}, {undecided:,}"}
        if decided or undecided
        else {}
    )


def _said(summary: SimulationSummary) -> str:
    hours = summary.virtual_s / 3600
    return (
        f"{summary.runs:,} runs, {summary.crashes:,} crashes, {hours:,.1f} simulated hours, "
        f"{summary.failed:,} failed"
    )


def _replayable(failure: Failure) -> ShownFailure:
    workload, seed = shlex.quote(failure.workload), shlex.quote(failure.seed)
    return ShownFailure(
        failure.seed,
        list(failure.violations[:VIOLATIONS_SHOWN_MAX]),
        f"{COMMAND} --workload {workload} --replay {seed}",
    )


def _shrink(failure: Failure, shown: ShownFailure, folder: Path) -> None:
    plan = shrink(Plan.from_json(failure.plan))
    result = run_plan(plan)
    if not result.violations:
        shown.lines = [
            "run again alone it breaks no rule: something beside its seed decides, also a fault"
        ]
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^A-Za-z0-9]+", "-", f"{failure.workload}-{failure.seed}") + ".json")
    path.write_text(plan.to_json() + "\n", encoding="utf-8")
    shown.plan_file = str(path)
    shown.plan_replay = f"{COMMAND} --plan {shlex.quote(str(path))}"
    shown.lines = [
        *_headline(plan),
        *_reported_violations(result.violations),
        *narrate(result.history, result.violations),
    ]


def _headline(plan: Plan) -> list[str]:
    on = ", ".join(f"{point} {rate:g}" for point, rate in plan.rates.items()) or "none"
    return [
        *(f"life {number}: {_cycle(cycle)}" for number, cycle in enumerate(plan.cycles)),
        f"faults: {on}",
        f"Tier 1: {plan.tier1}, Tier 2: {plan.tier2}",
    ]


def _cycle(cycle: Cycle) -> str:
    """What a plan says of one lifetime, as far as it is anything special."""
    special = [
        f"{each.name} {value}"
        for each in dataclasses.fields(cycle)
        if (value := getattr(cycle, each.name)) != each.default
    ]
    return ", ".join(special)


def _reported_violations(violations: Sequence[Violation]) -> list[str]:
    return [f"VIOLATION {violation}" for violation in violations[:VIOLATIONS_SHOWN_MAX]]


# --- one run in full ------------------------------------------------------------------------------


def describe_seed(seed: str, workload: str) -> RunDescription:
    """Run one seed again, and describe it."""
    return describe_plan(plan_of(seed, workload))


def describe_plan(plan: Plan) -> RunDescription:
    """Run a plan, and describe it."""
    return _described(plan.seed, run_plan(plan, keep_trace=True))


def _described(name: str, result: RunResult) -> RunDescription:
    return describe_history(
        name, result.trace or (), result.digest, result.history, result.violations
    )


def describe_history(
    name: str, trace: Sequence[str], digest: str, history: History, violations: Sequence[Violation]
) -> RunDescription:
    """One run, put into words."""
    return RunDescription(
        name,
        trace,
        digest,
        narrate(history, violations),
        [str(violation) for violation in violations],
    )


# --- progress -------------------------------------------------------------------------------------


class Bar(Protocol):
    """Where a run says how far it is."""

    def say(self, text: str) -> None:
        """Replace what was said before."""


class _SilentBar:
    def say(self, text: str) -> None:
        """Nothing is shown."""


class _RichBar:
    def __init__(self, bar: Progress, seconds: float | None) -> None:
        self._bar = bar
        self._begun = time.monotonic()
        self._task = bar.add_task("", total=seconds)

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=text, completed=time.monotonic() - self._begun)


@contextmanager
def progress(seconds: float | None) -> Iterator[Bar]:
    """A progress line on stderr, if that is a terminal; `seconds` is how long it will take, if that
    is known.
    """
    console = output.err()
    if not console.is_terminal:
        yield _SilentBar()
        return
    columns = (BarColumn(bar_width=10), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield _RichBar(bar, seconds)
