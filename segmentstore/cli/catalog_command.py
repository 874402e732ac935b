"""`segmentstore catalog`: snapshots of the catalog in Tier 2, which jobs read: taken now, and
listed.

The catalog of a stopped store is what its log adds up to. Of a store that another process has open
only that process knows it. It is asked in the store's folder, or through the mailbox in Tier 2.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import CommandError, ExitCode
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.cli.stores import cluster_at, not_served, require_store, run, through_owner
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import SegmentStoreError, StoreInUseError, TierUnavailableError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import merge_settings
from segmentstore.store_file import StoreFile

if TYPE_CHECKING:
    from segmentstore import ClusterStore, RemoteStore
    from segmentstore.contracts.reports import CatalogExport
    from tier2.catalog.catalog_snapshots import ListedSnapshot

app = typer.Typer(
    help="Snapshots of the catalog in Tier 2, for jobs that never see the store.",
    no_args_is_help=True,
)

_ROWS_MAX = 1000
"""Rows of a table for people; programs get all."""
_CHECK_INTERVAL_S = 0.5
"""From one search for answers to the next."""


@app.command()
def export(
    store: output.StoreArgument,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long to wait for a process that has the store open.",
        ),
    ] = 120.0,
    as_json: output.JsonOption = False,
) -> None:
    """Put a snapshot of the catalog of every container into Tier 2: Parquet, and a manifest by
    which it exists.

    The process that has the store open is asked: in the store's folder, or, where it does not
    listen or serve all containers, by a message in Tier 2. That it answers when it next checks
    (`mailbox_poll_interval_s`).
    """
    problems: list[str] = []
    exports = _export_through_owner(store)
    asked = exports is not None
    if exports is None:
        found = _export_stopped(store)
        asked = isinstance(found, SegmentStoreError)
        if isinstance(found, SegmentStoreError):
            exports, problems = run(_ask(store, timeout, found))
        else:
            exports = found
    if as_json:
        output.print_json(
            {"store": store, "asked": asked, "snapshots": exports, "problems": problems}
        )
    elif exports:
        columns = (
            "container",
            "epoch",
            "sequence number",
            "segments",
            "chunks",
            "objects",
            "size",
            "manifest",
        )
        rows = [
            (
                each.container_id,
                each.epoch,
                each.sequence_number,
                each.rows["segments"],
                each.rows["chunks"],
                each.rows["objects"],
                format_size(each.size),
                each.manifest,
            )
            for each in exports
        ]
        output.out().print(output.table(None, columns, rows[:_ROWS_MAX]))
    for problem in problems:
        output.print_error(problem)
    if problems:
        raise typer.Exit(ExitCode.UNAVAILABLE)
    if not as_json:
        output.out().print(f"{store}: {len(exports):,} containers exported")


@app.command()
def ls(store: output.FolderArgument, as_json: output.JsonOption = False) -> None:
    """List the snapshots of a store's catalog, whether a process has it open or not."""
    listed = run(_list(store))
    rows = [
        {
            "container": each.name.container_id,
            "epoch": each.name.epoch,
            "sequence_number": each.name.sequence_number,
            "written": datetime.fromtimestamp(each.modified_ms / 1000, UTC),
            "size": sum(stored.size for stored in each.objects),
            "whole": each.manifest is not None,
            "name": each.name.prefix,
        }
        for each in listed
    ]
    if as_json:
        output.print_json_lines(rows)
        return
    if rows:
        shown = [
            (*list(row.values())[:4], format_size(int(str(row["size"]))), row["whole"], row["name"])
            for row in rows
        ]
        columns = ("container", "epoch", "sequence number", "written", "size", "whole", "name")
        output.out().print(output.table(None, columns, shown[-_ROWS_MAX:]))
    output.out().print(f"{store}: {len(rows):,} snapshots")


def _export_through_owner(location: str) -> list[CatalogExport] | None:
    """As the process that has all containers does it, or the hosts of a cluster; None if none
    listens in the folder.
    """

    async def asked(owner: RemoteStore | ClusterStore) -> list[CatalogExport] | None:
        return None if not_served(owner) else await owner.export_catalog()

    if cluster_at(location) is None:
        require_store(location)
    reached = through_owner(location, asked)
    return None if reached is None else reached[0]


def export_stopped(location: str) -> list[CatalogExport] | None:
    """The catalogs of a store that no process has open, exported; None if one has it."""
    found = _export_stopped(location)
    return None if isinstance(found, SegmentStoreError) else found


def _export_stopped(location: str) -> list[CatalogExport] | SegmentStoreError:
    """As `export_stopped`; or the error that shows that a process has it open."""
    from durablelog.bookkeeper.frame_reports import LedgerStillOpenError  # noqa: PLC0415

    require_extra("arrow", "an export of the catalog")
    store_id = _store_file(location).store_id
    with ExitStack() as locks:
        try:
            move = "it was asked by a message"
            stopped = locks.enter_context(StoppedStore(location, move=move))
            time_ms = stopped.runtime.clock.time_ms()
            return [
                run(_export_one(stopped, container_id, last_epoch, store_id, time_ms))
                for container_id in stopped.container_ids
                if (last_epoch := stopped.logs.last_epoch(container_id)) is not None
            ]
        except (StoreInUseError, LedgerStillOpenError) as error:
            return error


async def _export_one(
    stopped: StoppedStore, container_id: int, epoch: int, store_id: str, time_ms: int
) -> CatalogExport:
    from segmentstore.catalog_export import export_metadata  # noqa: PLC0415
    from tier2.locations import open_object_storage  # noqa: PLC0415

    metadata = await stopped.metadata(container_id)
    stopped.logs.check_undisturbed()
    storage = open_object_storage(stopped.tier2_url, stopped.runtime)
    try:
        return await export_metadata(
            storage,
            stopped.runtime,
            metadata,
            store_id=store_id,
            containers=len(stopped.container_ids),
            epoch=epoch,
            time_ms=time_ms,
        )
    finally:
        await storage.close()


async def _ask(
    location: str, timeout_s: float, in_use: Exception
) -> tuple[list[CatalogExport], list[str]]:
    """Ask the owners of the containers; the results, and the refusals."""
    from segmentstore.catalog_export import export_of  # noqa: PLC0415
    from tier2.catalog.catalog_format_error import CatalogFormatError  # noqa: PLC0415
    from tier2.catalog.catalog_snapshots import manifest_named  # noqa: PLC0415
    from tier2.locations import open_object_storage  # noqa: PLC0415
    from tier2.mailbox.mailbox import put_message, wait_for_answers  # noqa: PLC0415
    from tier2.mailbox.messages import ExportRequest  # noqa: PLC0415
    from tier2.object_storage import StorageUnavailableError  # noqa: PLC0415
    from tier2.retried_reads import RetriedCalls  # noqa: PLC0415
    from tier2.spark.common.owner_bell import wake_owner  # noqa: PLC0415

    runtime = Runtime()
    store_id = _store_file(location).store_id
    job_id = f"{runtime.random.getrandbits(64):016x}"
    requests = [
        ExportRequest(container_id, job_id, "export", store_id)
        for container_id in range(_containers(location))
    ]
    storage = open_object_storage(_tier2_url(location), runtime)
    retried = RetriedCalls(storage)
    exports, problems = [], []
    try:
        for request in requests:
            await put_message(retried, runtime, request)
        await wake_owner(location, runtime)
        answers = await wait_for_answers(
            storage, [request.key for request in requests], timeout_s, _CHECK_INTERVAL_S
        )
        for request in requests:
            answer = answers.get(request.key)
            if answer is None:
                problems.append(
                    f"container {request.container_id}: {in_use}; no answer within "
                    f"{timeout_s:g} s: its process polls every"
                    " mailbox_poll_interval_s, where that is not 0"
                )
            elif answer.verdict != "exported":
                problems.append(
                    f"container {request.container_id}: {answer.verdict}: {answer.reason}"
                )
            else:
                exports.append(
                    export_of(await manifest_named(retried, str(answer.detail.get("manifest"))))
                )
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    except CatalogFormatError as error:
        raise CommandError(str(error)) from error
    finally:
        await storage.close()
    return exports, problems


async def _list(location: str) -> list[ListedSnapshot]:
    require_extra("arrow", "the inspection of catalogs")
    from tier2.catalog.catalog_snapshots import list_snapshots  # noqa: PLC0415
    from tier2.locations import open_object_storage  # noqa: PLC0415
    from tier2.object_storage import StorageUnavailableError  # noqa: PLC0415
    from tier2.retried_reads import RetriedReads  # noqa: PLC0415

    store_id = _store_file(location).store_id
    storage = RetriedReads(open_object_storage(_tier2_url(location), Runtime()))
    try:
        return [each for each in await list_snapshots(storage) if each.name.is_of(store_id)]
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    finally:
        await storage.close()


def _store_file(location: str) -> StoreFile:
    from segmentstore.store_folder import read_store_file  # noqa: PLC0415

    require_store(location)
    file = read_store_file(location, Runtime())
    assert file is not None, location
    return file


def _tier2_url(location: str) -> str:
    from segmentstore.store_folder import tier2_url  # noqa: PLC0415

    return tier2_url(
        location, merge_settings({}, {}, _store_file(location).settings, existing=True)
    )


def _containers(location: str) -> int:
    return int(str(_store_file(location).settings["containers"]))
