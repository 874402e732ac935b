"""`segmentstore archive`: the archive of a store's logs: filled now, listed, and parts of it
deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import print_what_is_left_out, with_store
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.reports import ArchivedEntry, OffloadReport

if TYPE_CHECKING:
    from segmentstore import StoreApi

app = typer.Typer(no_args_is_help=True, help="The archive of a store's logs.")

_PAGE = 1000
"""Rows of the table for people; programs get all."""


@app.command(name="run")
def run_command(
    store: output.StoreArgument,
    before: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEQUENCE", help="Only parts whose operations are all before."),
    ] = None,
    container: Annotated[
        int | None, typer.Option(min=0, help="Only the log of this container.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Archive the sealed parts of the log now, whatever their age.

    Ends with 5 if one could not be archived; those behind it in its log were not tried then.
    """

    async def offload(opened: StoreApi) -> list[OffloadReport]:
        print_what_is_left_out(opened, "parts")
        return await opened.offload_prefix(before, container)

    reports = with_store(store, offload)
    failed = any(part.failure for report in reports for part in report.parts)
    if as_json:
        output.print_json({"store": store, "containers": reports})
    else:
        _print_reports(store, reports)
    if failed:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _print_reports(store: str, reports: Sequence[OffloadReport]) -> None:
    rows = [
        (
            report.container_id,
            part.number,
            part.ledger_id,
            format_size(part.length),
            part.last_sequence,
            part.failure or "archived",
        )
        for report in reports
        for part in report.parts
    ]
    if rows:
        columns = ("container", "part", "ledger", "size", "last operation", "result")
        output.out().print(output.table(None, columns, rows))
    for report in reports:
        done = sum(part.failure is None for part in report.parts)
        output.out().print(
            f"{store}: container {report.container_id}: {done:,} parts archived; the first "
            f"operation that is not in the archive is {report.first_not_archived:,} or later"
        )


@app.command(name="ls")
def ls_command(store: output.StoreArgument, as_json: output.JsonOption = False) -> None:
    """List the parts of logs that are in the archive."""

    async def listed(opened: StoreApi) -> list[ArchivedEntry]:
        print_what_is_left_out(opened, "parts")
        return [each async for each in opened.list_archived_parts()]

    parts = with_store(store, listed)
    if as_json:
        output.print_json_lines(part._asdict() for part in parts)
        return
    columns = ("container", "part", "ledger", "operations", "until", "entries", "size", "state")
    rows = [
        (
            part.container_id,
            part.number,
            part.ledger_id,
            f"{part.first_sequence}-{part.last_sequence}",
            datetime.fromtimestamp(part.last_ms / 1000, UTC),
            part.entries,
            format_size(part.length),
            part.state,
        )
        for part in parts
    ]
    for begin in range(0, len(rows), _PAGE):
        output.out().print(output.table(None, columns, rows[begin : begin + _PAGE]))
    size = format_size(sum(part.length for part in parts))
    output.out().print(f"{store}: {len(parts):,} parts, {size}")


@app.command(name="rm")
def rm_command(
    store: output.StoreArgument,
    before: Annotated[
        int,
        typer.Option(
            min=1, metavar="SEQUENCE", help="Parts all of whose operations are before this one."
        ),
    ],
    container: Annotated[int, typer.Option(min=0, help="Of the log of this container.")] = 0,
    as_json: output.JsonOption = False,
) -> None:
    """Delete the oldest parts from the archive; what the log may not delete yet stays in both."""
    removed = with_store(store, lambda opened: opened.remove_archived_parts(before, container))
    if as_json:
        output.print_json({"store": store, "container": container, "parts": removed.parts})
    else:
        output.out().print(f"{store}: {removed.parts:,} parts deleted from the archive")
