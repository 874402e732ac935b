"""Calls that wait for a segment which is not in memory: they go on when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from durablelog.frame_requests import AppendRequest, refuse
from durablelog.pending_segment import Event
from durablelog.queue_room import QueueRoom
from segmentstore.container.eviction import Eviction
from segmentstore.contracts.attributes import KeyedUpdate
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.metadata import SegmentMetadata

SegmentKey: TypeAlias = int | str
"""The id of a segment, or the name of one."""


def not_found(key: SegmentKey) -> SegmentNotFoundError:
    """There is no segment of this key."""
    if isinstance(key, str):
        return SegmentNotFoundError(key)
    return SegmentNotFoundError(f"#{key}", "no segment of this id is left")


class AppendQueue(Protocol):
    """Where appends go whose segment is in memory."""

    room: QueueRoom
    """Counts those that wait for their segments as well."""

    def append(
        self,
        segment_id: int,
        data: bytes,
        expected_offset: int | None,
        updates: Sequence[KeyedUpdate] | None,
        event: Event | None,
        future: asyncio.Future[int | None],
    ) -> asyncio.Future[int | None]:
        """Put an append behind what waits; `future` gets its outcome."""

    def put_back(self, requests: Sequence[AppendRequest], refused: int) -> None:
        """Put deferred requests before what waits. `refused` more will not come back."""


class Waiter(Protocol):
    """A call that waits for a segment."""

    deferred: bool
    """An append that was queued when its segment left memory."""

    def resolve(self, segment: SegmentMetadata | None, back: list[AppendRequest]) -> None:
        """The segment is in memory, or there is none; `back` takes what goes first."""

    def fail(self, error: BaseException) -> None:
        """It cannot be known."""


class Finder(Waiter):
    """A coroutine."""

    deferred = False

    def __init__(self, eviction: Eviction) -> None:
        self._eviction = eviction
        self.future: asyncio.Future[SegmentMetadata | None] = (
            asyncio.get_running_loop().create_future()
        )

    def resolve(self, segment: SegmentMetadata | None, back: list[AppendRequest]) -> None:
        del back
        if not self.future.done():
            if segment is not None:
                self._eviction.pin(segment.segment_id)
            self.future.set_result(segment)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class WaitingAppend(Waiter):
    """An append by the name or the id of an idle segment. `ended(bytes)`: it does not wait any
    more.
    """

    def __init__(
        self,
        queue: AppendQueue,
        key: SegmentKey,
        request: AppendRequest,
        ended: Callable[[int], None],
        *,
        deferred: bool,
    ) -> None:
        self._queue = queue
        self._ended = ended
        self._key = key
        self._request = request
        self.deferred = deferred

    def resolve(self, segment: SegmentMetadata | None, back: list[AppendRequest]) -> None:
        _, data, future, expected, updates, event = self._request
        if segment is None or segment.merged_into is not None:
            self.fail(not_found(self._key))
            return
        self._ended(len(data))
        if self.deferred:
            back.append(self._request)
        else:
            # Its outcome is the future's.
            _ = self._queue.append(segment.segment_id, data, expected, updates, event, future)

    def fail(self, error: BaseException) -> None:
        self._ended(len(self._request[1]))
        if self.deferred:
            self._queue.put_back((), 1)
        else:
            self._queue.room.grant()
        refuse(self._request, error)
