"""`gc`: searches for garbage in Tier 2 and on BookKeeper, and deletes what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.stopped_store import LET_IT_LISTEN, StoppedStore
from segmentstore.cli.stores import (
    print_what_is_left_out,
    require_store,
    run,
    through_owner,
    with_store,
)
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.reports import GarbageItem, GarbageReport
from segmentstore.contracts.runtime import Runtime
from segmentstore.garbage import StoppedContainer, find_garbage, orphan_ledgers
from segmentstore.settings_sources import merge_settings
from segmentstore.store_folder import read_store_file, tier2_url
from tier2.locations import open_object_storage
from tier2.object_names import marker_name
from tier2.object_storage import StorageUnavailableError
from tier2.store_markers import StoreMarkers

if TYPE_CHECKING:
    from segmentstore import StoreApi

_ROWS_MAX = 1000
"""Rows of the table for people; programs get all."""


def gc(
    store: output.StoreArgument,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing: show what would be deleted."),
    ] = False,
    forget_store: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Another store has its marker where the objects are, and is deleted for good: "
            "remove the marker first.",
        ),
    ] = None,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Collect garbage in Tier 2 now: search all of it for objects that a crash left, abort
    unfinished uploads, delete what is due.

    What is found now is deleted by a later collection, or by the store itself, once the deletion
    lag is over. On BookKeeper, ledgers that a crash left are deleted as well; while an owner of a
    container is alive it is refused, unless --take-over is given.
    """
    if forget_store is not None:
        if dry_run:
            raise typer.BadParameter("--forget-store changes something, --dry-run nothing")
        run(_forget(store, forget_store))
    report = (
        _find(store)
        if dry_run
        else with_store(store, lambda opened: opened.collect_garbage(), take_over=take_over)
    )
    if as_json:
        output.print_json(
            {
                "store": store,
                "dry_run": dry_run,
                "items": report.items,
                "problems": report.problems,
                "notes": report.notes,
            }
        )
        return
    if report.items:
        columns = ("state", "container", "size", "until", "object")
        output.out().print(output.table(None, columns, report.items[:_ROWS_MAX]))
        if len(report.items) > _ROWS_MAX:
            output.out().print(f"and {len(report.items) - _ROWS_MAX:,} more (--json shows all)")
    for sentence in (*report.problems, *report.notes):
        output.out().print(sentence)
    output.out().print(f"{store}: {_summary(report)}")


def _summary(report: GarbageReport) -> str:
    states = list(dict.fromkeys(item.state for item in report.items))
    said = [
        f"{report.count(state):,} {state} ({format_size(report.size(state))})" for state in states
    ]
    return ", ".join(said) or ("no garbage found" if report.problems else "no garbage")


def _find(location: str) -> GarbageReport:
    """What a collection would find."""

    async def collect(opened: StoreApi) -> list[GarbageItem | Finding]:
        print_what_is_left_out(opened, "garbage")
        return [each async for each in opened.find_garbage()]

    reached = through_owner(location, collect)
    return GarbageReport.of(reached[0] if reached is not None else _of_stopped(location))


def _of_stopped(location: str) -> list[GarbageItem | Finding]:
    with StoppedStore(location, move=LET_IT_LISTEN) as stopped:
        runtime, store_id = stopped.runtime, stopped.store_id
        lag_s = stopped.deletion_lag_s
        containers: dict[int, StoppedContainer] = {}
        for container_id in stopped.container_ids:
            last_epoch = stopped.logs.last_epoch(container_id)
            if last_epoch is not None:
                metadata = run(stopped.metadata(container_id))
                containers[container_id] = StoppedContainer(
                    metadata, last_epoch, store_id, lag_s, runtime
                )

        async def find() -> list[GarbageItem | Finding]:
            storage = open_object_storage(stopped.tier2_url, runtime)
            try:
                finding = find_garbage(containers, storage, store_id, runtime.clock)
                return [each async for each in finding]
            finally:
                await storage.close()

        return [*run(find()), *orphan_ledgers(stopped.logs.orphans())]


async def _forget(location: str, other_id: str) -> None:
    require_store(location)
    runtime = Runtime()
    file = read_store_file(location, runtime)
    assert file is not None, location
    try:
        mine = marker_name(other_id) == marker_name(file.store_id)
    except ValueError:
        raise CommandError(f"--forget-store {other_id}: that is not the id of a store") from None
    if mine:
        raise CommandError(f"--forget-store {other_id}: that is this store")
    storage = open_object_storage(
        tier2_url(location, merge_settings({}, {}, file.settings, existing=True)), runtime
    )
    try:
        if not await StoreMarkers(storage, file.store_id).forget(other_id):
            raise CommandError(
                f"--forget-store {other_id}: no such store has a marker in {storage.url}"
            )
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    finally:
        await storage.close()
