"""Kills: real processes with real files and the real cache, killed on store after store; what they
showed, added up.

Store number i of seed S has the seed `S/i`: it meets the same kinds of kills again, though not at
the same instants, which are up to the machine.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from recovery.harness.history import CallKind, CallOutcome, History, Violation
from recovery.harness.history_codec import NO_CLIENT
from recovery.harness.interrupts import settle_worker, starting_workers, stop_asked
from recovery.harness.kills.orders import shared_clock_ns
from recovery.harness.kills.points import require_exact_kills
from recovery.harness.kills.round import KillRound, RoundResult

PROCESS_RUNS: Final = 28
"""Of one store: two rounds of the deck of kinds."""
FAILURES_MAX: Final = 10
"""Stores that broke a rule, after which it ends: more would only say the same."""


@dataclass(frozen=True, slots=True)
class KillFailure:
    """A store that broke a rule."""

    seed: str
    workload: str
    folder: str
    """Where its files are kept."""
    violations: list[Violation]
    history: History


@dataclass(slots=True)
class KillResult:
    """What many stores showed."""

    stores: int = 0
    kills: int = 0
    exact_kills: int = 0
    """Of these, at system calls."""
    failed_calls: int = 0
    """Process runs in which system calls failed."""
    takeovers: int = 0
    """Open owners that were stopped, overtaken, and came back."""
    fenced: int = 0
    """Calls that these did not acknowledge any more."""
    openings: int = 0
    calls: int = 0
    appends: int = 0
    """Acknowledged."""
    seconds: float = 0.0
    longest_recovery_s: float = 0.0
    """Real time, from the start of an opening to its end."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of end was met."""
    failed: int = 0
    failures: list[KillFailure] = field(default_factory=list)

    def take(self, result: RoundResult, folder: Path) -> None:
        """Add one store."""
        calls = result.history.calls
        self.stores += 1
        self.kills += result.kills
        self.exact_kills += sum(
            count for name, count in result.kinds.items() if name.startswith("call ")
        )
        self.failed_calls += sum(
            count for name, count in result.kinds.items() if name.startswith("error ")
        )
        self.takeovers += result.takeovers
        self.fenced += result.fenced
        self.openings += result.openings
        self.calls += sum(call.client != NO_CLIENT for call in calls)
        self.appends += sum(
            call.outcome is CallOutcome.OK and call.kind in {CallKind.APPEND, CallKind.EVENT}
            for call in calls
        )
        self.longest_recovery_s = max(self.longest_recovery_s, result.longest_recovery_s)
        self.kinds.update(result.kinds)
        if result.violations:
            self.failed += 1
            self.failures.append(
                KillFailure(
                    result.seed, result.workload, str(folder), result.violations, result.history
                )
            )

    def add(self, other: KillResult) -> None:
        """Add what others showed."""
        self.stores += other.stores
        self.kills += other.kills
        self.exact_kills += other.exact_kills
        self.failed_calls += other.failed_calls
        self.takeovers += other.takeovers
        self.fenced += other.fenced
        self.openings += other.openings
        self.calls += other.calls
        self.appends += other.appends
        self.longest_recovery_s = max(self.longest_recovery_s, other.longest_recovery_s)
        self.kinds.update(other.kinds)
        self.failed += other.failed
        self.failures += other.failures


def run_kills(
    folder: Path,
    *,
    seed: str,
    workload: str = "default",
    cycles: int | None = None,
    seconds: float | None = None,
    jobs: int = 1,
    exact: bool = True,
    on_progress: Callable[[KillResult], None] = lambda _result: None,
) -> KillResult:
    """Kill stores in `folder` for so many process runs, or so long; a store begun is always carried
    through and checked, after the process run it is in when `stop_asked`.

    On `jobs` processes, one store each. A store that broke a rule stays in the folder, others are
    removed. Without `exact` no kill is at an exact system call, and no call fails. Raises
    MissingToolError if `exact` cannot be had.
    """
    folder = folder.resolve()
    if exact:
        require_exact_kills()
    folder.mkdir(parents=True, exist_ok=True)
    begun = shared_clock_ns()
    result = KillResult()
    left = cycles
    started = 0

    def elapsed_s() -> float:
        return (shared_clock_ns() - begun) / 1e9

    def next_store() -> tuple[str, int] | None:
        nonlocal left, started
        over = (left is not None and left <= 0) or (seconds is not None and elapsed_s() >= seconds)
        if over or result.failed >= FAILURES_MAX or stop_asked():
            return None
        process_runs = PROCESS_RUNS if left is None else min(PROCESS_RUNS, left)
        left = None if left is None else left - process_runs
        started += 1
        return f"{seed}/{started - 1}", process_runs

    def note(part: KillResult) -> None:
        result.add(part)
        result.seconds = elapsed_s()
        on_progress(result)

    if jobs <= 1:
        while store := next_store():
            note(kill_store(folder, *store, workload, exact=exact))
        return result
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=settle_worker
    ) as pool:
        running: set[Future[KillResult]] = set()
        while True:
            while len(running) < jobs and (store := next_store()):
                with starting_workers():
                    running.add(pool.submit(kill_store, folder, *store, workload, exact=exact))
            if not running:
                return result
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                note(each.result())


def kill_store(
    folder: Path, seed: str, process_runs: int, workload: str, *, exact: bool = True
) -> KillResult:
    """One store, in a folder of its own that is removed if nothing was wrong."""
    location = folder.resolve() / seed.replace("/", "-")
    shutil.rmtree(location, ignore_errors=True)
    result = KillResult()
    result.take(KillRound(location, seed, workload, process_runs, exact=exact).run(), location)
    if not result.failed:
        shutil.rmtree(location, ignore_errors=True)
    return result
