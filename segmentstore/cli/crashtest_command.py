"""`segmentstore crashtest`: the recovery testing harness on this machine: crashes by the thousand,
and a judgement.

The command alone is here: what may be asked for, and what the answer means to the shell.
`crashtest_options` says what goes together, `crashtest_runs` runs, `crashtest_show` shows.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from segmentstore.cli import output
from segmentstore.cli.crashtest_options import check_options
from segmentstore.cli.exit_codes import CommandError, ExitCode, sentence
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.folders import checked_folder

if TYPE_CHECKING:
    from recovery.harness.runs.plan import Plan
    from segmentstore.cli.crashtest_runs import Asked, RunDescription, RunOutcome

DEFAULT_WORKLOAD = "default"
_PREFIX = "segmentstore-crashtest-"
VIOLATED = ExitCode.REFUSED
"""Some run broke a rule."""


class Mode(enum.StrEnum):
    """How crashes are made."""

    SIMULATE = "simulate"
    KILL = "kill"
    ENUMERATE = "enumerate"


def crashtest_command(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Option(help="How long, above 0; enumerate ends when it is through.")
    ] = 30.0,
    runs: Annotated[
        int | None,
        typer.Option(min=1, help="So many runs (kill: openings), however long they take."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Same seed, same runs. By default a random one, which is printed."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help=f"What the clients do, if not named {DEFAULT_WORKLOAD}; a wrong name lists "
            "them all."
        ),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            help="Simulated worlds; real processes (a store begun is carried through, about "
            "28 process runs, whatever "
            "--seconds says); or every crash point."
        ),
    ] = Mode.SIMULATE,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="SEED", help="Describe one run (or crash point), with its trace."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Describe the run of a plan that was kept."),
    ] = None,
    points: Annotated[
        bool, typer.Option("--points", help="Show each fault point, and how often it was met.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Where plans of failures and killed stores are kept; by default a new "
            "temporary one, removed if nothing fails.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--no-exact", help="Kill: at exact system calls too, which needs strace."
        ),
    ] = True,
    depth: Annotated[
        int, typer.Option(min=0, max=3, help="Enumerate: workloads of up to so many operations.")
    ] = 3,
    as_json: output.JsonOption = False,
) -> None:
    """Crash the store again and again, in a simulated world or for real, and check that nothing is
    lost.

    Exit code 1 means that a rule was broken: the failing seed is reported, with the command that
    replays it. Exit code 2 means that the command is wrong, or cannot be carried out here. Ctrl-C
    shows the figures until then, and ends with 130.
    """
    require_extra("harness", "segmentstore crashtest")
    # Not at the top: the harness loads the engine and much beside, and no other command needs it.
    from segmentstore.cli import crashtest_modes, crashtest_runs, crashtest_show  # noqa: PLC0415

    try:
        check_options(mode, _given(context))
    except CommandError as error:
        _refuse(sentence(error))
    if not seconds > 0:
        _refuse(f"--seconds must be above 0, and is {seconds:g}")
    workload = workload if workload is not None else DEFAULT_WORKLOAD
    _check_workload(workload, mode)
    if plan is not None or replay is not None:
        description = _described(mode, workload, replay or "", plan)
        crashtest_show.show_run(description, as_json=as_json)
        raise typer.Exit(VIOLATED if description.violations else ExitCode.DONE)
    asked = crashtest_runs.Asked(
        seconds=seconds,
        runs=runs,
        seed=seed if seed is not None else secrets.token_hex(4),
        workload=workload,
        jobs=jobs if jobs is not None else len(os.sched_getaffinity(0)),
        folder=Path(
            checked_folder(folder, "--folder")
            if folder is not None
            else tempfile.mkdtemp(prefix=_PREFIX)
        ),
        exact=exact,
        depth=depth,
    )
    try:
        outcome = _carried_out(crashtest_modes.RUNNERS[mode], asked)
    except CommandError as error:
        _refuse(sentence(error))
    finally:
        if folder is None:
            # Nothing but what failed leaves files there.
            with contextlib.suppress(OSError):
                asked.folder.rmdir()
    crashtest_show.show(outcome, points=points, as_json=as_json)
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(VIOLATED if outcome.failed else ExitCode.DONE)


def _carried_out(runner: Callable[[Asked], RunOutcome], asked: Asked) -> RunOutcome:
    """What was run, until the end or until Ctrl-C."""
    from recovery.harness.interrupts import deferred, stop_asked  # noqa: PLC0415 - as above

    with deferred(
        lambda: output.print_error(
            "stopping after what is under way; Ctrl-C once more ends at once"
        )
    ):
        outcome = runner(asked)
        outcome.interrupted = stop_asked()
    if asked.folder.is_dir() and any(asked.folder.iterdir()):
        outcome.folder = str(asked.folder)
    return outcome


def _described(mode: Mode, workload: str, replay: str, plan: Path | None) -> RunDescription:
    """One run, or one crash point, once more."""
    from segmentstore.cli import crashtest_modes, crashtest_runs  # noqa: PLC0415 - as above

    if plan is not None:
        return crashtest_runs.describe_plan(_read_plan(plan))
    if mode is not Mode.ENUMERATE:
        return crashtest_runs.describe_seed(replay, workload)
    try:
        return crashtest_modes.describe_point(replay)
    except CommandError as error:
        _refuse(sentence(error))


# --- what makes no sense is refused before anything is run ----------------------------------------


def _given(context: typer.Context) -> dict[str, object]:
    """What stands on the command line itself; defaults do not."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name: context.params[name]
        for name, source in sources.items()
        if source and source.name == "COMMANDLINE"
    }


def _check_workload(workload: str, mode: Mode) -> None:
    from recovery.harness.workloads.catalogue import (  # noqa: PLC0415 - as above
        BY_NAME,
        SIMULATED_ALONE,
    )

    if workload not in BY_NAME:
        there = "; ".join(f"{each.name} ({each.description})" for each in BY_NAME.values())
        _refuse(f"no such workload: {workload}; there are {there}")
    if workload in SIMULATED_ALONE and mode is not Mode.SIMULATE:
        _refuse(f"--mode {mode} has no workload {workload}: its hosts are simulated")


def _read_plan(path: Path) -> Plan:
    from recovery.harness.runs.plan import Plan  # noqa: PLC0415 - as above

    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        _refuse(f"{path} is not a plan: {type(error).__name__}: {error}")
    _check_workload(plan.workload, Mode.SIMULATE)
    return plan


def _refuse(message: str) -> NoReturn:
    output.print_error(message)
    raise typer.Exit(ExitCode.USAGE)
