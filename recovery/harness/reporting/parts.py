"""The parts of the long run, each run by itself and brought into the form that the page and the
command line show.

One place that knows what the rooms beside it give: simulated runs, enumeration, kills, mutants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, Generic, TypeVar

from recovery.harness.enumeration.driver import enumerate_all
from recovery.harness.kills.driver import run_kills
from recovery.harness.mutants.catalogue import MUTANTS
from recovery.harness.mutants.hunting import run_mutants
from recovery.harness.reporting.page import EnumeratedPart, KillPart, MutantPart, SimulatedPart
from recovery.harness.runs.directed import directed_plans
from recovery.harness.runs.races import all_races
from recovery.harness.runs.simulate import SimulationSummary, run_all, run_many
from segmentstore.contracts.runtime import Clock

DIRECTED_ROUNDS: Final = 3
VIOLATIONS_REPORTED: Final = 3
"""Of each failing run."""

PartT = TypeVar("PartT")


@dataclass(slots=True)
class Shown(Generic[PartT]):
    """What one part of the long run showed."""

    part: PartT
    violations: list[str] = field(default_factory=list)
    """Each with the name it can be replayed by."""
    points: Mapping[str, int] = field(default_factory=dict)


# --- simulated ------------------------------------------------------------------------------------


def simulated(
    workload: str, seed: str, seconds: float, *, jobs: int, clock: Clock
) -> Shown[SimulatedPart]:
    """Simulated runs of one workload on all cores until the time is over."""
    begun = clock.time_ms()

    def more(_summary: SimulationSummary) -> bool:
        return clock.time_ms() - begun < seconds * 1000

    summary = run_many(seed, workload, more=more, jobs=jobs)
    part = _part(summary, workload, seed, (clock.time_ms() - begun) / 1000, jobs)
    return Shown(part, _violations(summary), dict(summary.points))


def directed(seed: str, *, jobs: int, clock: Clock) -> Shown[SimulatedPart]:
    """DIRECTED_ROUNDS rounds of directed plans, and every race: without them some fault points come
    up by luck alone.
    """
    begun = clock.time_ms()
    summary = run_all(chain(directed_plans(seed, DIRECTED_ROUNDS), all_races(seed)), jobs=jobs)
    part = _part(summary, "everything", seed, (clock.time_ms() - begun) / 1000, jobs)
    return Shown(
        dataclasses.replace(part, directed=True), _violations(summary), dict(summary.points)
    )


def _part(
    summary: SimulationSummary, workload: str, seed: str, seconds: float, jobs: int
) -> SimulatedPart:
    return SimulatedPart(
        workload=workload,
        seed=seed,
        runs=summary.runs,
        crashes=summary.crashes,
        openings=summary.openings,
        calls=summary.calls,
        appends=summary.appends,
        virtual_s=summary.virtual_s,
        longest_recovery_s=summary.longest_recovery_s,
        failed=summary.failed,
        seconds=seconds,
        jobs=jobs,
    )


def _violations(summary: SimulationSummary) -> list[str]:
    return [
        f"workload {failure.workload}, seed {failure.seed}: {violation}"
        for failure in summary.failures
        for violation in failure.violations[:VIOLATIONS_REPORTED]
    ]


# --- every crash point ----------------------------------------------------------------------------


def enumerated(*, jobs: int) -> Shown[EnumeratedPart]:
    """Every crash point of every short workload, once."""
    result = enumerate_all(jobs=jobs)
    part = EnumeratedPart(
        workloads=result.workloads,
        points=result.points,
        states=result.states,
        during_recovery=result.during_recovery,
        recoveries=result.recoveries,
        sampled=result.sampled,
        longest_recovery_s=result.longest_recovery_s,
        failed=result.broken,
        seconds=result.seconds,
    )
    return Shown(
        part, [f"crash point {broken}" for broken in result.violations], dict(result.fault_points)
    )


# --- real processes -------------------------------------------------------------------------------


def killed(folder: str, seed: str, seconds: float, *, jobs: int) -> Shown[KillPart]:
    """Real kills until the time is over.

    Stores that broke a rule stay in `folder`. Raises MissingToolError.
    """
    result = run_kills(Path(folder), seed=seed, seconds=seconds, jobs=jobs)
    part = KillPart(
        kills=result.kills,
        takeovers=result.takeovers,
        openings=result.openings,
        calls=result.calls,
        longest_recovery_s=result.longest_recovery_s,
        failed=result.failed,
        seconds=result.seconds,
        kinds=dict(result.kinds),
    )
    violations = [
        f"killed store, workload {failure.workload}, seed {failure.seed}: {violation}"
        for failure in result.failures
        for violation in failure.violations[:VIOLATIONS_REPORTED]
    ]
    return Shown(part, violations)


# --- mutants --------------------------------------------------------------------------------------


def mutated(*, jobs: int) -> Sequence[MutantPart]:
    """Every mutant hunted once."""
    caught = {each.mutant: each for each in run_mutants(jobs=jobs).caught}
    return [
        MutantPart(
            name=mutant.name,
            breaks=", ".join((mutant.rule, *mutant.bugs)),
            caught_by=caught[mutant.name].checker if mutant.name in caught else "",
            seeds=caught[mutant.name].seeds_tried
            if mutant.name in caught
            else mutant.hunt.seeds_max,
        )
        for mutant in MUTANTS
    ]
