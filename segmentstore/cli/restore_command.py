"""`segmentstore restore`: a store made anew from what Tier 2 holds, when its log and its disk are
lost.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.restore_past_command import restore_at
from segmentstore.cli.stores import refuse_cluster, run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from recovery.restore_report import RestoreReport, SegmentRestore

_LOSSES_MAX = 1000
"""Lines for people; programs get all."""
_WARNING = (
    "The old store must never run on this bucket again: from its first opening on the new "
    "one writes there, and deletes."
)


def restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL|STORE",
            help="Where the objects are, e.g. s3://bucket/prefix; with --at also the folder of a "
            "store.",
        ),
    ],
    new_store: Annotated[
        str, typer.Argument(metavar="NEW_STORE", help="Folder to make, absent or empty.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be restored; make nothing.")
    ] = False,
    predecessors: Annotated[
        bool,
        typer.Option(
            "--predecessors",
            help="Several stores were here one after another, each restored from the last.",
        ),
    ] = False,
    store_id: Annotated[
        str | None,
        typer.Option(
            metavar="UUID", help="The store that is wanted, where several share the place."
        ),
    ] = None,
    tier1: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where its log shall be: file, or bookkeeper://host:port/path, not taken yet.",
        ),
    ] = "file",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="SEQUENCE|TIME|CHECKPOINT",
            help="As of this moment, from the archive of its logs: 123 is an operation, "
            "checkpoint:123 a checkpoint, 2026-01-31T12:00:00Z a time.",
        ),
    ] = None,
    container: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Whose operation or checkpoint --at is; the others are as of its time.",
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --at and a URL: where the archive is."),
    ] = None,
    tier2: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With --at: where the new store has its objects, not its folder."
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Make a store of what Tier 2 holds, when the old one's log is lost; or of what a store was at
    a moment.

    The first changes nothing in Tier 2. It says of each segment to where it was restored, and what
    is known to be missing. With --at a store is only read, and may run on; the new one shares
    nothing with it. Ends with 6 if bytes cannot be had any more, and names them; with 3 if the new
    store is not sound.
    """
    if at is not None:
        if predecessors or store_id is not None:
            raise typer.BadParameter("--predecessors and --store-id do not go with --at")
        restore_at(
            source,
            new_store,
            at,
            container=container,
            archive=archive,
            tier2=tier2,
            tier1=tier1,
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    if container is not None or archive is not None or tier2 is not None:
        raise typer.BadParameter("--container, --archive and --tier2 go with --at")
    # Not at the top: the other commands do not pay for what rebuilds everything.
    from segmentstore.contracts.findings import Severity  # noqa: PLC0415

    with ExitStack() as shown:
        console = output.err()
        progress = shown.enter_context(
            Progress(console=console, transient=True, disable=not console.is_terminal)
        )
        task = progress.add_task("objects checked", total=None)
        report = run(
            _restore(
                source,
                new_store,
                tier1,
                dry_run=dry_run,
                predecessors=predecessors,
                store_id=store_id,
                on_progress=lambda _container, objects: progress.advance(task, objects),
            )
        )
    harmful = any(finding.severity is Severity.HARMFUL for finding in report.findings)
    if as_json:
        output.print_json({**_plain(report), "harmful": harmful, "warning": _WARNING})
    else:
        _show(report)
    if harmful:
        raise typer.Exit(ExitCode.CORRUPTION)
    if report.has_loss:
        raise typer.Exit(ExitCode.LOSS)


async def _restore(tier2: str, new_store: str, tier1: str, **options: Any) -> RestoreReport:
    from recovery.restore import restore_store  # noqa: PLC0415
    from segmentstore.tier1 import make_log_factory  # noqa: PLC0415

    refuse_cluster(new_store, "a store is restored into a folder: name one; --tier1 says more")
    runtime = Runtime()
    logs = make_log_factory(tier1, new_store, os.environ, runtime)
    await logs.open()
    try:
        return await restore_store(tier2, new_store, runtime, logs=logs, **options)
    finally:
        await logs.close()


def _plain(report: RestoreReport) -> dict[str, Any]:
    """The report without the metadata it was made from."""
    document: dict[str, Any] = {
        field.name: getattr(report, field.name) for field in dataclasses.fields(report)
    }
    for name in (
        "restored_bytes",
        "missing_bytes",
        "lost_bytes",
        "unflushed_bytes",
        "unclear_bytes",
        "has_loss",
    ):
        document[name] = getattr(report, name)
    document["losses"] = [output.to_plain(loss) for loss in report.losses]
    document["containers"] = [
        {
            **{field.name: getattr(each, field.name) for field in dataclasses.fields(each)},
            "segments": [
                {**output.to_plain(segment), "missing": segment.missing_bytes}
                for segment in each.segments
            ],
            "checkpoint": None
            if each.checkpoint is None
            else {
                field.name: getattr(each.checkpoint, field.name)
                for field in dataclasses.fields(each.checkpoint)
                if field.name != "metadata"
            },
        }
        for each in report.containers
    ]
    return document


def _show(report: RestoreReport) -> None:
    out = output.out()
    if report.segments:
        columns = (
            "container",
            "segment",
            "from",
            "restored to",
            "known length",
            "missing",
            "gaps",
            "notes",
        )
        out.print(output.table(None, columns, (_row(segment) for segment in report.segments)))
    for container in report.containers:
        out.print(
            f"container {container.container_id}: {_source(container.checkpoint)}; "
            f"{container.objects:,} objects,",
            end="",
        )
        out.print(
            f" {container.surveyed:,} walked by their headers, {container.passed_over:,} "
            "passed over"
        )
        for damage in container.damaged:
            out.print(f"  damaged: {damage}")
    for note in report.notes:
        out.print(f"note: {note}")
    if report.others_objects:
        out.print(
            f"note: {report.others_objects:,} objects of other stores, or of unknown "
            "owner, were left alone"
        )
    _show_losses(report)
    for finding in report.findings:
        out.print(f"{finding.severity.value} {finding.kind}: {finding.place}: {finding.detail}")
    total = (
        f"{len(report.segments):,} segments, {format_size(report.restored_bytes)},"
        f" {format_size(report.missing_bytes)} known to be missing"
    )
    if report.missing_bytes:
        total += (
            f" ({format_size(report.lost_bytes)} lost in Tier 2, "
            f"{format_size(report.unflushed_bytes)} with the log)"
        )
    if report.dry_run:
        out.print(f"{report.url} would give {total}; nothing was made")
        return
    out.print(f"{report.location}: store {report.store_id} restored from {report.url}: {total}")
    out.print(_WARNING)


def _show_losses(report: RestoreReport) -> None:
    out = output.out()
    losses = report.losses
    for loss in losses[:_LOSSES_MAX]:
        where = f"object {loss.object_name}" if loss.object_name else "no object known"
        out.print(
            f"lost: segment {loss.segment!r} of container {loss.container_id},"
            f" offsets {loss.start_offset:,} to {loss.end_offset:,}, "
            f"{format_size(loss.length)}: {where}: {loss.reason}"
        )
    if len(losses) > _LOSSES_MAX:
        out.print(f"lost: {len(losses) - _LOSSES_MAX:,} stretches more (--json names all)")
    for container in report.containers:
        for name in container.unreadable[:_LOSSES_MAX]:
            out.print(
                f"lost: object {name} of container {container.container_id} cannot be "
                "read; what else it held is unknown"
            )
    if report.unclear_bytes:
        unclear = format_size(report.unclear_bytes)
        out.print(
            f"note: {unclear} before all that was found of segments no checkpoint knows: "
            "truncated, or lost"
        )


def _row(segment: SegmentRestore) -> tuple[object, ...]:
    gaps = ", ".join(f"{gap.start_offset:,} to {gap.end_offset:,}" for gap in segment.gaps)
    return (
        segment.container_id,
        segment.name,
        segment.start_offset,
        segment.restored_to,
        segment.known_length,
        segment.missing_bytes,
        gaps,
        "; ".join(segment.notes),
    )


def _source(checkpoint: Any) -> str:
    if checkpoint is None:
        return "no checkpoint"
    taken = datetime.fromtimestamp(checkpoint.time_ms / 1000, UTC)
    return f"{checkpoint.kind} of {output.cell(taken)} UTC, epoch {checkpoint.epoch}"
