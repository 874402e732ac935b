"""The commands that inspect a store and change nothing: `log`, `objects`, `verify`.

The first two ask the process that has the store open, if there is one. `verify` needs a stopped
store.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durablelog.durable_data_log import LogAddress
from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.ledger_listing import show_ledgers
from segmentstore.cli.stopped_store import LET_IT_LISTEN, StoppedStore
from segmentstore.cli.stores import print_what_is_left_out, run, through_owner
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.reports import BlockEntry, FrameEntry, OperationEntry
from segmentstore.listed_entries import block_entry, garbage_entry, operation_entry

if TYPE_CHECKING:
    from durablelog.file.frame_reports import FrameStatus
    from segmentstore import StoreApi

_PAGE = 1000
"""Rows of one table; a listing longer than that is several tables, shown as they come."""


def log(
    store: output.StoreArgument,
    operations: Annotated[
        bool, typer.Option("--operations", help="Operations instead of frames.")
    ] = False,
    ledgers: Annotated[
        bool,
        typer.Option(
            "--ledgers",
            help="On BookKeeper: the ledgers of each container, of a running store too.",
        ),
    ] = False,
    start: Annotated[
        str | None, typer.Option("--from", metavar="ADDRESS", help="Begin here, e.g. 0x100001000.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Show the Tier-1 log of a store: frames, the operations in them, or ledgers.

    Of a running store what was acknowledged by now is shown, without frames that are no part of the
    log. Ends with 3 if a frame is corrupt.
    """
    address = _address(start)
    if ledgers:
        if operations or start is not None:
            raise typer.BadParameter("--ledgers shows ledgers alone, all of them")
        show_ledgers(store, limit, as_json=as_json)
        return
    shown = _Rows(_OPERATION_COLUMNS if operations else _FRAME_COLUMNS, limit, as_json=as_json)

    async def listed(opened: StoreApi) -> None:
        print_what_is_left_out(opened, "operations" if operations else "frames")
        entries: AsyncIterator[FrameEntry | OperationEntry]
        entries = opened.list_operations() if operations else opened.list_frames()
        async with aclosing(entries):
            async for entry in entries:
                if address is None or entry.address >= address:
                    shown.add(_row(entry))
                if shown.is_full:
                    break

    if through_owner(store, listed) is None:
        with StoppedStore(store, move=LET_IT_LISTEN) as stopped:
            rows = (
                _operation_rows(stopped, address) if operations else _frame_rows(stopped, address)
            )
            for row in itertools.islice(rows, limit):
                shown.add(row)
    shown.end()
    if shown.corrupt:
        raise typer.Exit(ExitCode.CORRUPTION)


class _Rows:
    """Rows of the log, shown a page at a time, and at most `limit`."""

    def __init__(self, columns: Sequence[str], limit: int | None, *, as_json: bool) -> None:
        self._columns = columns
        self._limit = limit
        self._as_json = as_json
        self._page: list[dict[str, Any]] = []
        self._count = 0
        self.corrupt = False

    @property
    def is_full(self) -> bool:
        """No more is shown."""
        return self._limit is not None and self._count >= self._limit

    def add(self, row: dict[str, Any]) -> None:
        """Show one more, unless it is full."""
        if self.is_full:
            return
        self._count += 1
        self.corrupt |= row.get("state") == "corrupt"
        self._page.append(row)
        if len(self._page) >= _PAGE:
            self.end()

    def end(self) -> None:
        """Show what was not shown yet."""
        page, self._page = self._page, []
        if self._as_json:
            output.print_json_lines(page)
        elif page:
            rows = ([_shown(row[key]) for key in self._columns] for row in page)
            output.out().print(output.table(None, self._columns, rows))


_FRAME_COLUMNS = ("container", "address", "sequence", "epoch", "size", "state", "place", "detail")
_OPERATION_COLUMNS = ("container", "address", "sequence", "kind", "size", "time", "what")


def _address(text: str | None) -> LogAddress | None:
    if text is None:
        return None
    try:
        return LogAddress(int(text, 0))
    except ValueError:
        output.print_error(f"--from {text}: an address is a number, as the listing shows it")
        raise typer.Exit(ExitCode.USAGE) from None


def _frame_rows(stopped: StoppedStore, start: LogAddress | None) -> Iterator[dict[str, Any]]:
    for container_id in stopped.container_ids:
        for report in stopped.logs.frames(container_id, start):
            place = f"{report.path} {stopped.logs.position_unit} {report.position}"
            sequence, epoch, size = report.sequence, report.epoch, report.payload_length
            entry = FrameEntry(container_id, report.address, sequence, epoch, size, place)
            yield _row(entry, report.status, report.detail)


def _operation_rows(stopped: StoppedStore, start: LogAddress | None) -> Iterator[dict[str, Any]]:
    for container_id in stopped.container_ids:
        for logged in stopped.operations(container_id):
            if start is None or logged.address >= start:
                yield _row(operation_entry(*logged))


def _row(
    entry: FrameEntry | OperationEntry, state: FrameStatus = "ok", detail: str = ""
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "container": entry.container_id,
        "address": f"{entry.address:#x}",
        "sequence": entry.sequence,
    }
    if isinstance(entry, FrameEntry):
        return {
            **shown,
            "epoch": entry.epoch,
            "size": entry.size,
            "state": state,
            "place": entry.place,
            "detail": detail,
        }
    return {
        **shown,
        "kind": entry.kind,
        "size": entry.size,
        "time": datetime.fromtimestamp(entry.time_ms / 1000, UTC),
        "what": entry.what,
    }


def objects(
    store: output.StoreArgument,
    segment: Annotated[
        str | None, typer.Argument(metavar="[SEGMENT]", help="Only its blocks.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Show what a store has in Tier 2: each block, whose bytes it holds, and objects waiting for
    deletion.

    Of a running store each segment is shown as it is in its turn.
    """

    async def collect(opened: StoreApi) -> list[BlockEntry]:
        if segment is None:
            print_what_is_left_out(opened, "objects")
        return [block async for block in opened.list_blocks(segment)]

    reached = through_owner(store, collect)
    blocks = reached[0] if reached is not None else _stopped_blocks(store, segment)
    blocks.sort()
    if as_json:
        output.print_json_lines(blocks)
        return
    columns = ("object", "object size", "state", "segment", "block at", "start offset", "length")
    output.out().print(output.table(None, columns, blocks))
    sizes = {block.object: block.object_size for block in blocks}
    output.out().print(
        f"{len(blocks):,} blocks in {len(sizes):,} objects, {format_size(sum(sizes.values()))}"
    )


def _stopped_blocks(location: str, segment: str | None) -> list[BlockEntry]:
    with StoppedStore(location, move=LET_IT_LISTEN) as stopped:
        containers = run(stopped.all_metadata())
    if segment is not None and not any(segment in metadata.names for metadata in containers):
        raise SegmentNotFoundError(segment)
    return [block for metadata in containers for block in _blocks(metadata, segment)]


def _blocks(metadata: ContainerMetadata, segment: str | None) -> Iterator[BlockEntry]:
    for record in metadata.all_records():
        has_name = record.merged_into is None and not record.deleted
        if segment is None or (has_name and record.name == segment):
            for chunk in record.chunks:
                yield block_entry(record, chunk, metadata.objects[chunk.object_name].record.size)
    if segment is None:
        yield from map(garbage_entry, metadata.garbage.values())


def verify(
    store: output.FolderArgument,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Read every block and every file of metadata snapshots, and check every checksum.",
        ),
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Check a stopped store without changing it; ends with 3 if a finding is harmful."""
    # Not at the top: the other commands do not pay for what checks everything.
    from recovery.store_check import check_store  # noqa: PLC0415
    from segmentstore.contracts.findings import Severity  # noqa: PLC0415

    with StoppedStore(store) as stopped:
        checking = check_store(
            stopped.logs.stored_logs(),
            stopped.tier2_url,
            stopped.runtime,
            deep=deep,
            store_id=stopped.store_id,
            catalogs=stopped.catalogs,
        )
        findings = run(checking)
        stopped.logs.check_undisturbed()
    harmful = any(finding.severity is Severity.HARMFUL for finding in findings)
    if as_json:
        output.print_json({"store": store, "deep": deep, "harmful": harmful, "findings": findings})
    else:
        if findings:
            columns = ("severity", "kind", "place", "detail")
            output.out().print(output.table(None, columns, findings))
        counts = Counter(finding.severity.value for finding in findings)
        summary = (
            ", ".join(f"{count} {severity}" for severity, count in sorted(counts.items()))
            or "nothing found"
        )
        output.out().print(f"{store}: {summary}")
    if harmful:
        raise typer.Exit(ExitCode.CORRUPTION)


def _shown(value: object) -> object:
    """Numbers of the log without thousands separators: they are compared with hexdumps and
    messages.
    """
    return str(value) if isinstance(value, int) else value
