"""What one run of a plan showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.harness.history import History, Violation
from recovery.harness.runs.plan import Plan


@dataclass(slots=True)
class RunResult:
    """What one run showed."""

    plan: Plan
    violations: list[Violation]
    crashes: int
    """Deaths of a process, each followed by a recovery."""
    openings: int
    calls: int
    appends: int
    """Acknowledged."""
    virtual_s: float
    longest_recovery_s: float
    """Virtual time from the start of an opening to its end, at most."""
    effects: int
    points: dict[str, int]
    digest: str
    """Of the trace."""
    history: History
    trace: list[str] | None = field(default=None, repr=False)
    answers: dict[str, int] = field(default_factory=dict)
    """What owners said to the jobs beside them, and what tasks of those came to."""
    windows: Mapping[str, int] = field(default_factory=dict)
    """Windows of calls whose linearizability was decided, and left undecided
    (`Evaluation.windows`).
    """
    tiers: Mapping[str, int] = field(default_factory=dict)
    """`looks` at what lies in the tiers, `objects` listed in all of them, and `orphans` among
    these.
    """
    cluster: Mapping[str, int] = field(default_factory=dict)
    """Of a cluster: its `take-overs`, `moves`, `map writes` and `edits`."""
    longest_unserved_s: float = 0.0
    """Of a cluster: for which a container had no owner, the faults included."""
