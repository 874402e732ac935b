"""Requests of our own, but for appends: each carried out through the store, by a coroutine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final

from segmentstore.contracts.errors import InvalidArgumentError, SegmentNotFoundError
from segmentstore.server.server_context import ServerContext
from segmentstore.service import SegmentStore
from segmentstore.wire.store_commands import (
    ANY_SEGMENT,
    DELETE,
    FLUSH,
    SEAL,
    TRUNCATE,
    AttributeEntry,
    AttributesGiven,
    BytesGiven,
    ChangeSegment,
    DescribeHosts,
    DescribeSegment,
    DescribeStore,
    HostsDescribed,
    ListAttributes,
    ListSegments,
    MakeSegment,
    ManageStore,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    ReadAttributes,
    ReadBytes,
    SegmentEntry,
    SegmentsGiven,
    StoreDescribed,
    StoreReply,
    UpdateAttributes,
)
from segmentstore.wire.store_documents import (
    CHECKPOINT,
    DRAIN,
    EXPORT_CATALOG,
    FLUSH_ALL,
    HEALTH,
    METRICS,
    PROCESS_MAILBOX,
    STATS,
    WAKE_MAILBOX,
    encode_document,
)
from segmentstore.wire.store_values import attribute_updates, segment_entry

STORE_READ_BYTES_MAX: Final = 4 << 20
"""Of one reply."""
LIST_BYTES: Final = 1 << 20
"""About so many are in one part of a listing."""
_ENTRY_BYTES: Final = 64
"""Of a segment besides its name."""
ATTRIBUTES_AT_ONCE: Final = 4096

StoreHandler = Callable[[ServerContext, Any], Coroutine[Any, Any, StoreReply]]


async def _describe_store(context: ServerContext, request: DescribeStore) -> StoreReply:
    store = context.store
    config = store.config
    return StoreDescribed(
        request.request_id,
        store.store_id,
        config.append_bytes_max,
        config.containers,
        tuple(store.served),
    )


async def _describe_hosts(context: ServerContext, request: DescribeHosts) -> StoreReply:
    store = context.store
    epoch, hosts = await store.fetch_hosts()
    config = store.config
    return HostsDescribed(
        request.request_id,
        store.store_id,
        config.append_bytes_max,
        config.containers,
        epoch,
        hosts,
    )


async def _read(context: ServerContext, request: ReadBytes) -> StoreReply:
    store = context.store
    wait_s = None if request.wait_ms < 0 else request.wait_ms / 1000
    length_max = min(request.length_max, STORE_READ_BYTES_MAX)
    await _check_id(store, request.segment, request.segment_id)
    context.counts.reads_waiting += 1
    try:
        data = await store.read(request.segment, request.offset, length_max, wait_s)
    finally:
        context.counts.reads_waiting -= 1
    # Ids are never reused: the name had this one all the time.
    await _check_id(store, request.segment, request.segment_id)
    return BytesGiven(request.request_id, data)


async def _describe_segment(context: ServerContext, request: DescribeSegment) -> StoreReply:
    info = await context.store.get_info(request.segment)
    return SegmentsGiven(request.request_id, more=False, segments=(segment_entry(info),))


async def _list_segments(context: ServerContext, request: ListSegments) -> StoreReply:
    entries: list[SegmentEntry] = []
    length, more = 0, False
    async with aclosing(context.store.list_segments(request.prefix)) as infos:
        async for info in infos:
            if info.name <= request.after:
                continue
            if length >= LIST_BYTES:
                more = True
                break
            entries.append(segment_entry(info))
            length += _ENTRY_BYTES + len(info.name)
    return SegmentsGiven(request.request_id, more, tuple(entries))


async def _make_segment(context: ServerContext, request: MakeSegment) -> StoreReply:
    updates = attribute_updates(request.updates)
    info = await context.store.create_segment(request.segment, updates)
    return SegmentsGiven(request.request_id, more=False, segments=(segment_entry(info),))


async def _change_segment(context: ServerContext, request: ChangeSegment) -> StoreReply:
    store, name = context.store, request.segment
    numbers: tuple[int, ...] = ()
    if request.change == SEAL:
        numbers = (await store.seal(name),)
    elif request.change == TRUNCATE:
        await store.truncate(name, request.offset)
    elif request.change == DELETE:
        await store.delete(name)
    elif request.change == FLUSH:
        await store.flush(name)
    else:
        known = f"{SEAL} seal, {TRUNCATE} truncate, {DELETE} delete, {FLUSH} flush"
        raise InvalidArgumentError("change", request.change, f"it is one of {known}")
    return NumbersGiven(request.request_id, numbers)


async def _merge(context: ServerContext, request: MergeSegment) -> StoreReply:
    updates = attribute_updates(request.updates)
    merged = await context.store.merge(request.target, request.source, updates)
    return NumbersGiven(request.request_id, tuple(merged))


async def _merge_list(context: ServerContext, request: MergeSegmentList) -> StoreReply:
    lengths = await context.store.merge_batch(request.target, request.sources)
    return NumbersGiven(request.request_id, tuple(lengths))


async def _update_attributes(context: ServerContext, request: UpdateAttributes) -> StoreReply:
    await context.store.update_attributes(request.segment, attribute_updates(request.updates))
    return NumbersGiven(request.request_id, ())


async def _read_attributes(context: ServerContext, request: ReadAttributes) -> StoreReply:
    ids = [uuid.UUID(bytes=each) for each in request.ids]
    values = await context.store.get_attributes(request.segment, ids)
    entries = (AttributeEntry(each.bytes, value) for each, value in values.items())
    return AttributesGiven(request.request_id, more=False, attributes=tuple(entries))


async def _list_attributes(context: ServerContext, request: ListAttributes) -> StoreReply:
    store, name = context.store, request.segment
    bounds = uuid.UUID(bytes=request.from_id), uuid.UUID(bytes=request.to_id)
    await _check_id(store, name, request.segment_id)
    iterator = store.iterate_attributes(name, *bounds)
    entries: list[AttributeEntry] = []
    behind: uuid.UUID | None = None
    more = True
    while more and len(entries) < ATTRIBUTES_AT_ONCE:
        items = await iterator.fetch(behind)
        entries += (AttributeEntry(each.bytes, value) for each, value in items)
        if items:
            behind = items[-1][0]
        else:
            more = False
    await _check_id(store, name, request.segment_id)
    return AttributesGiven(request.request_id, more, tuple(entries))


async def _manage(context: ServerContext, request: ManageStore) -> StoreReply:
    action = _ACTIONS.get(request.action)
    if action is None:
        known = ", ".join(_ACTIONS)
        raise InvalidArgumentError("action", request.action, f"it is one of {known}")
    result = await action(context.store)
    data = result if isinstance(result, bytes) else encode_document(result)
    return BytesGiven(request.request_id, data)


async def _wake_mailbox(store: SegmentStore) -> None:
    store.wake_mailbox()


async def _check_id(store: SegmentStore, name: str, segment_id: int) -> None:
    """Raise SegmentNotFoundError unless the segment of the name has the id."""
    if segment_id != ANY_SEGMENT and (await store.get_info(name)).segment_id != segment_id:
        detail = f"the segment of id {segment_id} is deleted or merged away"
        raise SegmentNotFoundError(name, detail)


_ACTIONS: Final[dict[str, Callable[[SegmentStore], Coroutine[Any, Any, object]]]] = {
    FLUSH_ALL: SegmentStore.flush,
    CHECKPOINT: SegmentStore.checkpoint,
    EXPORT_CATALOG: SegmentStore.export_catalog,
    PROCESS_MAILBOX: SegmentStore.process_mailbox,
    WAKE_MAILBOX: _wake_mailbox,
    STATS: SegmentStore.fetch_stats,
    HEALTH: SegmentStore.fetch_health,
    DRAIN: SegmentStore.drain,
    METRICS: SegmentStore.fetch_metrics_text,
}

STORE_HANDLERS: Final[dict[type, StoreHandler]] = {
    ChangeSegment: _change_segment,
    DescribeHosts: _describe_hosts,
    DescribeSegment: _describe_segment,
    DescribeStore: _describe_store,
    ListAttributes: _list_attributes,
    ListSegments: _list_segments,
    MakeSegment: _make_segment,
    ManageStore: _manage,
    MergeSegment: _merge,
    MergeSegmentList: _merge_list,
    ReadAttributes: _read_attributes,
    ReadBytes: _read,
    UpdateAttributes: _update_attributes,
}
"""By the class of a request."""
