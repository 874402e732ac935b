"""Transient segments: parts of a large event, deleted with the connection that created them.

After a crash of the process no connection deletes them: `delete_left_over` does, at the start.
"""

from __future__ import annotations

import re
from typing import Final

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.segments import check_segment_name
from segmentstore.server.server_context import ServerContext
from segmentstore.wire.commands import Command, CreateTransientSegment, SegmentCreated

MARK: Final = "#transient."
_ID_BYTES: Final = 16
_OURS: Final = re.compile(rf"{re.escape(MARK)}[0-9a-f]{{32}}\.[0-9a-f]{{32}}\Z")
"""The end of a name that `create` gives. What Spark's tasks stage is named otherwise, and must
outlive restarts: its driver merges it later.
"""


class TransientSegments:
    """Those of one connection."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._names: list[str] = []
        self._is_closed = False

    async def create(self, request: CreateTransientSegment) -> Command:
        """CreateTransientSegment: the reply has the name."""
        random = self._context.random.randbytes(_ID_BYTES)
        name = f"{request.segment}{MARK}{request.writer_id.hex()}.{random.hex()}"
        check_segment_name(name)
        self._names.append(name)
        self._context.transients.add(name)
        await self._context.store.create_segment(name)
        if self._is_closed:
            await self._delete_one(name)
        return SegmentCreated(request.request_id, name)

    def close(self) -> None:
        """The connection has ended."""
        self._is_closed = True
        if self._names:
            self._context.begin(self._delete_all(), "wire transient segments")

    async def _delete_all(self) -> None:
        for name in self._names:
            await self._delete_one(name)

    async def _delete_one(self, name: str) -> None:
        await _delete(self._context, name)
        self._context.transients.discard(name)


async def delete_left_over(context: ServerContext) -> int:
    """Delete the transient segments that a crash left; give how many. One pass over all names."""
    count = 0
    async for info in context.store.list_segments():
        # A client may have created one since the server listens.
        if _OURS.search(info.name) and info.name not in context.transients:
            await _delete(context, info.name)
            count += 1
    return count


async def _delete(context: ServerContext, name: str) -> None:
    try:
        await context.store.delete(name)
    except SegmentNotFoundError:
        pass  # merged, as is usual
    except SegmentStoreError as error:
        context.report_failure(f"transient segment {name}", error)
