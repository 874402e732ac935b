"""`segmentstore bench`: the cases of the bench suite, on this machine."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import CommandError, ExitCode


def bench_command(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE...]", help="Which; all if none is named.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: minutes become seconds.")
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Measure this machine: the floor of its disk, the bare skeleton, and the engine beside them.

    In a source checkout only.
    """
    try:
        # Not at the top: the suite is no part of the engine and loads what only it needs.
        from bench import suite  # noqa: PLC0415
    except ImportError:
        detail = (
            "the bench suite is not installed with the package: run `make bench` in a "
            "checkout of the source"
        )
        raise CommandError(detail) from None

    unknown = sorted(set(cases or ()) - set(suite.CASES))
    if unknown:
        output.print_error(
            f"no such case: {', '.join(unknown)}; there are {', '.join(suite.CASES)}"
        )
        raise typer.Exit(ExitCode.USAGE)
    # The suite shows its tables as it goes; with --json they are progress, not the result.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        results = suite.run(cases or None, quick, None)
    if as_json:
        output.print_json(results)
