"""ClientConnection: requests to a store over one connection, and their replies.

Rules:

- an append costs a future and no task. Those of one turn of the loop to one segment, without
  conditions, go out as one request, in the order of the calls. So do the events of one writer;
- what is asked later goes out later, but for the other segments of a turn;
- bytes on their way are bounded: what is over the bound is refused, and was not sent;
- a connection that has ended does not come back. What was sent and has no reply is of unknown
  outcome; what was not sent had no effect.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

from segmentstore.client.pending_replies import (
    JoinedAppends,
    JoinedEvents,
    PendingReply,
    PendingRequest,
)
from segmentstore.contracts import forks
from segmentstore.contracts.errors import (
    StoreClosedError,
    StoreDisconnectedError,
    StoreUnreachableError,
    TierUnavailableError,
)
from segmentstore.wire.codec import encode_parts
from segmentstore.wire.commands import Command, Hello, Request
from segmentstore.wire.errors import WireError
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.store_commands import (
    EXTENSION_VERSION,
    NO_LIMIT,
    AppendBytes,
    AppendEvents,
    CancelRead,
    CloseWriter,
    ConnectionClosing,
    RequestRefused,
)
from segmentstore.wire.store_documents import refusal_error
from segmentstore.wire.store_formats import STORE_REPLIES

R = TypeVar("R")

CLIENT_VERSION: Final = 16
CLIENT_VERSION_MIN: Final = 5
UNANSWERED_BYTES_MAX: Final = 64 << 20
"""Of appends that have no reply. One that is larger goes alone."""
JOINED_BYTES_MAX: Final = 256 * 1024
"""Appends that would be more together go out apart."""
JOINED_MAX: Final = 65_536
"""Events of one request."""
REPLY_BYTES_MAX: Final = 256 << 20
CLOSE_S: Final = 30.0
"""Longest that a close waits for replies."""
_WRITTEN_BYTES_MAX: Final = 256 * 1024
"""Frames up to this go to the socket as one."""


class ClientConnection(asyncio.Protocol):
    """A connection. Used on the event loop that made it."""

    def __init__(self, location: str) -> None:
        self.location: Final = location
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(REPLIES)
        self.has_hello: asyncio.Future[None] = self._loop.create_future()
        """Raises StoreUnreachableError if the other side is no store of ours."""
        self._ids = 0
        self._pending: dict[int, PendingReply] = {}
        self._unsent: list[int] = []
        """Of these, what the transport was not given yet."""
        self._joined: dict[str | int, JoinedAppends | JoinedEvents] = {}
        """By segment, or by writer: what goes out at the end of this turn."""
        self._unanswered_bytes = 0
        self._out: list[Any] = []
        """Frames of this turn."""
        self._out_bytes = 0
        self._is_due = False
        self._forgotten: deque[int] = deque()
        """Writers that the program has dropped; added to in any thread."""
        self.append_bytes_max = JOINED_BYTES_MAX
        """Of the store, once it is known."""
        self._lost: StoreDisconnectedError | StoreClosedError | None = None
        """Why nothing more can be asked."""
        self._answered: asyncio.Future[None] = self._loop.create_future()
        """Once closing, nothing waits any more."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reason = "the other side has closed it"
        self.chunks_received = 0
        """Pieces of data that have come: while it grows, the other side is there."""

    # --- the transport's calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say Hello."""
        self._transport = cast("asyncio.Transport", transport)
        # The store is not to take a forked child for its client.
        forks.in_child(self, ClientConnection._leave_to_parent)
        self._send(Hello(CLIENT_VERSION, CLIENT_VERSION_MIN, EXTENSION_VERSION))

    def data_received(self, data: bytes) -> None:
        """Resolve what whole frames answer."""
        self.chunks_received += 1
        try:
            for command in self._decoder.feed(data):
                self._take(command)
        except WireError as error:
            self._reason = f"the other side sent what is no reply: {error}"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Resolve all that waits."""
        detail = self._reason if exc is None else str(exc) or type(exc).__name__
        lost = StoreDisconnectedError(detail)
        if self._lost is None:
            self._lost = lost
        for joined in self._joined.values():
            joined.fail(self._lost)
        self._joined.clear()
        pending, self._pending = self._pending, {}
        for request_id in self._unsent:
            if (unsent := pending.pop(request_id, None)) is not None:
                unsent.fail(lost)
        for each in pending.values():
            each.lose(lost)
        if not self.has_hello.done():
            self.has_hello.set_exception(StoreUnreachableError(self.location, detail))
        self._note_answered()
        self._ended.set_result(None)

    # --- requests ---------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A request id that was not used."""
        self._ids += 1
        return self._ids

    def ask(
        self, command: Request, request_id: int, reply: type[R], *, changes: bool = False
    ) -> asyncio.Future[R]:
        """Send a request; its reply, or the error that it carries. `changes`: lost, its outcome is
        unknown.

        Raises StoreDisconnectedError, StoreClosedError.
        """
        self.check()
        future: asyncio.Future[R] = self._loop.create_future()
        self._send_joined()
        self._begin(command, request_id, PendingRequest(future, reply, changes=changes))
        return future

    def tell(self, command: Request) -> None:
        """Send what needs no reply; on an ended connection nothing."""
        if self._lost is None:
            self._send_joined()
            self._send(command)

    def cancel_read(self, request_id: int) -> None:
        """The caller waits for a read no more."""
        if self._pending.pop(request_id, None) is not None:
            self.tell(CancelRead(request_id))

    def append(self, segment: str, data: bytes) -> asyncio.Future[int]:
        """Append without a condition."""
        future: asyncio.Future[int] = self._loop.create_future()
        joined = self._join(segment, len(data), JoinedAppends)
        joined.add(data, future)
        return future

    def append_event(self, writer: int, number: int, data: bytes) -> asyncio.Future[int | None]:
        """Append an event of an opened writer."""
        future: asyncio.Future[int | None] = self._loop.create_future()
        joined = self._join(writer, len(data), lambda: JoinedEvents(writer))
        joined.add(number, data, future)
        if len(joined.events) >= JOINED_MAX:
            self._send_joined_of(writer)
        return future

    def append_if(self, command: AppendBytes) -> asyncio.Future[int]:
        """Append with conditions."""
        self._take_room(len(command.data))
        future: asyncio.Future[int] = self._loop.create_future()
        self._send_joined()
        joined = JoinedAppends()
        joined.add(cast("bytes", command.data), future)
        self._begin(command, command.request_id, joined)
        return future

    def forget_writer(self, writer: int) -> None:
        """The program has dropped it. From any thread."""
        self._forgotten.append(writer)

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._lost is not None

    @property
    def is_waiting(self) -> bool:
        """Whether something was sent that has no reply."""
        return bool(self._pending)

    def check(self) -> None:
        """Raise why nothing can be asked."""
        if self._lost is not None:
            raise self._lost

    def _join(self, key: str | int, size: int, make: Callable[[], Any]) -> Any:
        self._take_room(size)
        joined = self._joined.get(key)
        if joined is not None and joined.size + size > self._joined_bytes_max():
            self._send_joined_of(key)
            joined = None
        if joined is None:
            joined = self._joined[key] = make()
            self._flush_soon()
        return joined

    def _joined_bytes_max(self) -> int:
        return min(JOINED_BYTES_MAX, self.append_bytes_max)

    def _take_room(self, size: int) -> None:
        self.check()
        if self._unanswered_bytes and self._unanswered_bytes + size > UNANSWERED_BYTES_MAX:
            detail = f"{self._unanswered_bytes} bytes wait for the store already"
            raise TierUnavailableError("tier1", detail)
        self._unanswered_bytes += size

    # --- sending ----------------------------------------------------------------------------------

    def _send_joined(self) -> None:
        for key in list(self._joined):
            self._send_joined_of(key)

    def _send_joined_of(self, key: str | int) -> None:
        joined = self._joined.pop(key)
        request_id = self.next_id()
        command: AppendBytes | AppendEvents
        if isinstance(joined, JoinedEvents):
            command = AppendEvents(request_id, joined.writer, tuple(joined.events))
        else:
            command = AppendBytes(request_id, NO_LIMIT, cast("str", key), (), joined.joined())
        self._begin(command, request_id, joined)

    def _begin(self, command: Request, request_id: int, pending: PendingReply) -> None:
        self._pending[request_id] = pending
        self._unsent.append(request_id)
        self._send(command)

    def _send(self, command: Request) -> None:
        parts = encode_parts(command)
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        if self._out_bytes > _WRITTEN_BYTES_MAX:
            self._write()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if self._lost is not None:
            return
        if self._joined:
            self._send_joined()
        while self._forgotten:
            self._out += encode_parts(CloseWriter(self._forgotten.popleft()))
        self._write()

    def _write(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._unsent.clear()
            self._transport.writelines(out)

    # --- replies ----------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if isinstance(command, Hello):
            self._take_hello(command)
            return
        if not self.has_hello.done():
            raise WireError(f"{type(command).__name__} came before Hello")
        if isinstance(command, ConnectionClosing):
            self._take_leave()
            return
        request_id = getattr(command, "request_id", None)
        pending = self._pending.get(request_id) if request_id is not None else None
        if pending is None:
            return  # of a read that was cancelled, or of a request that expects no reply
        if isinstance(command, RequestRefused):
            pending.fail(refusal_error(command))
        elif not pending.take(command):
            return
        del self._pending[cast("int", request_id)]
        self._unanswered_bytes -= pending.size
        if self._lost is not None:
            self._note_answered()

    def _take_hello(self, hello: Hello) -> None:
        if self.has_hello.done():
            raise WireError("a second Hello")
        if not hello.extension:
            detail = "it speaks Pravega's protocol, without the commands of a store of this kind"
            self.has_hello.set_exception(StoreUnreachableError(self.location, detail))
            self.abort()
            return
        self._decoder.accept({**REPLIES, **STORE_REPLIES}, REPLY_BYTES_MAX)
        self.has_hello.set_result(None)

    def _take_leave(self) -> None:
        """The store closes. What it has not answered had no effect."""
        self._reason = "the store was closed"
        lost = StoreDisconnectedError(self._reason)
        if self._lost is None:
            self._lost = lost
        pending, self._pending = self._pending, {}
        for each in pending.values():
            each.fail(lost)
        self._note_answered()
        if self._transport is not None:
            self._transport.close()

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for the replies to what was sent, but CLOSE_S at most; then close. Idempotent."""
        if self._lost is None:
            self._flush()
            self._lost = closed = StoreClosedError()
            for request_id, pending in list(self._pending.items()):
                if not pending.changes:
                    pending.fail(closed)
                    del self._pending[request_id]
            self._note_answered()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.wait((self._answered,))
        if self._transport is not None:
            self._reason = "it was closed before the reply"
            self._transport.close()
            await asyncio.wait((self._ended,))

    def _note_answered(self) -> None:
        if not self._pending and not self._answered.done():
            self._answered.set_result(None)

    def give_up(self, reason: str) -> None:
        """The other side does not answer: close at once, as if it had."""
        self._reason = reason
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_now(self) -> None:
        """Close at once, and wait for no reply. Idempotent."""
        if self._lost is None:
            self._lost = StoreClosedError()
            self._reason = "it was closed before the reply"
            self.abort()

    def drop(self, close: Callable[[], object] | None = None) -> None:
        """The program has the store no more and did not close it: warn, and close it on its loop,
        or by `close`. From any thread.
        """
        if self._lost is not None or not self._birth.here:
            return
        try:
            text = f"a connection to {self.location} was dropped without close(): it is closed now"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        finally:
            with suppress(RuntimeError):  # its loop is closed, and with it the connection
                (close or partial(self._loop.call_soon_threadsafe, self.abort))()

    def _leave_to_parent(self) -> None:
        assert self._transport is not None
        forks.release_descriptor(self._transport.get_extra_info("socket").fileno())
