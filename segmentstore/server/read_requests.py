"""ReadSegment: bytes of a segment, now or when there are some.

A read at the end of an open segment waits for as long as its connection is open. Pravega's store
has no time-out for it; its clients have a long one, or none.
"""

from __future__ import annotations

from typing import Final

from segmentstore.contracts.errors import BadOffsetError, EndOfSegmentError
from segmentstore.server.server_context import ServerContext
from segmentstore.service import SegmentStore
from segmentstore.wire.commands import ReadSegment, SegmentRead

READ_BYTES_MIN: Final = 8
READ_BYTES_MAX: Final = 2 << 20
"""Bounds of what a client may ask for; the length asked for is brought between them."""
_WAIT_S: Final = 3600.0


async def read(context: ServerContext, request: ReadSegment) -> SegmentRead:
    """Carry out one ReadSegment."""
    name, offset = request.segment, request.offset
    context.counts.reads_waiting += 1
    try:
        data = await _read(context.store, request)
    finally:
        context.counts.reads_waiting -= 1
    info = await context.store.get_info(name)
    at_end = offset + len(data) >= info.length
    return SegmentRead(
        name,
        offset,
        at_tail=at_end and not info.sealed,
        end_of_segment=at_end and info.sealed,
        data=data,
        request_id=request.request_id,
    )


async def _read(store: SegmentStore, request: ReadSegment) -> bytes:
    """The bytes; b"" at the end of a sealed segment."""
    name, offset = request.segment, request.offset
    length_max = max(READ_BYTES_MIN, min(request.length_max, READ_BYTES_MAX))
    while True:
        try:
            data = await store.read(name, offset, length_max, _WAIT_S)
        except BadOffsetError as error:
            if offset < error.actual:
                raise
            await _growth(store, request, error.actual)
        except EndOfSegmentError:
            return b""
        else:
            if data:
                return data


async def _growth(store: SegmentStore, request: ReadSegment, length: int) -> None:
    """Wait until the segment is longer than `length`, which is below the offset of the request."""
    try:
        await store.read(request.segment, length, 1, _WAIT_S)
    except EndOfSegmentError:
        detail = "it is sealed, and ends before"
        raise BadOffsetError(request.segment, request.offset, length, detail) from None
