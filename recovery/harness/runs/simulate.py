"""Simulated runs, one seed after another, on one core or several; what they showed, added up.

Run number i of base seed S has the seed `S/i`: alone it gives the same trace as among others.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context
from typing import Final

from recovery.harness.interrupts import settle_worker, starting_workers, stop_asked
from recovery.harness.runs.dispatch import plan_of, run_plan
from recovery.harness.runs.plan import Plan
from recovery.harness.runs.run_result import RunResult

BATCH_RUNS: Final = 4
"""Runs handed to a process at a time."""
FAILURES_MAX: Final = 20
"""Failures kept; more would only say the same."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that broke a rule."""

    seed: str
    workload: str
    plan: str
    """As JSON."""
    violations: Sequence[str]


@dataclass(slots=True)
class SimulationSummary:
    """What many runs showed."""

    runs: int = 0
    crashes: int = 0
    openings: int = 0
    calls: int = 0
    appends: int = 0
    effects: int = 0
    virtual_s: float = 0.0
    longest_recovery_s: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """What owners said to jobs beside them, and what tasks of those came to."""
    windows: Counter[str] = field(default_factory=Counter)
    """Windows of calls whose linearizability was `decided`, and left `undecided`: the search for it
    has bounds.
    """
    tiers: Counter[str] = field(default_factory=Counter)
    """`looks` at what lies in the tiers, `objects` seen in all of them, `orphans` and what was
    under way among these.
    """
    cluster: Counter[str] = field(default_factory=Counter)
    """Take-overs, moves and others of clusters, as in `RunResult.cluster`."""
    longest_unserved_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0

    def take(self, result: RunResult) -> None:
        """Add one run."""
        self.runs += 1
        self.crashes += result.crashes
        self.openings += result.openings
        self.calls += result.calls
        self.appends += result.appends
        self.effects += result.effects
        self.virtual_s += result.virtual_s
        self.longest_recovery_s = max(self.longest_recovery_s, result.longest_recovery_s)
        self.points.update(result.points)
        self.answers.update(result.answers)
        self.windows.update(result.windows)
        self.tiers.update(result.tiers)
        self.cluster.update(result.cluster)
        self.longest_unserved_s = max(self.longest_unserved_s, result.longest_unserved_s)
        if result.violations:
            plan = result.plan
            self._fail(
                Failure(
                    plan.seed,
                    plan.workload,
                    plan.to_json(),
                    [str(each) for each in result.violations],
                )
            )

    def add(self, other: SimulationSummary) -> None:
        """Add another summary."""
        self.runs += other.runs
        self.crashes += other.crashes
        self.openings += other.openings
        self.calls += other.calls
        self.appends += other.appends
        self.effects += other.effects
        self.virtual_s += other.virtual_s
        self.longest_recovery_s = max(self.longest_recovery_s, other.longest_recovery_s)
        self.points.update(other.points)
        self.answers.update(other.answers)
        self.windows.update(other.windows)
        self.tiers.update(other.tiers)
        self.cluster.update(other.cluster)
        self.longest_unserved_s = max(self.longest_unserved_s, other.longest_unserved_s)
        for failure in other.failures:
            self._fail(failure)
        self.failed += other.failed - len(other.failures)

    def _fail(self, failure: Failure) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(failure)


def run_seed(seed: str, workload: str, *, keep_trace: bool = False) -> RunResult:
    """One run."""
    return run_plan(plan_of(seed, workload), keep_trace=keep_trace)


def drawn_plans(base: str, workload: str) -> Iterator[Plan]:
    """The plans of the seeds `base/0`, `base/1`, ..., without end."""
    return (plan_of(f"{base}/{number}", workload) for number in count())


def run_plans(plans: Sequence[Plan]) -> SimulationSummary:
    """Several runs, one after another, in this process."""
    summary = SimulationSummary()
    for plan in plans:
        summary.take(run_plan(plan))
    gc.collect()
    return summary


def run_all(
    plans: Iterator[Plan],
    *,
    more: Callable[[SimulationSummary], bool] = lambda _summary: True,
    jobs: int = 1,
    on_progress: Callable[[SimulationSummary], None] = lambda _summary: None,
) -> SimulationSummary:
    """Run plan after plan on `jobs` processes, as long as there are some and `more(summary)` says
    so.

    What is under way then is ended. Ends early after FAILURES_MAX failures, and when `stop_asked`.
    """
    summary = SimulationSummary()

    def next_plans() -> list[Plan]:
        return (
            list(islice(plans, BATCH_RUNS))
            if not stop_asked() and more(summary) and summary.failed < FAILURES_MAX
            else []
        )

    if jobs <= 1:
        while batch := next_plans():
            summary.add(run_plans(batch))
            on_progress(summary)
        return summary
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_settle) as pool:
        running: set[Future[SimulationSummary]] = set()
        while True:
            while len(running) < jobs + 1 and (batch := next_plans()):
                with starting_workers():
                    running.add(pool.submit(run_plans, batch))
            if not running:
                return summary
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                summary.add(each.result())
            on_progress(summary)


def run_many(
    base: str,
    workload: str,
    *,
    more: Callable[[SimulationSummary], bool],
    jobs: int = 1,
    on_progress: Callable[[SimulationSummary], None] = lambda _summary: None,
) -> SimulationSummary:
    """`run_all` of the drawn plans of a base seed."""
    return run_all(drawn_plans(base, workload), more=more, jobs=jobs, on_progress=on_progress)


def _settle() -> None:
    """In a new process: what is loaded stays, so collections need not check it."""
    settle_worker()
    gc.collect()
    gc.freeze()
