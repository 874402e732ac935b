"""`segmentstore crashtest`: the recovery testing harness on this machine: crashes by the thousand, and a judgement.

The command alone is here: what may be asked for, and what the answer means to the shell. `crashtest_runs` runs,
`crashtest_show` shows.
"""

from __future__ import annotations

import enum
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from recovery.harness.runs.plan import Plan

VIOLATED = ExitCode.REFUSED
"""Some run broke a rule."""


class Mode(enum.StrEnum):
    """How crashes are made."""

    SIMULATE = "simulate"
    KILL = "kill"
    ENUMERATE = "enumerate"


def crashtest_command(
    seconds: Annotated[float, typer.Option(min=0, help="How long; enumerate ends when it is through.")] = 30.0,
    runs: Annotated[int | None, typer.Option(min=1, help="So many runs (kill: lives), however long they take.")] = None,
    seed: Annotated[
        str | None, typer.Option(help="Same seed, same runs. By default a random one, which is told.")
    ] = None,
    workload: Annotated[str, typer.Option(help="What the clients do; a wrong name lists them all.")] = "default",
    mode: Annotated[Mode, typer.Option(help="Simulated worlds, real processes, or every crash point.")] = Mode.SIMULATE,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")] = None,
    replay: Annotated[
        str | None, typer.Option(metavar="SEED", help="Tell one run (or crash point), with its trace.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Tell the run of a plan that was kept.")
    ] = None,
    points: Annotated[bool, typer.Option("--points", help="Show each fault point, and how often it was met.")] = False,
    folder: Annotated[Path, typer.Option(help="Where plans of failures and killed stores are kept.")] = Path(
        "var/crashtest"
    ),
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Kill: at exact system calls too, which needs strace.")
    ] = True,
    depth: Annotated[int, typer.Option(min=0, max=3, help="Enumerate: workloads of up to so many operations.")] = 3,
    as_json: output.JsonOption = False,
) -> None:
    """Crash the store again and again, in a simulated world or for real, and check that nothing is lost.

    Exit code 1 means that a rule was broken: the failing seed is told, with the command that replays it.
    """
    # Not at the top: the harness loads the engine and much beside, and no other command needs it.
    from segmentstore.cli import crashtest_modes, crashtest_runs, crashtest_show  # noqa: PLC0415

    _check(workload, mode, replay, plan)
    if plan is not None:
        told = crashtest_runs.tell_plan(_read_plan(plan))
    elif replay is not None and mode is Mode.ENUMERATE:
        told = crashtest_modes.tell_point(replay)
    elif replay is not None:
        told = crashtest_runs.tell_seed(replay, workload)
    else:
        asked = crashtest_runs.Asked(
            seconds=seconds,
            runs=runs,
            seed=seed if seed is not None else secrets.token_hex(4),
            workload=workload,
            jobs=jobs if jobs is not None else len(os.sched_getaffinity(0)),
            folder=folder,
            exact=exact,
            depth=depth,
        )
        outcome = crashtest_modes.RUNNERS[mode](asked)
        crashtest_show.show(outcome, points=points, as_json=as_json)
        raise typer.Exit(VIOLATED if outcome.failed else ExitCode.DONE)
    crashtest_show.tell(told, as_json=as_json)
    raise typer.Exit(VIOLATED if told.violations else ExitCode.DONE)


def _check(workload: str, mode: Mode, replay: str | None, plan: Path | None) -> None:
    """Refuse what makes no sense, before anything is run."""
    from recovery.harness.workloads.catalogue import WORKLOADS  # noqa: PLC0415 - as above

    if workload not in WORKLOADS:
        there = "; ".join(f"{each.name} ({each.description})" for each in WORKLOADS.values())
        _refuse(f"no such workload: {workload}; there are {there}")
    if replay is not None and plan is not None:
        _refuse("either --replay or --plan: a plan has its seed in it")
    if replay is not None and mode is Mode.KILL:
        _refuse("a real kill cannot be replayed: when it comes is up to the machine; --seed draws the same kinds again")


def _read_plan(path: Path) -> Plan:
    from recovery.harness.runs.plan import Plan  # noqa: PLC0415 - as above

    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        _refuse(f"{path} is not a plan: {type(error).__name__}: {error}")
    _check(plan.workload, Mode.SIMULATE, None, None)
    return plan


def _refuse(message: str) -> NoReturn:
    output.print_error(message)
    raise typer.Exit(ExitCode.USAGE)
