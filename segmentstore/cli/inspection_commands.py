"""The commands that read a stopped store and change nothing: `log`, `objects`, `verify`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import typer

from durablelog.durable_data_log import LogAddress
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    Operation,
    SnapshotCheckpointOperation,
)
from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.ledger_listing import show_ledgers
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.cli.stores import run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.metadata import ContainerMetadata
from tier2.object_names import metadata_manifest_name

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
    """Show the Tier-1 log of a stopped store: frames, the operations in them, or ledgers.

    Ends with 3 if a frame is corrupt.
    """
    address = _address(start)
    if ledgers:
        if operations or start is not None:
            raise typer.BadParameter("--ledgers shows ledgers alone, all of them")
        show_ledgers(store, limit, as_json=as_json)
        return
    corrupt = False
    with StoppedStore(store) as stopped:
        rows = _operation_rows(stopped, address) if operations else _frame_rows(stopped, address)
        columns = _OPERATION_COLUMNS if operations else _FRAME_COLUMNS
        for page in _pages(itertools.islice(rows, limit)):
            corrupt |= any(row.get("state") == "corrupt" for row in page)
            if as_json:
                output.print_json_lines(page)
            else:
                output.out().print(
                    output.table(
                        None, columns, ([_shown(row[key]) for key in columns] for row in page)
                    )
                )
    if corrupt:
        raise typer.Exit(ExitCode.CORRUPTION)


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
            yield {
                "container": container_id,
                "address": f"{report.address:#x}",
                "sequence": report.sequence,
                "epoch": report.epoch,
                "size": report.payload_length,
                "state": report.status,
                "place": f"{report.path} {stopped.logs.position_unit} {report.position}",
                "detail": report.detail,
            }


def _operation_rows(stopped: StoppedStore, start: LogAddress | None) -> Iterator[dict[str, Any]]:
    for container_id in stopped.container_ids:
        for logged in stopped.operations(container_id):
            if start is not None and logged.address < start:
                continue
            operation = logged.operation
            yield {
                "container": container_id,
                "address": f"{logged.address:#x}",
                "sequence": operation.sequence_number,
                "kind": kind_of(operation),
                "size": logged.size,
                "time": datetime.fromtimestamp(operation.timestamp_ms / 1000, UTC),
                "what": describe(operation, container_id),
            }


def kind_of(operation: Operation) -> str:
    """The class's name as a word, e.g. `storage update`."""
    name = type(operation).__name__.removesuffix("Operation")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def describe(operation: Operation, container_id: int) -> str:
    """An operation's own fields in a line; bytes by their length, a snapshot by its manifest's
    name.
    """
    if isinstance(operation, AppendOperation):
        attributes = f", {len(operation.attributes)} attributes" if operation.attributes else ""
        return (
            f"segment {operation.segment_id}, {len(operation.data)} bytes at "
            f"{operation.offset}{attributes}"
        )
    if isinstance(operation, CheckpointOperation):
        return f"{len(operation.blob)} bytes of metadata"
    if isinstance(operation, SnapshotCheckpointOperation):
        return "metadata snapshot " + metadata_manifest_name(
            container_id, operation.epoch, operation.sequence_number, operation.unique_id
        )
    shown = []
    for name in type(operation).__slots__:
        value = getattr(operation, name)
        is_unset = value is None or value is False
        if name in {"sequence_number", "timestamp_ms", "updates"} or is_unset:
            continue
        shown.append(
            f"{name} {len(value) if isinstance(value, list | tuple | dict | bytes) else value}"
        )
    return ", ".join(shown)


class _Block(NamedTuple):
    """A stretch of a segment in an object, or an object that waits for its deletion."""

    object: str
    object_size: int
    state: str
    segment: str | None
    block_offset: int | None
    start_offset: int | None
    length: int | None


def objects(
    store: output.StoreArgument,
    segment: Annotated[
        str | None, typer.Argument(metavar="[SEGMENT]", help="Only its blocks.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Show what a stopped store has in Tier 2: each block, whose bytes it holds, and objects
    waiting for deletion.
    """
    with StoppedStore(store) as stopped:
        containers = run(stopped.all_metadata())
    if segment is not None and not any(segment in metadata.names for metadata in containers):
        raise SegmentNotFoundError(segment)
    blocks = sorted(
        itertools.chain.from_iterable(_blocks(metadata, segment) for metadata in containers)
    )
    if as_json:
        output.print_json_lines(blocks)
        return
    columns = ("object", "object size", "state", "segment", "block at", "start offset", "length")
    output.out().print(output.table(None, columns, blocks))
    sizes = {block.object: block.object_size for block in blocks}
    output.out().print(
        f"{len(blocks):,} blocks in {len(sizes):,} objects, {format_size(sum(sizes.values()))}"
    )


def _blocks(metadata: ContainerMetadata, segment: str | None) -> Iterator[_Block]:
    for record in metadata.all_records():
        former = "merged" if record.merged_into is not None else "deleted" * record.deleted
        if segment is not None and (record.name != segment or former):
            continue
        name = f"{record.name} ({former})" if former else record.name
        for chunk in record.chunks:
            size = metadata.objects[chunk.object_name].record.size
            yield _Block(
                chunk.object_name,
                size,
                "live",
                name,
                chunk.block_offset,
                chunk.start_offset,
                chunk.length,
            )
    if segment is None:
        for garbage in metadata.garbage.values():
            yield _Block(
                garbage.record.name,
                garbage.record.size,
                "waiting for deletion",
                None,
                None,
                None,
                None,
            )


def verify(
    store: output.StoreArgument,
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


def _pages(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    remaining = iter(rows)
    while page := list(itertools.islice(remaining, _PAGE)):
        yield page


def _shown(value: object) -> object:
    """Numbers of the log without thousands separators: they are compared with hexdumps and
    messages.
    """
    return str(value) if isinstance(value, int) else value
