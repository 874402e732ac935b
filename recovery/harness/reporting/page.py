"""The page docs/crash-test-report.md: what a long run of the harness showed, as a record and as
text. Pure.

Every figure of the page is a field of `Report`; nothing is left out when it is bad, and a bar that
was missed says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from recovery.harness.simulation.fault_points import TABLE

CRASHES_PER_S_BAR: Final = 30
"""Simulated crash-recoveries a second and core, on the workload `default`."""
APPENDS_PER_S_BAR: Final = 20_000
"""Simulated appends a second and core, on the workload `appends`."""
CRASHES_BAR: Final = 200_000
KILLS_BAR: Final = 1000
POINTS_BAR: Final = 60
MUTANTS_BAR: Final = 25


@dataclass(frozen=True, slots=True)
class SimulatedPart:
    """Simulated runs of one workload."""

    workload: str
    seed: str
    """Run number i has the seed `seed/i`."""
    runs: int
    crashes: int
    openings: int
    calls: int
    appends: int
    """Acknowledged."""
    virtual_s: float
    longest_recovery_s: float
    """In simulated time."""
    failed: int
    seconds: float
    """Of real time, on `jobs` cores."""
    jobs: int
    directed: bool = False
    """Plans that are directed at what chance reaches too rarely (`directed.py`), not drawn ones."""

    @property
    def seeds(self) -> str:
        """From where to where."""
        return (
            f"`{self.seed}`, directed"
            if self.directed
            else f"`{self.seed}/0` to `{max(self.runs - 1, 0)}`"
        )

    @property
    def core_seconds(self) -> float:
        """Real time, summed over cores; never 0."""
        return max(self.seconds * self.jobs, 1e-9)


@dataclass(frozen=True, slots=True)
class EnumeratedPart:
    """Every crash point of every short workload."""

    workloads: int
    points: int
    """Instants between two effects."""
    states: int
    """Different states of the outside that a crash can leave at these."""
    during_recovery: int
    """Of these, left by a crash during a recovery."""
    recoveries: int
    sampled: int
    """Points with more outcomes than were tried."""
    longest_recovery_s: float
    """In simulated time."""
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KillPart:
    """Real processes."""

    kills: int
    takeovers: int
    openings: int
    calls: int
    longest_recovery_s: float
    """In real time, from the start of the opening."""
    failed: int
    seconds: float
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of kill was made."""


@dataclass(frozen=True, slots=True)
class MutantPart:
    """An engine that was broken on purpose."""

    name: str
    breaks: str
    """The rule of the design, or the number of the peers' bug."""
    caught_by: str
    """Name of the checker; nothing if it was not caught."""
    seeds: int
    """Tried until it was caught."""


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    version: str
    date: str
    machine: str
    command: str
    simulated: Sequence[SimulatedPart]
    enumerated: EnumeratedPart
    kills: KillPart
    mutants: Sequence[MutantPart]
    points: Mapping[str, int]
    """Fault points of the simulated and the enumerated runs, with how often each was met."""
    violations: Sequence[str]
    """Each with the name it can be replayed by."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Peers' bugs that cannot exist here, and why."""

    @property
    def crashes(self) -> int:
        """Simulated crash-recoveries."""
        return sum(part.crashes for part in self.simulated)

    @property
    def never_met(self) -> list[str]:
        """Fault points no run has reached."""
        return [name for name in TABLE if not self.points.get(name)]

    @property
    def uncaught(self) -> list[str]:
        """Mutants that the suite let pass."""
        return [mutant.name for mutant in self.mutants if not mutant.caught_by]

    @property
    def clean(self) -> bool:
        """No rule broken, no mutant uncaught."""
        return not self.violations and not self.uncaught

    def part(self, workload: str) -> SimulatedPart | None:
        """The simulated runs of a workload, if there were any."""
        return next(
            (part for part in self.simulated if part.workload == workload and not part.directed),
            None,
        )


def render(report: Report) -> str:
    """The page, as Markdown."""
    return "\n".join(
        (
            "# What the recovery testing harness showed",
            "",
            (
                f"Version {report.version}, {report.date}, on {report.machine}. "
                f"Written by `{report.command}`."
            ),
            "How to run it and what it proves: [crash testing](crash-testing.md).",
            "",
            *_bars(report),
            *_simulated(report),
            *_enumerated(report.enumerated),
            *_kills(report.kills),
            *_mutants(report),
            *_points(report),
            *_violations(report.violations),
        )
    )


def _bars(report: Report) -> Iterable[str]:
    default, appends = report.part("default"), report.part("appends")
    crash_rate = default.crashes / default.core_seconds if default else 0.0
    append_rate = appends.appends / appends.core_seconds if appends else 0.0
    met = len(TABLE) - len(report.never_met)
    caught = len(report.mutants) - len(report.uncaught)
    rows = (
        ("violations", f"{len(report.violations):,}", "0", not report.violations),
        (
            "simulated crash-recoveries",
            f"{report.crashes:,}",
            f"≥ {CRASHES_BAR:,}",
            report.crashes >= CRASHES_BAR,
        ),
        _rate("the same a second and core, workload `default`", crash_rate, CRASHES_PER_S_BAR),
        _rate(
            "simulated appends a second and core, workload `appends`",
            append_rate,
            APPENDS_PER_S_BAR,
        ),
        (
            "real kills",
            f"{report.kills.kills:,}",
            f"≥ {KILLS_BAR:,}",
            report.kills.kills >= KILLS_BAR,
        ),
        (
            "fault points met",
            f"{met} of {len(TABLE)}",
            f"all, ≥ {POINTS_BAR}",
            met == len(TABLE) and met >= POINTS_BAR,
        ),
        (
            "mutants caught",
            f"{caught} of {len(report.mutants)}",
            f"all, ≥ {MUTANTS_BAR}",
            caught == len(report.mutants) and caught >= MUTANTS_BAR,
        ),
    )
    yield from _table(
        ("what", "shown", "bar", "met"),
        [(*row[:3], "yes" if row[3] else "**no**") for row in rows],
        numbers=(),
    )


def _rate(name: str, rate: float, bar: int) -> tuple[str, str, str, bool]:
    return name, f"{rate:,.0f}", f"≥ {bar:,}", rate >= bar


def _simulated(report: Report) -> Iterable[str]:
    rows: list[Sequence[object]] = [
        (
            part.workload,
            part.seeds,
            part.runs,
            part.crashes,
            part.openings,
            f"{part.virtual_s / 3600:,.1f}",
            part.appends,
            f"{part.longest_recovery_s:,.1f}",
            part.failed,
            f"{part.seconds / 60:,.1f}",
        )
        for part in report.simulated
    ]
    parts = report.simulated
    rows.append(
        (
            "all",
            "",
            sum(part.runs for part in parts),
            report.crashes,
            sum(part.openings for part in parts),
            f"{sum(part.virtual_s for part in parts) / 3600:,.1f}",
            sum(part.appends for part in parts),
            f"{max((part.longest_recovery_s for part in parts), default=0.0):,.1f}",
            sum(part.failed for part in parts),
            f"{sum(part.seconds for part in parts) / 60:,.1f}",
        )
    )
    yield "## Simulated"
    yield ""
    yield (
        "A seed is run again by `segmentstore crashtest --workload WORKLOAD --replay SEED`. "
        "Recoveries are in simulated"
    )
    yield (
        "time, which has object storages that are away for ten minutes and disks that stall "
        "for seconds."
    )
    yield ""
    head = (
        "workload",
        "seeds",
        "runs",
        "crash-recoveries",
        "openings",
        "simulated hours",
        "acknowledged appends",
    )
    yield from _table(
        (*head, "longest recovery, s", "failed", "minutes"), rows, numbers=range(2, len(head) + 3)
    )


def _enumerated(part: EnumeratedPart) -> Iterable[str]:
    yield "## Every crash point"
    yield ""
    rows = (
        ("workloads of up to three operations", part.workloads),
        ("crash points", part.points),
        ("different states left by them", part.states),
        ("of these, left by a crash during a recovery", part.during_recovery),
        ("recoveries, each checked", part.recoveries),
        ("points with more outcomes than were tried", part.sampled),
        ("longest recovery, s", f"{part.longest_recovery_s:,.2f}"),
        ("failed", part.failed),
        ("minutes", f"{part.seconds / 60:,.1f}"),
    )
    yield from _table(("what", "how many"), rows, numbers=(1,))


def _kills(part: KillPart) -> Iterable[str]:
    yield "## Real processes"
    yield ""
    rows = (
        ("kills", part.kills),
        ("takeovers from a stopped owner", part.takeovers),
        ("openings, each observed and checked", part.openings),
        ("calls", part.calls),
        ("longest recovery, s", f"{part.longest_recovery_s:,.2f}"),
        ("failed", part.failed),
        ("minutes", f"{part.seconds / 60:,.1f}"),
    )
    yield from _table(("what", "how many"), rows, numbers=(1,))
    if part.kinds:
        yield from _table(("kind", "how many"), sorted(part.kinds.items()), numbers=(1,))


def _mutants(report: Report) -> Iterable[str]:
    yield "## Mutants"
    yield ""
    yield (
        "Engines broken on purpose, one rule each; a harness that lets one pass proves "
        "nothing about that rule."
    )
    yield ""
    rows = [
        (each.name, each.breaks, each.caught_by or "**not caught**", each.seeds)
        for each in report.mutants
    ]
    yield from _table(("mutant", "breaks", "caught by", "after seeds"), rows, numbers=(3,))
    if report.excluded:
        yield from _table(
            ("peers' bug", "why it cannot exist here"), sorted(report.excluded.items()), numbers=()
        )


def _points(report: Report) -> Iterable[str]:
    yield "## Fault points"
    yield ""
    rows = [(f"`{name}`", report.points.get(name, 0), meaning) for name, meaning in TABLE.items()]
    yield from _table(("name", "met", "meaning"), rows, numbers=(1,))


def _violations(violations: Sequence[str]) -> Iterable[str]:
    yield "## Violations"
    yield ""
    yield from [f"- {violation}" for violation in violations] or ["None."]
    yield ""


def _table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int]
) -> Iterable[str]:
    right = set(numbers)
    yield "| " + " | ".join(head) + " |"
    yield (
        "| "
        + " | ".join("---:" if column in right else "---" for column in range(len(head)))
        + " |"
    )
    for row in rows:
        yield "| " + " | ".join(_cell(value) for value in row) + " |"
    yield ""


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
