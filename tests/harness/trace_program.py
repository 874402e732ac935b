"""What a process prints of simulated runs and of replayed crash points, byte for byte the same in
every process: `python -m tests.harness.trace_program runs NUMBER` or `... names NAME...`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from recovery.harness.enumeration.driver import replay
from recovery.harness.runs.plan import Plan, draw_plan
from recovery.harness.runs.scenario import Scenario

ROOT = Path(__file__).resolve().parent.parent.parent
TRACED = ("everything", "wire", "connect", "tier2", "default")


def traced_plan(run: int) -> Plan:
    return draw_plan(f"same/{run}", TRACED[run % len(TRACED)])


def shown_runs(number: int) -> Iterator[str]:
    """The traces and calls of `number` runs, of each workload in turn."""
    for run in range(number):
        result = Scenario(traced_plan(run), keep_trace=True).run()
        assert result.trace is not None
        yield f"run {run}: {result.digest} {result.points}"
        yield from result.trace or ()
        yield from map(str, result.history.calls)


def shown_names(*names: str) -> Iterator[str]:
    """The traces, calls and observations of replayed crash points."""
    for name in names:
        again = replay(name)
        yield f"{name} {again.digest} {again.violations}"
        yield from again.trace
        yield from map(str, again.history.calls)
        yield str(again.history.observations)


def of_another_process(*words: object) -> list[str]:
    """Lines that this program prints where strings hash differently than here."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    shown = subprocess.run(
        [sys.executable, "-m", __name__, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    )
    return shown.stdout.splitlines()


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    for line in shown_runs(int(words[0])) if kind == "runs" else shown_names(*words):
        print(line)
