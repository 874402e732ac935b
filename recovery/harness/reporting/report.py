"""The long run: everything the harness has, for as long as it is given, and the page
docs/crash-test-report.md about it.

    python -m recovery.harness.reporting.report --minutes 60 --output docs/crash-test-report.md

Most of the time goes to simulated runs, half of that to the default workload; enumeration and
mutants take what they take, once. Ends with 1 if a rule was broken or a mutant got through; the
page is written all the same.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from recovery.harness.mutants.catalogue import NOT_HERE
from recovery.harness.reporting.page import (
    EnumeratedPart,
    KillPart,
    MutantPart,
    Report,
    SimulatedPart,
    render,
)
from recovery.harness.reporting.parts import (
    PartT,
    Shown,
    directed,
    enumerated,
    killed,
    mutated,
    simulated,
)
from recovery.harness.workloads.catalogue import WORKLOADS
from segmentstore.contracts.runtime import Clock, SystemClock

SIMULATED_SHARE: Final = 0.78
"""Of all time, for simulated runs."""
KILLED_SHARE: Final = 0.15
"""Of all time, for real kills; what is left is about what enumeration and mutants take."""
DEFAULT_SHARE: Final = 0.5
"""Of the simulated time, for the default workload; the others share the rest."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the long run. Seconds are of real time."""

    simulate: Callable[[str, str, float], Shown[SimulatedPart]]
    """Workload, seed, seconds."""
    direct: Callable[[str], Shown[SimulatedPart]]
    """Seed."""
    enumerate: Callable[[], Shown[EnumeratedPart]]
    kill: Callable[[str, float], Shown[KillPart]]
    """Seed, seconds."""
    mutate: Callable[[], Sequence[MutantPart]]
    excluded: Mapping[str, str]
    """Peers' bugs that cannot exist here, and why."""


def shares(seconds: float) -> dict[str, float]:
    """How the simulated time is divided, by workload."""
    divided = seconds * SIMULATED_SHARE
    others = [name for name in WORKLOADS if name != "default"]
    return {
        "default": divided * DEFAULT_SHARE,
        **{name: divided * (1 - DEFAULT_SHARE) / len(others) for name in others},
    }


def measure(
    parts: Parts,
    *,
    seconds: float,
    seed: str,
    command: str,
    clock: Clock,
    say: Callable[[str], None],
) -> Report:
    """The whole long run. `say` receives what comes next, and what was found."""
    points: Counter[str] = Counter()
    violations: list[str] = []

    def take(shown: Shown[PartT]) -> PartT:
        points.update(shown.points)
        violations.extend(shown.violations)
        for violation in shown.violations:
            say(f"VIOLATION {violation}")
        return shown.part

    say("every crash point of short workloads")
    every_point = take(parts.enumerate())
    say("mutants")
    mutants = parts.mutate()
    say("simulated runs that are directed at rare faults")
    runs = [take(parts.direct(seed))]
    for workload, share in shares(seconds).items():
        say(f"simulated runs of the workload {workload} for {share / 60:,.1f} minutes")
        runs.append(take(parts.simulate(workload, f"{seed}-{workload}", share)))
    say(f"real kills for {seconds * KILLED_SHARE / 60:,.1f} minutes")
    kills = take(parts.kill(seed, seconds * KILLED_SHARE))
    return Report(
        version=importlib.metadata.version("segmentstore"),
        date=datetime.fromtimestamp(clock.time_ms() / 1000, tz=UTC).strftime("%Y-%m-%d"),
        machine=machine(),
        command=command,
        simulated=runs,
        enumerated=every_point,
        kills=kills,
        mutants=mutants,
        points=dict(points),
        violations=violations,
        excluded=parts.excluded,
    )


def machine() -> str:
    """What it ran on, without names."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({platform.machine()}), {platform.system()}, Python "
        f"{platform.python_version()}"
    )


def default_parts(*, jobs: int, clock: Clock, folder: str) -> Parts:
    """The real ones, on `jobs` cores. Killed stores lie in `folder`."""
    return Parts(
        simulate=partial(simulated, jobs=jobs, clock=clock),
        direct=partial(directed, jobs=jobs, clock=clock),
        enumerate=partial(enumerated, jobs=jobs),
        kill=partial(killed, folder, jobs=jobs),
        mutate=partial(mutated, jobs=jobs),
        excluded=NOT_HERE,
    )


def main(arguments: Sequence[str]) -> int:
    """Run it all and write the page; 0 if no rule was broken and every mutant was caught."""
    parser = argparse.ArgumentParser(description="Crashes of every kind, and a page about them.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", help="by default the time")
    parser.add_argument("--output", type=Path, default=Path("docs/crash-test-report.md"))
    asked = parser.parse_args(arguments)
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="recovery-report-") as folder:
        made = measure(
            default_parts(jobs=asked.jobs, clock=clock, folder=folder),
            seconds=asked.minutes * 60,
            seed=asked.seed or f"{clock.time_ms() // 1000:x}",
            command=f"make recovery-report MINUTES={asked.minutes:g}",
            clock=clock,
            say=_say,
        )
    asked.output.write_text(render(made), encoding="utf-8")
    _say(
        f"{asked.output} is written; {len(made.violations)} violations, "
        f"{len(made.uncaught)} mutants not caught"
    )
    return 0 if made.clean else 1


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
