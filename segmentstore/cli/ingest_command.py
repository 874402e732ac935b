"""`segmentstore ingest`: the command around `ingest`, with its progress bar."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from segmentstore.cli import output
from segmentstore.cli.ingest import WRITERS, WRITERS_MAX, IngestProgress, IngestReport, ingest
from segmentstore.cli.ingest_plan import PlannedFile, plan_files
from segmentstore.cli.stores import cluster_at, with_store
from segmentstore.contracts.byte_sizes import format_size

if TYPE_CHECKING:
    from segmentstore import StoreApi


def ingest_command(
    store: output.StoreArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Files, and directories to walk.", exists=True),
    ],
    prefix: Annotated[str, typer.Option(help="Put before each segment's name.")] = "",
    writers: Annotated[
        int, typer.Option(min=1, max=WRITERS_MAX, help="Files written at once.")
    ] = WRITERS,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Make each text file a segment, each line (with its newline) one event of an exactly-once
    writer.

    A directory's files are named by their path in it. Interrupted and run again, it goes on where
    it was: no line is lost or doubled.
    """
    folder = Path(store) if cluster_at(store) is None else None
    planned = plan_files(paths, prefix=prefix, store=folder)

    async def run(opened: StoreApi) -> IngestReport:
        if as_json:
            return await ingest(opened, planned, writers=writers)
        return await _with_bar(opened, planned, writers)

    report = with_store(store, run, create=True, take_over=take_over)
    numbers = {**dataclasses.asdict(report), "appends_per_second": report.appends_per_second}
    if as_json:
        output.print_json(numbers)
        return
    shown = {
        "files": report.files,
        "lines": report.lines,
        "bytes": format_size(report.bytes),
        "there before": f"{report.lines_before:,} lines, {format_size(report.bytes_before)}",
        "seconds": report.seconds,
        "acknowledged appends/s": round(report.appends_per_second),
    }
    if not report.lines_before:
        del shown["there before"]
    output.out().print(output.pairs(None, shown))


async def _with_bar(store: StoreApi, planned: list[PlannedFile], writers: int) -> IngestReport:
    """Ingest under a progress bar on stderr; it is drawn on a terminal only."""
    console = output.err()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        shown = bar.add_task("ingest", total=sum(item.size for item in planned), rate="")
        return await ingest(
            store, planned, writers=writers, on_progress=_BarUpdate(bar, shown, len(planned))
        )


class _BarUpdate:
    """Carries the numbers of an ingest to its bar."""

    def __init__(self, bar: Progress, shown: TaskID, files: int) -> None:
        self._bar = bar
        self._shown = shown
        self._files = files

    def __call__(self, progress: IngestProgress) -> None:
        elapsed = self._bar.tasks[0].elapsed
        rate = f"{progress.lines / elapsed:,.0f} lines/s" if elapsed else ""
        self._bar.update(
            self._shown,
            completed=progress.bytes + progress.bytes_before,
            description=f"{progress.files}/{self._files} files",
            rate=rate,
        )
