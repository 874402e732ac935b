"""`segmentstore scrub`: every block of a stopped store's objects read and checked, at a rate, from
where it was left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.scrub_repair import harmful_left, repair_damage, show_repair
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.cli.stores import run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from recovery.open_container import OpenContainer
    from recovery.scrub_state import ScrubPass, ScrubState
    from segmentstore.contracts.metadata import ContainerMetadata

OBJECTS_AT_ONCE = 8
_MEGABYTE = 1_000_000


def scrub_command(
    store: output.FolderArgument,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="MB/S", help="Read at most so many megabytes a second."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew, whatever was checked before.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Show which damaged blocks can be written anew from the log and its archive.",
        ),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="With --repair: write them. The store is opened.")
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Read every block of a stopped store's objects and check it; ends with 3 if anything is
    corrupt.

    Ends with 5 if Tier 2 refuses single objects, which are named; the others are checked.
    Interrupted and run again, it goes on where it was. Nothing but the file that says how far it is
    gets written, unless --repair --apply has damaged blocks written anew.
    """
    if apply and not repair:
        raise typer.BadParameter("--apply goes with --repair")
    with StoppedStore(store) as stopped:
        state = run(_scrub(stopped, store, (rate or 0) * _MEGABYTE, restart=restart))
    current = state.current
    repaired = repair_damage(store, current.findings, dry_run=not apply) if repair else None
    if as_json:
        document = {"store": store, "harmful": bool(current.harmful), "pass": current}
        output.print_json(document if repaired is None else {**document, "repair": repaired})
    else:
        if current.findings:
            columns = ("severity", "kind", "place", "detail")
            output.out().print(output.table(None, columns, current.findings))
        counts = {
            "store": store,
            "objects": current.objects,
            "blocks": current.blocks,
            "read": format_size(current.bytes_read),
            "harmful": current.harmful,
            "notes": current.notes,
        }
        output.out().print(output.pairs(None, counts))
        if repaired is not None:
            show_repair(repaired)
            beyond = current.harmful + current.notes - len(current.findings)
            if beyond and apply:
                output.out().print(f"{beyond:,} more findings were not kept: run it once more")
    if harmful_left(current, repaired):
        raise typer.Exit(ExitCode.CORRUPTION)
    if current.refused:
        raise typer.Exit(ExitCode.UNAVAILABLE)


async def _scrub(
    stopped: StoppedStore, location: str, bytes_per_s: float, *, restart: bool
) -> ScrubState:
    # Not at the top: the other commands do not pay for what checks everything.
    from recovery.background_scrub import ScrubFile  # noqa: PLC0415
    from recovery.open_container import WholeMetadata  # noqa: PLC0415
    from recovery.scrub import Scrub  # noqa: PLC0415
    from recovery.scrub_state import FILE_NAME, ScrubPass, ScrubState  # noqa: PLC0415
    from segmentstore.store_folder import read_store_file  # noqa: PLC0415
    from tier2.locations import open_object_storage  # noqa: PLC0415
    from tier2.object_storage import StorageUnavailableError  # noqa: PLC0415

    containers = {
        container_id: await stopped.metadata(container_id) for container_id in stopped.container_ids
    }
    runtime = stopped.runtime
    now_ms = runtime.clock.time_ms()
    executor = runtime.executor("scrub", 1)
    storage = open_object_storage(stopped.tier2_url, runtime)
    try:
        store_file = read_store_file(location, runtime)
        assert store_file is not None, location
        file = ScrubFile(
            os.path.join(location, FILE_NAME), runtime.disk, executor, store_file.store_id
        )
        try:
            state = await file.load() if not restart else None
        except ConfigError as error:
            raise ConfigError(error.setting, f"{error.reason}; --restart begins anew") from None
        state = state or ScrubState(current=ScrubPass(started_at_ms=now_ms))
        if state.current.finished_at_ms is not None:
            state.begin(now_ms)
        live = {
            container_id: partial(_identity, WholeMetadata(metadata))
            for container_id, metadata in containers.items()
        }
        with _Bar(state.current, containers) as bar:

            async def moved_on() -> None:
                bar.show()
                if file.due:
                    await file.save(state)

            scrub = Scrub(
                storage,
                live,
                state,
                clock=runtime.clock,
                executor=executor,
                limiter=RateLimiter(bytes_per_s),
                objects_at_once=OBJECTS_AT_ONCE,
                moved_on=moved_on,
            )
            try:
                await scrub.run_pass()
            except StorageUnavailableError as error:
                raise TierUnavailableError("tier2", str(error)) from error
            finally:
                await file.save(state)
    finally:
        executor.shutdown(wait=False)
        await storage.close()
    return state


def _identity(container: OpenContainer) -> OpenContainer:
    return container


class _Bar:
    """The progress of a pass on stderr, drawn on a terminal only."""

    def __init__(self, current: ScrubPass, containers: Mapping[int, ContainerMetadata]) -> None:
        self._current = current
        console = output.err()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        total = sum(
            live.record.size
            for container_id, metadata in containers.items()
            for name, live in metadata.objects.items()
            if current.position is None or (container_id, name) > current.position
        )
        self._task = self._bar.add_task(
            "scrub", total=current.bytes_read + total, completed=current.bytes_read
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self) -> None:
        """Draw how far it is now."""
        found = f", {self._current.harmful} harmful" if self._current.harmful else ""
        self._bar.update(
            self._task,
            completed=self._current.bytes_read,
            description=f"{self._current.objects:,} objects{found}",
        )
