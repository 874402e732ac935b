"""Requests about tables. Outcomes are those of Pravega's PravegaRequestProcessor, release 0.13.0.

Each function carries out one request and gives its reply. An error that it raises becomes a reply
by `refusals.refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import BadOffsetError
from segmentstore.server.server_context import ServerContext
from segmentstore.tables.table_types import TableEntry as StoredEntry
from segmentstore.wire.commands import (
    NO_TABLE_OFFSET,
    NOT_EXISTS,
    Command,
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)
from segmentstore.wire.system_attributes import CREATION_TIME, ROLLOVER_SIZE

COUNT_MAX: Final = 10_000
"""Keys or entries of a page, whatever a client suggests."""


async def create(context: ServerContext, request: CreateTableSegment) -> Command:
    """CreateTableSegment."""
    values = {
        CREATION_TIME: context.clock.time_ms(),
        ROLLOVER_SIZE: max(0, request.rollover_bytes),
    }
    attributes = [AttributeUpdate(id_, UpdateType.REPLACE, value) for id_, value in values.items()]
    await context.tables.create(request.segment, request.key_length, attributes)
    return SegmentCreated(request.request_id, request.segment)


async def delete(context: ServerContext, request: DeleteTableSegment) -> Command:
    """DeleteTableSegment."""
    await context.tables.delete(request.segment, must_be_empty=request.must_be_empty)
    return SegmentDeleted(request.request_id, request.segment)


async def info(context: ServerContext, request: GetTableSegmentInfo) -> Command:
    """GetTableSegmentInfo."""
    found = await context.tables.info(request.segment)
    return TableSegmentInfo(
        request.request_id,
        request.segment,
        found.start_offset,
        found.length,
        found.entry_count,
        found.key_length,
    )


async def update(context: ServerContext, request: UpdateTableEntries) -> Command:
    """UpdateTableEntries."""
    entries = [(key.key, key.version, value) for key, value in request.entries]
    try:
        versions = await context.tables.update(request.segment, entries, _expected(request))
    except BadOffsetError as error:
        return _truncated(request, error)
    return TableEntriesUpdated(request.request_id, tuple(versions))


async def remove(context: ServerContext, request: RemoveTableKeys) -> Command:
    """RemoveTableKeys."""
    try:
        await context.tables.remove(request.segment, request.keys, _expected(request))
    except BadOffsetError as error:
        return _truncated(request, error)
    return TableKeysRemoved(request.request_id, request.segment)


async def read(context: ServerContext, request: ReadTable) -> Command:
    """ReadTable: an absent key has the version NOT_EXISTS, and no value."""
    keys = [key.key for key in request.keys]
    found = await context.tables.get(request.segment, keys)
    entries = tuple(
        (TableKey(key, NOT_EXISTS), b"") if entry is None else _entry(entry)
        for key, entry in zip(keys, found, strict=True)
    )
    return TableRead(request.request_id, request.segment, entries)


async def read_keys(context: ServerContext, request: ReadTableKeys) -> Command:
    """ReadTableKeys."""
    page = await context.tables.keys(
        request.segment,
        _count(request.count_max),
        token=request.continuation,
        from_key=request.from_key,
        to_key=request.to_key,
    )
    keys = tuple(TableKey(key.key, key.version) for key in page.keys)
    return TableKeysRead(request.request_id, request.segment, keys, page.token)


async def read_entries(context: ServerContext, request: ReadTableEntries) -> Command:
    """ReadTableEntries."""
    page = await context.tables.entries(
        request.segment,
        _count(request.count_max),
        token=request.continuation,
        from_key=request.from_key,
        to_key=request.to_key,
    )
    return TableEntriesRead(request.request_id, request.segment, _entries(page.entries), page.token)


async def read_delta(context: ServerContext, request: ReadTableEntriesDelta) -> Command:
    """ReadTableEntriesDelta."""
    page = await context.tables.delta(
        request.segment, request.from_position, _count(request.count_max)
    )
    return TableEntriesDeltaRead(
        request.request_id,
        request.segment,
        _entries(page.entries),
        page.should_clear,
        page.reached_end,
        page.position,
    )


def _entry(entry: StoredEntry) -> TableEntry:
    return TableKey(entry.key, entry.version), entry.value


def _entries(entries: Iterable[StoredEntry]) -> tuple[TableEntry, ...]:
    return tuple(map(_entry, entries))


def _count(suggested: int) -> int:
    """Raises nothing: a count below 1 is left for the table to refuse."""
    return min(suggested, COUNT_MAX)


def _expected(request: UpdateTableEntries | RemoveTableKeys) -> int | None:
    return None if request.table_offset == NO_TABLE_OFFSET else request.table_offset


def _truncated(
    request: UpdateTableEntries | RemoveTableKeys, error: BadOffsetError
) -> SegmentIsTruncated:
    return SegmentIsTruncated(
        request.request_id, request.segment, error.actual, "", request.table_offset
    )
