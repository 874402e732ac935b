"""The commands that change or show segments and the store as a whole."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from segmentstore import ATTRIBUTE_UNSET, AttributeUpdate, SegmentInfo, UpdateType
from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import print_what_is_left_out, with_readable_store, with_store

if TYPE_CHECKING:
    from segmentstore import StoreApi


def create(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Make an empty segment, and the store if it is not there."""
    info = with_store(
        store, lambda opened: opened.create_segment(segment), create=True, take_over=take_over
    )
    _say(
        as_json, info, f"created {info.name} (id {info.segment_id}, container {info.container_id})"
    )


def seal(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """End a segment: it takes no more appends."""
    length = with_store(store, lambda opened: opened.seal(segment), take_over=take_over)
    _say(as_json, {"segment": segment, "length": length}, f"sealed {segment} at {length:,} bytes")


def truncate(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The first byte to keep.")],
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Delete a segment's bytes before OFFSET."""
    with_store(store, lambda opened: opened.truncate(segment, offset), take_over=take_over)
    _say(
        as_json, {"segment": segment, "start_offset": offset}, f"{segment} begins at {offset:,} now"
    )


def merge(
    store: output.StoreArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The segment that grows.")],
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The segment that ends up in it and is deleted."),
    ],
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Append a whole segment to another; its name is free afterwards."""
    merged = with_store(store, lambda opened: opened.merge(target, source), take_over=take_over)
    _say(
        as_json,
        {"target": target, "source": source, "offset": merged.offset, "length": merged.length},
        f"{source} is in {target} now, from offset {merged.offset:,}",
    )


def rm(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Delete a segment."""
    with_store(store, lambda opened: opened.delete(segment), take_over=take_over)
    _say(as_json, {"segment": segment, "deleted": True}, f"deleted {segment}")


def flush(
    store: output.StoreArgument,
    segment: Annotated[
        str | None, typer.Argument(metavar="[SEGMENT]", help="Only this one.")
    ] = None,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Move everything acknowledged so far to Tier 2, and wait for it."""
    with_store(store, lambda opened: opened.flush(segment), take_over=take_over)
    _say(as_json, {"flushed": segment or "all"}, f"flushed {segment or 'everything'}")


def checkpoint(
    store: output.StoreArgument,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Write a checkpoint of the metadata, then truncate the log as far as Tier 2 allows."""
    with_store(store, lambda opened: opened.checkpoint(), take_over=take_over)
    _say(as_json, {"checkpoint": True}, "checkpoint written")


def ls(
    store: output.StoreArgument,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin with it.")
    ] = "",
    as_json: output.JsonOption = False,
) -> None:
    """List segments by name."""

    async def run(opened: StoreApi) -> list[SegmentInfo]:
        infos = [info async for info in opened.list_segments(prefix=prefix)]
        print_what_is_left_out(opened, "segments")
        return infos

    infos = with_readable_store(store, run, whole=True)
    if as_json:
        output.print_json_lines(infos)
        return
    rows = [
        (
            info.name,
            info.start_offset,
            info.length,
            info.storage_length,
            _state(info),
            info.last_modified,
        )
        for info in infos
    ]
    columns = ("segment", "start", "length", "in Tier 2", "state", "last modified (UTC)")
    output.out().print(output.table(None, columns, rows))


def _state(info: SegmentInfo) -> str:
    if info.sealed:
        return "sealed, in Tier 2" if info.sealed_in_storage else "sealed"
    return "open"


def info(
    store: output.StoreArgument,
    segment: Annotated[
        str | None, typer.Argument(metavar="[SEGMENT]", help="The store itself if not given.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Show a segment's properties, or the store's numbers and health."""

    async def of_store(opened: StoreApi) -> Any:
        return output.to_plain(await opened.fetch_stats())

    shown = with_readable_store(store, of_store if segment is None else _get_info(segment))
    if as_json:
        output.print_json(shown)
        return
    values = (
        {item.name: getattr(shown, item.name) for item in dataclasses.fields(shown)}
        if segment
        else shown
    )
    output.out().print(output.pairs(segment or store, output.flatten(values)))


def _get_info(segment: str) -> Callable[[StoreApi], Awaitable[SegmentInfo]]:
    return lambda opened: opened.get_info(segment)


_TYPES = {item.name.lower().replace("_", "-"): item for item in UpdateType}


def attrs(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    updates: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="ID=VALUE",
            help="Update this attribute first; may be given many times. The value `unset` "
            "removes it.",
        ),
    ] = None,
    update_type: Annotated[
        str, typer.Option("--type", help=f"How: {', '.join(_TYPES)}.")
    ] = "replace",
    expected: Annotated[
        int | None,
        typer.Option(
            help="The value that must be there, for replace-if-equals; absent if not given."
        ),
    ] = None,
    from_id: Annotated[
        str | None, typer.Option("--from", metavar="ID", help="Show those from this id on.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Show at most so many, the first by id.")
    ] = None,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Show a segment's attributes by id; with --set, update them first, all or none.

    ID is a UUID, VALUE a signed 64-bit number, or `unset`, which removes the attribute.
    """
    changes = [_parse_update(text, update_type, expected) for text in updates or ()]

    start = _parse_id(from_id)

    async def run(opened: StoreApi) -> dict[str, int]:
        if changes:
            await opened.update_attributes(segment, changes)
        shown: dict[str, int] = {}
        async for attribute_id, value in opened.iterate_attributes(segment, start):
            shown[str(attribute_id)] = value
            if len(shown) == limit:
                break
        return shown

    values = (
        with_store(store, run, take_over=take_over) if changes else with_readable_store(store, run)
    )
    if as_json:
        output.print_json(values)
        return
    output.out().print(output.table(segment, ("attribute", "value"), list(values.items())))


def _parse_id(text: str | None) -> uuid.UUID | None:
    try:
        return None if text is None else uuid.UUID(text)
    except ValueError:
        _usage(f"--from {text}: it is a UUID")


def _parse_update(text: str, type_name: str, expected: int | None) -> AttributeUpdate:
    update_type = _TYPES.get(type_name.lower().replace("_", "-"))
    if update_type is None:
        _usage(f"--type {type_name}: it is one of {', '.join(_TYPES)}")
    name, equals, value = text.rpartition("=")
    if not equals:
        _usage(f"--set {text}: ID=VALUE is needed")
    try:
        number = ATTRIBUTE_UNSET if value == "unset" else int(value)
        return AttributeUpdate(uuid.UUID(name), update_type, number, expected)
    except ValueError:
        _usage(f"--set {text}: ID is a UUID and VALUE a whole number, or `unset`")


def _usage(message: str) -> NoReturn:
    output.print_error(message)
    raise typer.Exit(ExitCode.USAGE)


def _say(as_json: bool, document: object, text: str) -> None:
    if as_json:
        output.print_json(document)
    else:
        output.out().print(text)
