"""`segmentstore restore --at`: a new store that is what another one was at a moment."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import refuse_cluster, require_store, run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from recovery.moments import Moment
    from recovery.restore_past import PastReport
    from segmentstore.past_store import ArchiveTraffic, PastStore

_LOSSES_MAX = 1000
"""Lines for people; programs get all."""


def restore_at(
    source: str,
    new_store: str,
    at: str,
    *,
    container: int | None,
    archive: str | None,
    tier2: str | None,
    tier1: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make the store of the moment `at`, and say what came of it; ends as `restore` does."""
    # Not at the top: the other commands do not pay for it.
    from recovery.moments import parse_moment  # noqa: PLC0415

    moment = parse_moment(at)
    refuse_cluster(source, "name the folder of one of its hosts")
    if "://" in source:
        if archive is None:
            detail = "the folder would say where the archive is: without one name it by --archive"
            raise InvalidArgumentError("archive", None, detail)
    elif archive is not None:
        raise InvalidArgumentError("archive", archive, "the store's own settings say where it is")
    else:
        require_store(source)
    refuse_cluster(new_store, "a store is restored into a folder: name one; --tier1 says more")
    report, traffic = run(
        _restore(source, new_store, moment, container, archive, tier2, tier1, dry_run=dry_run)
    )
    harmful = any(finding.severity is Severity.HARMFUL for finding in report.findings)
    if as_json:
        output.print_json({**_plain(report, traffic), "harmful": harmful})
    else:
        _show(report)
        output.out().print(
            f"the archive was asked {traffic.requests:,} times and sent "
            f"{format_size(traffic.bytes_received)}"
        )
    if harmful:
        raise typer.Exit(ExitCode.CORRUPTION)
    if report.losses:
        raise typer.Exit(ExitCode.LOSS)


async def _restore(
    source: str,
    new_store: str,
    moment: Moment,
    container: int | None,
    archive: str | None,
    tier2: str | None,
    tier1: str,
    *,
    dry_run: bool,
) -> tuple[PastReport, ArchiveTraffic]:
    from recovery.restore_past import restore_past  # noqa: PLC0415
    from segmentstore.tier1 import make_log_factory  # noqa: PLC0415

    runtime = Runtime()
    logs = make_log_factory(tier1, new_store, os.environ, runtime)
    await logs.open()
    try:
        async with await _past(source, archive, runtime) as past:
            report = await restore_past(
                past.source,
                moment,
                new_store,
                runtime,
                container_id=container,
                tier2=tier2,
                logs=logs,
                dry_run=dry_run,
            )
            return report, past.archive_traffic()
    finally:
        await logs.close()


async def _past(source: str, archive: str | None, runtime: Runtime) -> PastStore:
    from segmentstore.past_store import open_lost, open_past  # noqa: PLC0415

    if archive is not None:
        return await open_lost(source, archive, runtime, os.environ)
    return await open_past(source, os.environ, runtime)


def _plain(report: PastReport, traffic: ArchiveTraffic) -> dict[str, Any]:
    document: dict[str, Any] = {
        field.name: getattr(report, field.name) for field in dataclasses.fields(report)
    }
    document["archive_requests"] = traffic.requests
    document["archive_bytes_received"] = traffic.bytes_received
    document["restored_bytes"] = report.restored_bytes
    document["lost_bytes"] = report.lost_bytes
    document["losses"] = [output.to_plain(loss) for loss in report.losses]
    return document


def _show(report: PastReport) -> None:
    from recovery.moments import shown_time  # noqa: PLC0415

    out = output.out()
    columns = (
        "container",
        "operation",
        "time",
        "segments",
        "replayed",
        "from objects",
        "from the log",
        "lost",
    )
    rows = (
        (
            each.container_id,
            str(each.sequence_number),
            shown_time(each.timestamp_ms),
            len(each.segments),
            each.operations,
            format_size(each.bytes_from_objects),
            format_size(each.bytes_from_history),
            format_size(sum(loss.length for loss in each.losses)),
        )
        for each in report.containers
    )
    out.print(output.table(None, columns, rows))
    for container in report.containers:
        for damage in container.damage:
            out.print(f"damaged: container {container.container_id}, {damage}")
        for segment in container.segments:
            for note in segment.notes:
                out.print(f"note: segment {segment.name!r}: {note}")
    for loss in report.losses[:_LOSSES_MAX]:
        out.print(
            f"lost: segment {loss.segment!r} of container {loss.container_id}, offsets "
            f"{loss.start_offset:,} to {loss.end_offset:,}, {format_size(loss.length)}: "
            f"{loss.reason}"
        )
    if len(report.losses) > _LOSSES_MAX:
        out.print(f"lost: {len(report.losses) - _LOSSES_MAX:,} stretches more (--json names all)")
    for finding in report.findings:
        out.print(f"{finding.severity.value} {finding.kind}: {finding.place}: {finding.detail}")
    what = f"{format_size(report.restored_bytes)}, {format_size(report.lost_bytes)} lost"
    if report.dry_run:
        out.print(f"store {report.old_store_id} at {report.moment} would be {what}; nothing made")
        return
    out.print(
        f"{report.location}: store {report.store_id}, which is store {report.old_store_id} at "
        f"{report.moment}: {what}; its objects are in {report.tier2}"
    )
