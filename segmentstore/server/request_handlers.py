"""Which function carries out which request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.server import read_requests, segment_requests, table_requests
from segmentstore.server.server_context import ServerContext
from segmentstore.wire.commands import (
    Command,
    CreateSegment,
    CreateTableSegment,
    DeleteSegment,
    DeleteTableSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
    UpdateTableEntries,
)

Handler = Callable[[ServerContext, Any], Coroutine[Any, Any, Command]]

_OTHERS: Final[dict[type, Handler]] = {
    CreateSegment: segment_requests.create,
    CreateTableSegment: table_requests.create,
    DeleteTableSegment: table_requests.delete,
    GetSegmentAttribute: segment_requests.get_attribute,
    GetStreamSegmentInfo: segment_requests.info,
    GetTableSegmentInfo: table_requests.info,
    ReadTable: table_requests.read,
    ReadTableEntries: table_requests.read_entries,
    ReadTableEntriesDelta: table_requests.read_delta,
    ReadTableKeys: table_requests.read_keys,
    ReadSegment: read_requests.read,
    RemoveTableKeys: table_requests.remove,
    UpdateTableEntries: table_requests.update,
}
"""These take any segment, or refuse the wrong kind themselves."""
_STREAM_SEGMENTS: Final[dict[type, Handler]] = {
    DeleteSegment: segment_requests.delete,
    MergeSegments: segment_requests.merge,
    MergeSegmentsBatch: segment_requests.merge_batch,
    SealSegment: segment_requests.seal,
    TruncateSegment: segment_requests.truncate,
    UpdateSegmentAttribute: segment_requests.update_attribute,
    UpdateSegmentPolicy: segment_requests.update_policy,
}
"""These are refused of tables."""


def begin(context: ServerContext, request: Any) -> Coroutine[Any, Any, Command] | None:
    """What carries out a request and gives its reply; None for a command that is not served."""
    handler = _OTHERS.get(type(request))
    if handler is not None:
        return handler(context, request)
    handler = _STREAM_SEGMENTS.get(type(request))
    return None if handler is None else _of_a_stream(handler, context, request)


async def _of_a_stream(handler: Handler, context: ServerContext, request: Any) -> Command:
    for name in _stream_segments(request):
        # Whether a missing one is refused, the request decides.
        with suppress(SegmentNotFoundError):
            await context.kinds.require_stream(name)
    return await handler(context, request)


def _stream_segments(command: Any) -> Sequence[str]:
    """What must be no table."""
    if isinstance(command, MergeSegments):
        return (command.target, command.source)
    if isinstance(command, MergeSegmentsBatch):
        return (command.target, *command.sources)
    return (command.segment,)
