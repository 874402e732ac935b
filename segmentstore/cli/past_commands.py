"""`segmentstore archive show|verify|replay`: what the archive of a store's logs has.

It is only read, of a running store and of a stopped one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import require_store, run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.segments import check_segment_name, may_be_stored

if TYPE_CHECKING:
    from recovery.archived_history import ArchivedHistory, PastOperation
    from recovery.history_check import PartCheck
    from recovery.moments import Moment
    from recovery.restore_past import PastContainer
    from segmentstore.contracts.archived_parts import ArchivedPart
    from segmentstore.contracts.findings import Finding
    from segmentstore.operation_lines import LineOf
    from segmentstore.past_store import PastStore
    from segmentstore.segment_operations import SegmentFilter

T = TypeVar("T")

_LAST = 2**64 - 1
_Container = Annotated[
    int | None, typer.Option("--container", min=0, metavar="N", help="Only this container.")
]


def with_past(location: str, action: Callable[[PastStore], Awaitable[T]]) -> T:
    """Run `action` on the past of the store in a folder, which is only read."""
    # Not at the top: the other commands do not pay for what reads everything.
    from segmentstore.past_store import open_past  # noqa: PLC0415

    require_store(location)

    async def opened() -> T:
        async with await open_past(location, os.environ, Runtime()) as past:
            return await action(past)

    return run(opened())


def show(
    store: output.FolderArgument,
    part: Annotated[int, typer.Argument(metavar="PART", min=0, help="Number of the part.")],
    container: _Container = None,
    as_json: output.JsonOption = False,
) -> None:
    """Show one archived part: what the metadata say of it, and what its ledger says itself."""

    async def found(past: PastStore) -> dict[str, Any]:
        number = _one_container(past, container)
        return await _described(past, number, await _part(past, number, part))

    described = with_past(store, found)
    if as_json:
        output.print_json(described)
    else:
        output.out().print(output.pairs(None, described))


async def _part(past: PastStore, container_id: int, number: int) -> ArchivedPart:
    found = await past.parts[container_id].find_number(number)
    if found is None:
        raise InvalidArgumentError("PART", number, f"container {container_id} has no such part")
    return found


async def _described(past: PastStore, container_id: int, part: ArchivedPart) -> dict[str, Any]:
    handle = await past.open_part(part)
    try:
        ledger = handle.metadata
    finally:
        await handle.close()
    return {
        "container": container_id,
        "part": part.number,
        "ledger": part.ledger_id,
        "uid": part.uid.hex(),
        "state": part.state.name.lower().replace("_", " "),
        "entries": part.entries,
        "bytes": part.length,
        "first operation": str(part.first_sequence),
        "last operation": str(part.last_sequence),
        "from": _time(part.first_ms),
        "to": _time(part.last_ms),
        "checkpoint": str(part.checkpoint_sequence) if part.checkpoint_sequence else "none",
        "archived": _time(part.offloaded_ms),
        "ledger bytes": ledger.length,
        "ledger entries": ledger.last_entry + 1,
        "digest": ledger.digest_type.name if ledger.digest_type is not None else "unknown",
        "custom metadata": ", ".join(
            f"{key}={value.decode(errors='replace')}" for key, value in ledger.custom
        ),
    }


def verify(
    store: output.FolderArgument,
    container: _Container = None,
    as_json: output.JsonOption = False,
) -> None:
    """Read every archived part and check it; ends with 3 if one is damaged or missing.

    Indices, blocks, entries, the checksums of frames, and that frames and operations follow each
    other without a hole. Of all containers: objects of the store that are of no part, too. Parts
    that the store's owner removes meanwhile are counted.
    """
    orphans: list[Finding] = []
    removed = 0

    async def checked(past: PastStore) -> list[PartCheck]:
        from recovery.history_check import HistoryCheck  # noqa: PLC0415

        nonlocal removed
        found = []
        for number in _containers(past, container):
            check = HistoryCheck(number, past.parts[number], past.open_part)
            async with aclosing(check.run()) as parts:
                found += [each async for each in parts]
            removed += check.removed
        if container is None:
            async with aclosing(past.archive_orphans(Runtime().clock.time_ms())) as left:
                orphans.extend([each async for each in left])
        return found

    checks = with_past(store, checked)
    harmful = [finding for check in checks for finding in check.findings]
    findings = [*harmful, *orphans]
    counts = {
        "parts": len(checks),
        "entries": sum(check.entries for check in checks),
        "operations": sum(check.operations for check in checks),
        "bytes": sum(check.bytes for check in checks),
        "removed": removed,
    }
    if as_json:
        output.print_json(
            {"store": store, "harmful": bool(harmful), **counts, "findings": findings}
        )
    else:
        if findings:
            columns = ("severity", "kind", "place", "detail")
            output.out().print(output.table(None, columns, findings))
        shown = {**counts, "bytes": format_size(counts["bytes"]), "harmful": len(harmful)}
        output.out().print(output.pairs(None, {"store": store, **shown}))
    if harmful:
        raise typer.Exit(ExitCode.CORRUPTION)


def replay(
    store: output.FolderArgument,
    container: _Container = None,
    segment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only operations on segments of this name.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="SEQUENCE|TIME", help="Begin with this operation or time."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="SEQUENCE|TIME", help="End with this operation or time."),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Print the operations of a store, from its archive to the end of its logs, oldest first.

    A time without an offset is UTC. Operations have numbers of their own in each container, whose
    operations are printed one container after another. Where names of deleted segments are not
    kept, stderr says which operations may be of the segment; ends with 1 if no others are.
    """
    from recovery.moments import parse_moment  # noqa: PLC0415

    if segment is not None and not may_be_stored(segment):
        check_segment_name(segment)
    first = parse_moment(begin) if begin is not None else None
    last = parse_moment(end) if end is not None else None

    async def printed(past: PastStore) -> bool:
        named = container
        if segment is not None:
            named = container_of(segment, len(past.parts))
            if container not in {None, named}:
                detail = f"segments of that name are in container {named}"
                raise InvalidArgumentError("container", container, detail)
        known = [
            await _print(past.source.containers[number], first, last, segment, as_json=as_json)
            for number in _containers(past, named)
        ]
        return all(known)

    if not with_past(store, printed):
        raise typer.Exit(ExitCode.REFUSED)


async def _print(
    container: PastContainer,
    first: Moment | None,
    last: Moment | None,
    segment: str | None,
    *,
    as_json: bool,
) -> bool:
    """Whether anything was printed, or nothing is there for certain."""
    from recovery.moments import AtTime  # noqa: PLC0415
    from segmentstore.operation_lines import json_lines, text_lines  # noqa: PLC0415
    from segmentstore.segment_operations import filter_of  # noqa: PLC0415

    history = container.history
    line: LineOf = (json_lines if as_json else text_lines)(history.container_id)
    write = sys.stdout.write
    wanted, printed = None, False
    if segment is not None:
        begin_ms = first.time_ms if isinstance(first, AtTime) else 0
        wanted = await filter_of(container, segment, await _begin(history, first), begin_ms)
    async with aclosing(operations_between(history, first, last, wanted)) as batches:
        async for operations in batches:
            if lines := list(map(line, operations)):
                write("\n".join(lines) + "\n")
                printed = True
    if wanted is None or not wanted.nameless.count:
        return True
    output.print_error(
        f"container {history.container_id}: {wanted.nameless}. Some may be of {segment!r}: "
        "without --segment all operations are printed"
    )
    return printed


async def _begin(history: ArchivedHistory, first: Moment | None) -> int:
    """The number of the operation to begin with, or one before it."""
    from recovery.moments import AtTime  # noqa: PLC0415

    if isinstance(first, AtTime):
        return await history.first_at(first.time_ms)
    return 1 if first is None else first.sequence_number


async def operations_between(
    history: ArchivedHistory,
    first: Moment | None,
    last: Moment | None,
    chosen: SegmentFilter | None = None,
) -> AsyncGenerator[list[PastOperation], None]:
    """The operations from one moment to another, both included; of them those `chosen` gives.

    A clock that was set back makes no operation earlier than those before it.
    """
    from recovery.moments import AtTime  # noqa: PLC0415

    begin = await _begin(history, first)
    end = _LAST if last is None or isinstance(last, AtTime) else last.sequence_number
    wanted_from = _LAST + 1 if isinstance(first, AtTime) else begin
    # Before a time that is begun with there is nothing later.
    bound = None if isinstance(first, AtTime) else last
    if isinstance(bound, AtTime) and await history.time_of(begin) > bound.time_ms:
        return
    async with aclosing(history.operations(begin, end)) as batches:
        async for operations in batches:
            kept = operations
            if isinstance(last, AtTime):
                kept = list(
                    takewhile(lambda past: past.operation.timestamp_ms <= last.time_ms, operations)
                )
            wanted = list(kept if chosen is None else chosen.wanted(kept))
            if isinstance(first, AtTime):
                # What follows is not earlier, whatever its own time stamp says.
                begun = (
                    past.operation.sequence_number
                    for past in kept
                    if past.operation.timestamp_ms >= first.time_ms
                )
                wanted_from = min(wanted_from, next(begun, _LAST + 1))
                wanted = [past for past in wanted if past.operation.sequence_number >= wanted_from]
            yield wanted
            if len(kept) < len(operations):
                return


def _containers(past: PastStore, wanted: int | None) -> range:
    count = len(past.parts)
    if wanted is None:
        return range(count)
    if wanted >= count:
        raise InvalidArgumentError("container", wanted, f"the store has {count} containers")
    return range(wanted, wanted + 1)


def _one_container(past: PastStore, wanted: int | None) -> int:
    if wanted is None and len(past.parts) > 1:
        detail = f"each of the {len(past.parts)} containers has parts of its own: name one"
        raise InvalidArgumentError("container", None, detail)
    return _containers(past, wanted or 0).start


def _time(time_ms: int) -> datetime | str:
    return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else "never"
