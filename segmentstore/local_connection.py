"""LocalConnection: one process's conversation with a store that this process has open
(docs/formats/local-server.md).

Rules of this file:

- requests are begun in the order in which they came. Appends are on their way together; every other
  request waits for the appends before it, and holds up what is behind it;
- what was taken and not yet answered is bounded in bytes and in number. At the bound nothing is
  read, so that the other side is held back by its own socket. The same holds for one that does not
  read its answers;
- a writer's session ends with its first refusal, as SegmentWriter's does: later events of it get
  the same refusal until the other side begins a new session. So events never land with a hole
  between them, however many were sent ahead;
- an invalid message is refused and the conversation continues. It ends where the end of a frame
  cannot be known, or where the order of events could not be kept.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from functools import partial
from typing import Final

from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    BadAttributeUpdateError,
    ContainerStoppedError,
    SegmentError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.local_protocol import (
    FRAME_ROOM,
    LENGTH_BYTES,
    NAMES_BYTES_MAX,
    VERSION,
    Answer,
    Append,
    CheckMailbox,
    Code,
    Create,
    Delete,
    Describe,
    Description,
    Done,
    Duplicate,
    EventNumber,
    HandshakeReply,
    HandshakeRequest,
    LastEvent,
    ListNames,
    LocalProtocolError,
    Merge,
    Names,
    Refused,
    Request,
    Stored,
    decode_request,
    encode,
    frame_length,
)
from segmentstore.service import SegmentStore
from segmentstore.sessions import SegmentWriter

_log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
"""What is read ahead of a connection."""
OUTSTANDING_BYTES_MAX: Final = 16 << 20
"""Appends of one connection on their way; one that is larger goes alone."""
OUTSTANDING_MAX: Final = 4096
SESSIONS_MAX: Final = 1024
"""Writers of one connection that are remembered."""
HANDSHAKE_S: Final = 10.0
"""Longest that a connection may take to greet."""
_CLOSE_TIMEOUT_S: Final = 5.0
_TURN: Final = 64
"""Requests that are served in one turn of the loop."""


class _Session:
    """A writer on a segment, since the other side began it."""

    __slots__ = ("in_flight", "refusal", "writer")

    def __init__(self) -> None:
        self.writer: SegmentWriter | None = None
        self.refusal: BaseException | None = None
        self.in_flight = 0


class LocalConnection:
    """One connection, served by one task."""

    def __init__(
        self,
        store: SegmentStore,
        store_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._reader = reader
        self._writer = writer
        self._sessions: dict[tuple[str, bytes], _Session] = {}
        self._outstanding = 0
        self._outstanding_bytes = 0
        self._answered = asyncio.Event()
        self.has_handshake = False
        self.active_at = asyncio.get_running_loop().time()
        """When the last whole request was served, in the loop's time."""
        self._serving = False

    async def serve(self) -> None:
        """Greet, then answer until the other side hangs up.

        Ends with the connection closed, whatever happens.
        """
        try:
            await self._converse()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has closed; what it sent whole is on its way
        except LocalProtocolError as error:
            self.refuse(error.request, error)
        finally:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                        await self._quiet()
            finally:
                # Also if the store is closed while answers are waited for: the other side is not to
                # wait for ever.
                self._writer.close()
                try:
                    with suppress(TimeoutError, ConnectionError):
                        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                            await self._writer.wait_closed()
                finally:
                    self._writer.transport.abort()

    @property
    def idle(self) -> bool:
        """Nothing that it asked for is on its way."""
        return not self._serving and not self._outstanding

    def refuse(self, request: int, error: BaseException) -> None:
        """Answer with a refusal."""
        name = type(error).__name__
        if isinstance(error, LocalProtocolError):
            name, code = "", error.code
        else:
            code = code_of(error)
            if code is Code.FAILED:
                _log.error("a request over the local server failed", exc_info=error)
        self._answer(
            request,
            Refused(
                code, name, str(error) if isinstance(error, LocalProtocolError) else describe(error)
            ),
        )

    async def _converse(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._handshake()
        except TimeoutError:
            detail = f"there was no greeting for {HANDSHAKE_S:g} s"
            raise LocalProtocolError(Code.HANDSHAKE_FIRST, detail) from None
        self.has_handshake = True
        served = 0
        while (
            frame := await self._frame(self._store.config.append_bytes_max + FRAME_ROOM)
        ) is not None:
            self._serving = True
            try:
                request, message = decode_request(frame)
            except LocalProtocolError as error:
                self.refuse(error.request, error)
            else:
                await self._serve_one(request, message, len(frame))
            self._serving = False
            self.active_at = asyncio.get_running_loop().time()
            await self._writer.drain()
            served += 1
            if not served % _TURN:
                # Reading what is there already lets nobody else run.
                await asyncio.sleep(0)

    async def _handshake(self) -> None:
        frame = await self._frame(FRAME_ROOM)
        if frame is None:
            raise ConnectionResetError
        request, message = decode_request(frame)
        if not isinstance(message, HandshakeRequest):
            raise LocalProtocolError(
                Code.HANDSHAKE_FIRST, "a connection begins with a greeting", request
            )
        if message.version != VERSION:
            detail = f"version {message.version} is not spoken here, but version {VERSION}"
            raise LocalProtocolError(Code.VERSION_UNKNOWN, detail, request)
        self._answer(
            request, HandshakeReply(VERSION, self._store_id, self._store.config.append_bytes_max)
        )

    async def _frame(self, length_max: int) -> bytes | None:
        """The next frame once there is room for it; None if the other side has hung up between
        two.
        """
        try:
            prefix = await self._reader.readexactly(LENGTH_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        length = frame_length(prefix, length_max)
        while self._outstanding and (
            self._outstanding_bytes + length > OUTSTANDING_BYTES_MAX
            or self._outstanding >= OUTSTANDING_MAX
        ):
            await self._next_answer()
        return await self._reader.readexactly(length)

    async def _next_answer(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    async def _quiet(self) -> None:
        """Wait until every append that was taken is answered."""
        while self._outstanding:
            await self._next_answer()

    async def _serve_one(self, request: int, message: Request, size: int) -> None:
        if isinstance(message, Append):
            self._append(request, message, size)
            return
        await self._quiet()
        try:
            answer = await self._carry_out(message)
        except LocalProtocolError as error:
            self.refuse(request, error)
        except Exception as error:  # noqa: BLE001 - reported to the other side, whatever it was
            self.refuse(request, error)
        else:
            self._answer(request, answer)

    def _answer(self, request: int, answer: Answer) -> None:
        if not self._writer.is_closing():
            self._writer.writelines(encode(request, answer))

    # --- appends ----------------------------------------------------------------------------------

    def _append(self, request: int, message: Append, size: int) -> None:
        session = self._session(message.segment, message.writer_id)
        if session.refusal is not None:
            self.refuse(request, session.refusal)
            return
        try:
            if session.writer is None:
                session.writer = self._store.writer(
                    message.segment, uuid.UUID(bytes=message.writer_id)
                )
            future = session.writer.append(message.data, message.event_number)
        except SegmentStoreError as error:
            session.refusal = error
            self.refuse(request, error)
            return
        session.in_flight += 1
        self._outstanding += 1
        self._outstanding_bytes += size
        future.add_done_callback(partial(self._appended, request, session, size))

    def _appended(
        self, request: int, session: _Session, size: int, future: asyncio.Future[int | None]
    ) -> None:
        session.in_flight -= 1
        self._outstanding -= 1
        self._outstanding_bytes -= size
        error = future.exception()
        if error is not None:
            session.refusal = session.refusal or error
            self.refuse(request, error)
        else:
            offset = future.result()
            self._answer(request, Duplicate() if offset is None else Stored(offset))
        self._answered.set()

    def _session(self, segment: str, writer_id: bytes) -> _Session:
        session = self._sessions.get((segment, writer_id))
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                self._forget_idle_sessions()
            session = self._sessions[segment, writer_id] = _Session()
        return session

    def _forget_idle_sessions(self) -> None:
        """Make room.

        A session that was refused is kept: forgotten, a later event would land behind a hole.
        """
        kept = {
            key: session
            for key, session in self._sessions.items()
            if session.in_flight or session.refusal is not None
        }
        if len(kept) >= SESSIONS_MAX:
            raise LocalProtocolError(
                Code.BUSY, f"{SESSIONS_MAX} writers of this connection are at work or refused"
            )
        self._sessions = kept

    # --- everything else --------------------------------------------------------------------------

    async def _carry_out(self, message: Request) -> Answer:
        store = self._store
        match message:
            case LastEvent():
                return await self._begin_session(message)
            case Create():
                await store.create_segment(message.segment)
                return Done()
            case Describe():
                info = await store.get_info(message.segment)
                return Description(
                    info.segment_id, info.start_offset, info.length, info.sealed, info.container_id
                )
            case Merge():
                return await self._merge(message)
            case Delete():
                await store.delete(message.segment)
                return Done()
            case CheckMailbox():
                store.wake_mailbox()
                return Done()
            case ListNames():
                return await self._names(message)
            case _:
                raise LocalProtocolError(Code.MALFORMED, "the greeting is over")

    async def _begin_session(self, message: LastEvent) -> EventNumber:
        self._sessions.pop((message.segment, message.writer_id), None)
        # Of a container that stopped nobody knows the last event.
        await self._store.get_info(message.segment)
        writer = self._store.writer(message.segment, uuid.UUID(bytes=message.writer_id))
        await writer.open()
        self._session(message.segment, message.writer_id).writer = writer
        return EventNumber(writer.last_event_number)

    async def _merge(self, message: Merge) -> Answer:
        updates: list[AttributeUpdate] = []
        if message.writer_id is not None:
            attribute = uuid.UUID(bytes=message.writer_id)
            updates.append(
                AttributeUpdate(attribute, UpdateType.REPLACE_IF_GREATER, message.event_number)
            )
        try:
            merged = await self._store.merge(message.target, message.source, updates)
            return Stored(merged.offset)
        except (SegmentNotFoundError, BadAttributeUpdateError):
            # Perhaps the same request was begun on a connection that broke, and is on its way to
            # the log. What was accepted before an append is durable when that one is.
            with suppress(SegmentError):
                await self._store.append(message.target, b"")
            if not updates or not await self._has_event(message.target, updates[0]):
                raise
        return Duplicate()

    async def _has_event(self, segment: str, update: AttributeUpdate) -> bool:
        try:
            values = await self._store.get_attributes(segment, [update.id])
        except SegmentNotFoundError:
            return False
        return values.get(update.id, -1) >= update.value

    async def _names(self, message: ListNames) -> Names:
        names: list[str] = []
        length = 0
        async for info in self._store.list_segments(message.prefix):
            if info.name > message.after:
                if length >= NAMES_BYTES_MAX:
                    return Names(tuple(names), more=True)
                names.append(info.name)
                length += len(info.name.encode())
        return Names(tuple(names), more=False)


def code_of(error: BaseException) -> Code:
    """What an error means to the other side."""
    match error:
        case SegmentNotFoundError():
            return Code.NOT_FOUND
        case SegmentExistsError():
            return Code.EXISTS
        case TierUnavailableError() | ContainerStoppedError() | AppendOutcomeUnknownError():
            return Code.AWAY
        case SegmentStoreError():
            return Code.REFUSED
        case _:
            return Code.FAILED
