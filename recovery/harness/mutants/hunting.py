"""Hunting: run the harness on mutant after mutant, until it has noticed each, or has not.

Rules of this file: a mutant is noticed when a run has a violation, of whichever checker. The same
plan on the unchanged engine has none (the tests check), so it is the mutant that was noticed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from recovery.harness.mutants.catalogue import MUTANTS
from recovery.harness.mutants.mutant import Mutant
from recovery.harness.runs.plan import Plan


@dataclass(frozen=True, slots=True)
class Caught:
    """How a mutant was noticed."""

    mutant: str
    checker: str
    """That noticed it; "errors" only if no checker of histories did: the engine itself gave up
    then.
    """
    seed: str
    seeds_tried: int
    violation: str
    plan: Plan


@dataclass(slots=True)
class MutantReport:
    """What became of all of them."""

    caught: list[Caught] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Mutants hunted so far."""
        return len(self.caught) + len(self.missed)


def run_mutant(mutant: Mutant) -> Caught | None:
    """Hunt one mutant, seed after seed; None if no seed of its hunt shows it. Some 0.1 s a seed."""
    try:
        with mutant.apply():
            for number in range(mutant.hunt.seeds_max):
                plan = mutant.hunt.plan(mutant.name, number)
                # What made a checker or the driver raise is a fault of the harness: it has not
                # noticed the mutant.
                violations = [
                    each
                    for each in mutant.hunt.scenario(plan).run().violations
                    if each.checker != "harness"
                ]
                if violations:
                    first = next(
                        (each for each in violations if each.checker != "errors"), violations[0]
                    )
                    return Caught(
                        mutant.name, first.checker, plan.seed, number + 1, first.detail, plan
                    )
    finally:
        gc.collect()
    return None


def run_mutants(
    on_progress: Callable[[MutantReport], None] = lambda _report: None,
    *,
    jobs: int = 1,
    mutants: Sequence[Mutant] = MUTANTS,
) -> MutantReport:
    """Hunt all of them on `jobs` processes; in the order of `mutants`, the next free process takes
    the next one.
    """
    report = MutantReport()
    if jobs <= 1:
        for mutant in mutants:
            _note(report, mutant, run_mutant(mutant), on_progress)
        return report
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for mutant, caught in zip(mutants, pool.map(run_mutant, mutants), strict=True):
            _note(report, mutant, caught, on_progress)
    return report


def _note(
    report: MutantReport,
    mutant: Mutant,
    caught: Caught | None,
    on_progress: Callable[[MutantReport], None],
) -> None:
    if caught is None:
        report.missed.append(mutant.name)
    else:
        report.caught.append(caught)
    on_progress(report)
