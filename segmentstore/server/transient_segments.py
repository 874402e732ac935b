"""Transient segments: parts of a large event, deleted with the connection that created them.

No connection deletes those of a process that has crashed, or of a container that was moved to
another one: `delete_left_over` does, where the container is started next.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from segmentstore.container import SegmentContainer
from segmentstore.contracts.errors import (
    NotPrimaryError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.segments import check_segment_name
from segmentstore.segment_listing import listed_segments
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


async def delete_left_over(
    context: ServerContext, container: SegmentContainer, is_stopping: Callable[[], bool]
) -> int:
    """Delete the transient segments of a container that no connection to this process created;
    give how many. One pass over the container's names, which ends early if the server stops.

    Raises SegmentStoreError: the listing fails, or the container is stopped meanwhile.
    """
    count = 0
    async with aclosing(listed_segments((container,), "")) as listed:
        async for segment, _ in listed:
            if is_stopping():
                break  # the next server of the container deletes the rest
            # A client may have created one since the server listens.
            if _OURS.search(segment.name) and segment.name not in context.transients:
                await _delete(context, segment.name)
                count += 1
    return count


async def _delete(context: ServerContext, name: str) -> None:
    try:
        await context.store.delete(name)
    except SegmentNotFoundError:
        pass  # merged, as is usual
    except NotPrimaryError:
        pass  # the next owner of its container deletes it
    except SegmentStoreError as error:
        context.report_failure(f"transient segment {name}", error)
