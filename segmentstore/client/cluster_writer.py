"""ClusterWriter: exactly-once appends of one writer id to one segment, over moves of its container.

Rules of this file:

- an event is kept until it has an answer. When the owner is lost, the writer opens itself at the
  new one, by its id, and sends all that has no answer again, in order. What the segment has already
  is acknowledged and dropped there, so nothing depends on what became of the first sending;
- a refusal ends the writer, as it does with one host: nothing is sent behind a gap;
- it is bound to the id of its segment: one that is made anew under the name is another.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from functools import partial
from types import TracebackType
from typing import Self

from segmentstore.arguments import check_loop, checked_data, checked_offset, failed_future
from segmentstore.client.cluster_calls import ClusterCalls
from segmentstore.client.remote_sessions import RemoteWriter
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import RetrySpan, was_not_taken
from segmentstore.client.unanswered_bytes import UnansweredBytes
from segmentstore.contracts import forks
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    SegmentNotFoundError,
    SegmentStoreError,
    WriterNotOpenError,
)
from segmentstore.contracts.segments import SegmentInfo


class _Event:
    """One event, until it has an answer."""

    __slots__ = ("data", "future", "in_doubt", "is_done", "number")

    def __init__(self, number: int, data: bytes, future: asyncio.Future[int | None]) -> None:
        self.number = number
        self.data = data
        self.future = future
        self.in_doubt = False
        """It was sent, and may be there."""
        self.is_done = False


class _Opened:
    """The writer at one host."""

    __slots__ = ("last", "sealed", "segment_id", "writer")

    def __init__(self, writer: RemoteWriter, info: SegmentInfo) -> None:
        self.writer = writer
        self.last = writer.last_event_number
        self.segment_id = info.segment_id
        self.sealed = info.sealed


class ClusterWriter:
    """See `segmentstore.SegmentWriter`. Enter it, or `await open()`.

    An event that was sent again gives None, and not its offset, if the segment had it.
    """

    def __init__(
        self,
        calls: ClusterCalls,
        room: UnansweredBytes,
        container: int,
        name: str,
        writer_id: uuid.UUID,
        keeps: object,
    ) -> None:
        self.writer_id = writer_id
        self._calls = calls
        self._room = room
        self._container = container
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        # The store is closed when it is not used: a holder of a writer uses it.
        self._keeps = keeps
        self._last: int | None = None
        self._segment_id: int | None = None
        self._opened: _Opened | None = None
        """None before the first opening, and while the owner is lost."""
        self._seen = 0
        """The generation of the map by which it was opened."""
        self._events: deque[_Event] = deque()
        """Without an answer, in the order of the calls."""
        self._span: RetrySpan | None = None
        """Since the owner was lost, until an event is answered."""
        self._refusal: BaseException | None = None
        """Why no more events are taken."""
        self._is_refused = False
        """By the host: it refuses all behind the first one that it has refused."""

    async def open(self) -> Self:
        """Find the writer's last event. Idempotent. Raises SegmentNotFoundError, and as calls of
        the store do.
        """
        check_loop(self._loop, self._birth)
        if self._last is None:
            seen = self._calls.lookup.generation
            opened = await self._calls.call(self._container, self._open_at)
            # Another call may have opened it meanwhile, and events may have been sent since.
            if self._last is None:
                self._last, self._segment_id = opened.last, opened.segment_id
                self._opened, self._seen = opened, seen
        return self

    async def _open_at(self, store: RemoteStore) -> _Opened:
        writer = await store.writer(self._name, self.writer_id).open()
        # Behind the opening: ids are never reused, so the writer is of the segment with this one.
        info = await store.get_info(self._name)
        if self._segment_id not in (None, info.segment_id):
            detail = f"the segment of id {self._segment_id} is deleted or merged away"
            raise SegmentNotFoundError(self._name, detail)
        return _Opened(writer, info)

    @property
    def last_event_number(self) -> int:
        """The highest event number the segment has from this writer, or that this session has sent;
        -1 for none. Raises WriterNotOpenError.
        """
        if self._last is None:
            raise WriterNotOpenError
        return self._last

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to release: what is in flight stays in flight."""

    # --- appends ----------------------------------------------------------------------------------

    def append(self, data: Buffer, event_number: int | None = None) -> asyncio.Future[int | None]:
        """Append one event, enqueued when called; see `segmentstore.SegmentWriter.append`."""
        check_loop(self._loop, self._birth)
        last = self.last_event_number
        number = last + 1 if event_number is None else event_number
        checked_offset("event_number", number)
        payload = checked_data(data, self._calls.lookup.map.append_bytes_max)
        if self._refusal is not None:
            return failed_future(self._refusal)
        try:
            self._calls.check_open()
            self._room.take(len(payload))
        except SegmentStoreError as error:
            self._refusal = error
            return failed_future(error)
        event = _Event(number, payload, self._loop.create_future())
        self._events.append(event)
        self._last = max(last, number)
        if self._opened is not None:
            self._send(self._opened, event)
        return event.future

    def _send(self, opened: _Opened, event: _Event) -> None:
        answer = opened.writer.append(event.data, event.number)
        answer.add_done_callback(partial(self._settled, opened, event))

    def _settled(self, opened: _Opened, event: _Event, answer: asyncio.Future[int | None]) -> None:
        error = answer.exception()
        if error is None:
            # A late answer of an owner that was lost ends no search for the next one.
            if opened is self._opened:
                self._span = None
            self._finish(event, answer.result())
            return
        if isinstance(error, AppendOutcomeUnknownError):
            event.in_doubt = True
        if opened is not self._opened:
            return  # it is being sent again
        is_lost = isinstance(error, AppendOutcomeUnknownError) or was_not_taken(error)
        if is_lost and not self._is_refused and self._calls.is_open:
            assert isinstance(error, SegmentStoreError)
            self._opened = None
            self._calls.begin(self._open_again(error), f"writer-of-{self._container}")
            return
        self._is_refused = True
        self._refusal = self._refusal or error
        self._refuse(event, error)

    def _finish(self, event: _Event, result: int | None) -> None:
        if not event.future.done():
            event.future.set_result(result)
        self._forget(event)

    def _refuse(self, event: _Event, error: BaseException) -> None:
        if not event.future.done():
            unknown = event.in_doubt and not isinstance(error, AppendOutcomeUnknownError)
            event.future.set_exception(AppendOutcomeUnknownError(None, error) if unknown else error)
        self._forget(event)

    def _forget(self, event: _Event) -> None:
        if not event.is_done:
            event.is_done = True
            self._room.give_back(len(event.data))
        while self._events and self._events[0].is_done:
            self._events.popleft()

    # --- the new owner ----------------------------------------------------------------------------

    async def _open_again(self, failure: SegmentStoreError) -> None:
        try:
            opened = await self._find(failure)
        except SegmentStoreError as error:
            self._refusal = self._refusal or error
            for event in tuple(self._events):
                self._refuse(event, error)
            return
        # Nothing is awaited from here on: what is called later is sent behind.
        self._opened = opened
        for event in tuple(self._events):
            if event.is_done:
                continue  # the old owner has answered late
            if opened.sealed and event.number <= opened.last:
                self._finish(event, None)
            else:
                self._send(opened, event)

    async def _find(self, failure: SegmentStoreError) -> _Opened:
        calls = self._calls
        lookup = calls.lookup
        address = lookup.map.owners.get(self._container)
        if self._span is None:
            self._span = calls.span()
        while True:
            await calls.pause(self._span, failure, self._container, self._seen, address)
            self._seen, address = lookup.generation, lookup.map.owners.get(self._container)
            try:
                return await self._open_at(await lookup.owner(self._container))
            except SegmentStoreError as error:
                if not was_not_taken(error):
                    raise
                failure = error
