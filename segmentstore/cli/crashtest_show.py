"""How `segmentstore crashtest` shows what it found: a table, the fault points, and each failure
with its commands.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from recovery.harness.simulation.fault_points import TABLE
from segmentstore.cli import output
from segmentstore.cli.crashtest_runs import RunDescription, RunOutcome, ShownFailure

_FAILURES_SHOWN = 5


def show(outcome: RunOutcome, *, points: bool, as_json: bool) -> None:
    """The result of many runs."""
    if as_json:
        output.print_json({**output.to_plain(outcome), "points_known": len(TABLE)})
        return
    out = output.out()
    rows = {
        "mode": outcome.mode,
        "workload": outcome.workload,
        "seed": outcome.seed,
        **outcome.numbers,
        "seconds": outcome.seconds,
    }
    if outcome.points:
        rows["fault points met"] = f"{len(outcome.points)} of {len(TABLE)}"
    out.print(output.pairs(None, rows))
    if points:
        out.print(_points(outcome.points))
    for failure in outcome.failures[:_FAILURES_SHOWN]:
        _show_failure(failure)
    if outcome.failed > _FAILURES_SHOWN:
        sys.stdout.write(f"\nand {outcome.failed - _FAILURES_SHOWN:,} more that failed\n")
    if outcome.folder:
        sys.stdout.write(f"\nfiles of what failed are kept in {outcome.folder}\n")
    if outcome.interrupted:
        sys.stdout.write("interrupted: these are the figures until then\n")
    sys.stdout.write("\nRULES WERE BROKEN\n" if outcome.failed else "no rule was broken\n")


def show_run(description: RunDescription, *, as_json: bool) -> None:
    """One run in full: its effects on the outside, then its calls in words, then the verdict."""
    if as_json:
        output.print_json(description)
        return
    if description.trace:
        _write("effects on the outside, with the microsecond they came in:", *description.trace, "")
    _write("what happened:", *description.lines, "")
    if description.digest:
        _write(f"digest of the trace: {description.digest}")
    _write(*(f"VIOLATION {violation}" for violation in description.violations))
    _write(
        f"{description.name}: RULES WERE BROKEN"
        if description.violations
        else f"{description.name}: no rule was broken"
    )


def _show_failure(failure: ShownFailure) -> None:
    _write("", f"FAILED {failure.name}", *(f"  {violation}" for violation in failure.violations))
    if failure.replay:
        _write(f"  again, with its trace:  {failure.replay}")
    if failure.retry:
        _write(f"  the same kinds of kills once more:  {failure.retry}")
    if failure.plan_replay:
        _write(f"  what it was shrunk to:  {failure.plan_replay}")
    _write(*(f"    {line}" for line in failure.lines))


def _points(points: Mapping[str, int]) -> object:
    rows = [(name, points.get(name, 0), meaning) for name, meaning in TABLE.items()]
    return output.table("Fault points", ["name", "met", "meaning"], rows)


def _write(*lines: str) -> None:
    # Not through a table or a console: nothing may break these lines, they are searched and copied.
    sys.stdout.write("".join(f"{line}\n" for line in lines))
