"""ReadSegment: bytes of a segment, now or when there are some.

A read at the end of an open segment waits for as long as its connection is open. Pravega's store
has no time-out for it; its clients have a long one, or none.

A reply begins with the bytes that one read of the store gives. It is filled up to its bound with
what follows in memory, as bytes that were read ahead do. It never waits for more of them.
"""

from __future__ import annotations

from typing import Final

from segmentstore.contracts.errors import BadOffsetError, EndOfSegmentError
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.server.server_context import ServerContext
from segmentstore.service import SegmentStore
from segmentstore.wire.commands import ReadSegment, SegmentRead

READ_BYTES_MIN: Final = 8
READ_BYTES_MAX: Final = 2 << 20
"""Bounds of what a client may ask for; the length asked for is brought between them."""
PIECES_MAX: Final = 64
"""Of one reply: more are not worth their turns of the loop."""
_WAIT_S: Final = 3600.0


async def read(context: ServerContext, request: ReadSegment) -> SegmentRead:
    """Carry out one ReadSegment."""
    name, offset = request.segment, request.offset
    info = await context.kinds.require_stream(name)
    context.counts.reads_waiting += 1
    try:
        data = await _read(context.store, request, info)
    finally:
        context.counts.reads_waiting -= 1
    # As of the beginning: what has come since, and a seal, the next read meets.
    at_end = offset + len(data) >= info.length
    ends = not data or (at_end and info.sealed)
    return SegmentRead(
        name,
        offset,
        at_tail=at_end and not ends,
        end_of_segment=ends,
        data=data,
        request_id=request.request_id,
    )


async def _read(store: SegmentStore, request: ReadSegment, info: SegmentInfo) -> bytes:
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
                return await _filled(store, info, offset, data, length_max)


async def _filled(
    store: SegmentStore, info: SegmentInfo, offset: int, data: bytes, length_max: int
) -> bytes:
    """The data, and what follows on them in memory; a reply of several pieces is copied once."""
    pieces, length = [data], len(data)
    while length < length_max and offset + length < info.length and len(pieces) < PIECES_MAX:
        piece = await store.read_held(
            info.name, info.segment_id, offset + length, length_max - length
        )
        if not piece:
            break
        pieces.append(piece)
        length += len(piece)
    return data if len(pieces) == 1 else b"".join(pieces)


async def _growth(store: SegmentStore, request: ReadSegment, length: int) -> None:
    """Wait until the segment is longer than `length`, which is below the offset of the request."""
    try:
        await store.read(request.segment, length, 1, _WAIT_S)
    except EndOfSegmentError:
        detail = "it is sealed, and ends before"
        raise BadOffsetError(request.segment, request.offset, length, detail) from None
