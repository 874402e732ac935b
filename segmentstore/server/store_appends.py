"""StoreAppends: the appends of one connection by commands of our own.

They begin in the order of arrival, cost a future and no task, and count as bytes on their way as
those of Pravega's clients do. Replies of one turn of the loop are written as one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from segmentstore.contracts.errors import (
    SegmentStoreError,
    TierUnavailableError,
    WriterNotOpenError,
)
from segmentstore.server.outstanding import OutstandingShare, ignore
from segmentstore.server.server_context import ServerContext
from segmentstore.sessions import SegmentWriter
from segmentstore.wire.commands import Command
from segmentstore.wire.errors import WireError
from segmentstore.wire.store_commands import (
    DUPLICATE,
    NO_LIMIT,
    AppendBytes,
    AppendEvents,
    CloseWriter,
    NumbersGiven,
    OpenWriter,
)
from segmentstore.wire.store_documents import refused
from segmentstore.wire.store_values import attribute_updates

STORE_WRITERS_MAX: Final = 65_536
"""Writers of one connection."""

StoreAppend = AppendBytes | AppendEvents


class _KnownWriter:
    """A writer, from the request to open it until it is closed or the connection ends."""

    __slots__ = ("refusal", "segment", "writer")

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self.writer: SegmentWriter | None = None
        """Once it is opened."""
        self.refusal: BaseException | None = None


class _EventBatch:
    """The events of one command, until each has an outcome."""

    __slots__ = ("futures", "left", "refusal", "request_id", "size")

    def __init__(self, request_id: int, size: int) -> None:
        self.request_id = request_id
        self.size = size
        self.futures: list[asyncio.Future[int | None]] = []
        self.left = 0
        self.refusal: BaseException | None = None
        """Of the first event that was not begun."""


class StoreAppends:
    """The appends of one connection. `send` writes a reply."""

    def __init__(
        self, context: ServerContext, share: OutstandingShare, send: Callable[[Command], None]
    ) -> None:
        self._context = context
        self._store = context.store
        self._share = share
        self._send = send
        self._writers: dict[int, _KnownWriter] = {}
        self._in_flight = 0
        """Commands that were begun and are not answered."""
        self._quiet: asyncio.Future[None] | None = None

    # --- writers ----------------------------------------------------------------------------------

    def open_writer(self, request: OpenWriter) -> Coroutine[Any, Any, Command]:
        """What carries out OpenWriter. Raises what the store does, and TierUnavailableError.

        Call it in the order of arrival. The writer counts from here on: a CloseWriter in the same
        bytes comes before the first step of what is given, which then opens nothing.
        """
        if len(self._writers) >= STORE_WRITERS_MAX:
            return _too_many_writers()
        known = self._writers[request.request_id] = _KnownWriter(request.segment)
        return self._open(request, known)

    async def _open(self, request: OpenWriter, known: _KnownWriter) -> Command:
        number, segment, writer_id = request
        try:
            if self._writers.get(number) is not known:
                raise WriterNotOpenError
            # Fails if the container has stopped: then the last event is unknown.
            await self._store.get_info(segment)
            writer = await self._store.writer(segment, uuid.UUID(bytes=writer_id)).open()
            known.writer = writer
        finally:
            if known.writer is None and self._writers.get(number) is known:
                del self._writers[number]
        return NumbersGiven(number, (writer.last_event_number,))

    def close_writer(self, request: CloseWriter) -> None:
        """Carry out CloseWriter, also of one that is being opened."""
        self._writers.pop(request.writer, None)

    # --- appends ----------------------------------------------------------------------------------

    def append(self, request: StoreAppend, *, has_room: bool) -> asyncio.Future[None] | None:
        """Begin an append. Unless it `has_room`, give what it has to wait for: room in the
        container's queue, None if there is some.

        Raises WireError for an update of an attribute that is none.
        """
        try:
            if isinstance(request, AppendBytes):
                return self._append_bytes(request, has_room=has_room)
            return self._append_events(request, has_room=has_room)
        except WireError:
            raise
        except SegmentStoreError as error:
            self._refuse(request.request_id, error)
            return None

    def _append_bytes(self, request: AppendBytes, *, has_room: bool) -> asyncio.Future[None] | None:
        request_id, expected, segment, entries, data = request
        size = len(data)
        if not has_room and (room := self._store.room(segment, size)) is not None:
            return room
        updates = attribute_updates(entries) if entries else ()
        future = self._store.append(
            segment, data, None if expected == NO_LIMIT else expected, updates
        )
        self._begun(size)
        future.add_done_callback(partial(self._appended, request_id, size))
        return None

    def _appended(self, request_id: int, size: int, future: asyncio.Future[int]) -> None:
        error = future.exception()
        if error is None:
            self._send(NumbersGiven(request_id, (future.result(),)))
        else:
            self._refuse(request_id, error)
        self._settled(size)

    def _append_events(
        self, request: AppendEvents, *, has_room: bool
    ) -> asyncio.Future[None] | None:
        known = self._writers.get(request.writer)
        if known is None or known.writer is None:
            raise WriterNotOpenError
        size = sum(len(event.data) for event in request.events)
        if not has_room and (room := self._store.room(known.segment, size)) is not None:
            return room
        if known.refusal is not None:
            raise known.refusal
        batch = _EventBatch(request.request_id, size)
        append = known.writer.append
        for number, data in request.events:
            try:
                batch.futures.append(append(data, number))
            except SegmentStoreError as error:
                # What is malformed does not end a session of the engine's. Events behind it are on
                # their way already, and would leave a gap.
                known.refusal = batch.refusal = error
                break
        self._begun(size)
        batch.left = len(batch.futures)
        for future in batch.futures:
            future.add_done_callback(partial(self._event_settled, batch))
        if not batch.futures:
            self._answer(batch)
        return None

    def _event_settled(self, batch: _EventBatch, future: asyncio.Future[int | None]) -> None:
        # Of several that failed one is the answer; the others are no surprise to the loop.
        future.exception()
        batch.left -= 1
        if not batch.left:
            self._answer(batch)

    def _answer(self, batch: _EventBatch) -> None:
        offsets: list[int] = []
        failure = batch.refusal
        for future in batch.futures:
            if (error := future.exception()) is not None:
                failure = error
                break
            offset = future.result()
            offsets.append(DUPLICATE if offset is None else offset)
        if offsets or failure is None:
            self._send(NumbersGiven(batch.request_id, tuple(offsets)))
        if failure is not None:
            self._refuse(batch.request_id, failure)
        self._settled(batch.size)

    def close(self) -> None:
        """The connection has ended: no request gets a reply any more."""
        self._send = ignore

    # --- accounts ---------------------------------------------------------------------------------

    def _begun(self, size: int) -> None:
        self._in_flight += 1
        self._share.take(size)
        self._context.counts.appends += 1
        self._context.counts.append_bytes += size

    def _settled(self, size: int) -> None:
        self._in_flight -= 1
        self._share.give_back(size)
        if self._quiet is not None and not self._in_flight:
            self._quiet.set_result(None)
            self._quiet = None

    def _refuse(self, request_id: int, error: BaseException) -> None:
        if not isinstance(error, SegmentStoreError):
            self._context.report_bug("an append", error)
        self._context.counts.refused(f"append: {type(error).__name__}")
        self._send(refused(request_id, error))

    async def quiet(self) -> None:
        """Wait until no append is on its way."""
        if self._in_flight:
            if self._quiet is None:
                self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._quiet,))


async def _too_many_writers() -> Command:
    detail = f"a connection has at most {STORE_WRITERS_MAX} writers"
    raise TierUnavailableError("tier1", detail)
