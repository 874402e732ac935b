"""WireConnection: one client's connection.

Rules:

- requests are served side by side, each by a task of its own, but for appends, which are begun in
  the order of their arrival. What was answered is done before what the client asks next;
- a malformed frame ends the connection; nothing of it was stored. So does whatever cannot be
  answered so that the client does the right thing;
- it is not read while too many bytes of appends are on their way, too many requests are served, or
  the client does not read its replies;
- reads that wait, and those of tables, are dropped with it. Other requests that were begun are
  finished.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from segmentstore.contracts import forks
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.server.append_requests import ConnectionAppends
from segmentstore.server.refusals import refusal
from segmentstore.server.reply_turns import ReplyTurns
from segmentstore.server.request_handlers import begin
from segmentstore.server.server_context import HELLO_S, STOP_S, ServerContext
from segmentstore.server.store_connection import STORE_APPENDS, STORE_KINDS, StoreCommands
from segmentstore.server.table_read_room import TABLE_READS, TableReadRoom
from segmentstore.server.transient_segments import TransientSegments
from segmentstore.wire.append_blocks import Append, AppendBlocks
from segmentstore.wire.codec import encode_parts
from segmentstore.wire.commands import (
    NO_OFFSET,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    CreateTransientSegment,
    Hello,
    KeepAlive,
    OperationUnsupported,
    Padding,
    ReadSegment,
    ReadTable,
    RemoveTableKeys,
    SetupAppend,
    UpdateTableEntries,
)
from segmentstore.wire.errors import WireError
from segmentstore.wire.formats import REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.store_commands import (
    EXTENSION_VERSION,
    BeginListing,
    ConnectionClosing,
    ContinueListing,
    ListAttributes,
    ListSegments,
    ReadAttributes,
    ReadBytes,
)
from segmentstore.wire.store_documents import refused
from segmentstore.wire.store_formats import STORE_REQUESTS

if TYPE_CHECKING:
    # It needs an extra.
    from segmentstore.server.authorization import TokenAuthorization, WriterTokens

VERSION: Final = 16
VERSION_MIN: Final = 5
REQUESTS_MAX: Final = 16_384
"""Requests of one connection that are served at a time, waiting reads included."""
REPLY_BYTES_MAX: Final = 4 << 20
"""Replies that wait for the client; with more its connection is not read."""
LEAVE_S: Final = 1.0
"""Longest that a client is waited for that was asked to close."""
_APPENDS: Final = frozenset({Append, ConditionalAppend, ConditionalBlockEnd})
_READS: Final = frozenset({ReadSegment, ReadBytes, BeginListing, ContinueListing, *TABLE_READS})
"""No client waits for their replies once the connection has ended."""
_REPEATABLE: Final = frozenset(
    {ListAttributes, ListSegments, ReadAttributes, ReadBytes, ReadSegment, *TABLE_READS}
)
"""Reads whose replies may be large, and that change nothing: they can be carried out again."""
_ALL_REQUESTS: Final = {**REQUESTS, **STORE_REQUESTS}
_JOINED_BYTES_MAX: Final = 64 * 1024
"""Replies up to this are copied into one piece: cheaper than another call of the system."""


class WireConnection(asyncio.Protocol):
    """Made for each connection by the listener; `on_end` is called once with it, at its end."""

    def __init__(
        self,
        context: ServerContext,
        on_end: Callable[[WireConnection], None],
        authorization: TokenAuthorization | None = None,
    ) -> None:
        """Without `authorization` requests need no token."""
        self._context = context
        self._authorization = authorization
        self._on_end = on_end
        self._decoder = FrameDecoder(REQUESTS)
        self._blocks = AppendBlocks()
        self._share = context.outstanding.share(self._resume)
        self._appends = ConnectionAppends(context, self._share, self._send, self._end)
        self._store_commands = StoreCommands(
            context,
            self._share,
            self._write,
            self._cancel_read,
            needs_token=authorization is not None,
        )
        self._transients = TransientSegments(context)
        self._tokens: WriterTokens | None = None
        if authorization is not None:
            self._tokens = authorization.writer_tokens(self._end)
        self._requests: dict[asyncio.Task[None], Command] = {}
        self._transport: asyncio.Transport | None = None
        self._hello: asyncio.TimerHandle | None = None
        self._turns = ReplyTurns()
        self._table_reads = TableReadRoom()
        self._is_paused = False
        self._ending = False
        self._is_announced = False
        """The client has the commands of our own."""
        self._lost = asyncio.Event()
        self._backlog: deque[Command | Append] = deque()
        """Commands that wait: the first, an append, for room."""
        self._room: asyncio.Future[None] | None = None
        self.peer = ""

    # --- the transport's calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the Hello."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=REPLY_BYTES_MAX)
        self.peer = str(self._transport.get_extra_info("peername") or "a process of this machine")
        # The client is not to wait for a forked child that never answers.
        forks.in_child(self, WireConnection._leave_to_parent)
        loop = asyncio.get_running_loop()
        self._hello = loop.call_later(HELLO_S, self._end, f"no Hello within {HELLO_S:g} s")

    def data_received(self, data: bytes) -> None:
        """Begin what whole frames ask for."""
        if self._ending:
            return
        try:
            for frame in self._decoder.feed(data):
                command = self._blocks.accept(frame)
                if command is not None and not self._ending:
                    self._serve_in_turn(command)
        except WireError as error:
            self._end(str(error))
        self._pause_if_needed()

    def eof_received(self) -> bool:
        """The client sends no more, and waits for no replies either."""
        return False

    def pause_writing(self) -> None:
        """The client does not read its replies."""
        self._turns.close()
        self._pause_if_needed()

    def resume_writing(self) -> None:
        """It has read some."""
        self._turns.open()
        self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop reads; changes that were begun are finished without a reply."""
        del exc
        self._ending = True
        self._lost.set()
        self._appends.close()
        self._share.close()
        self._turns.open()
        if self._hello is not None:
            self._hello.cancel()
        for task, command in self._requests.items():
            if type(command) in _READS:
                task.cancel()
        self._store_commands.close()
        if self._room is not None:
            self._room.cancel()
        self._transients.close()
        if self._tokens is not None:
            self._tokens.close()
        self._on_end(self)

    # --- requests ---------------------------------------------------------------------------------

    def _serve_in_turn(self, command: Command | Append) -> None:
        """Serve a command, behind those that wait for room in a container's queue."""
        kind = type(command)
        if self._backlog:
            self._backlog.append(command)
        elif kind not in _APPENDS and kind not in STORE_APPENDS:
            self._serve(cast("Command", command))
        elif (room := self._append(command, has_room=False)) is not None:
            self._backlog.append(command)
            self._room = room
            room.add_done_callback(self._room_found)

    def _append(self, command: Any, *, has_room: bool) -> asyncio.Future[None] | None:
        if type(command) in STORE_APPENDS:
            return self._store_commands.append(command, has_room=has_room)
        return self._appends.append(command, has_room=has_room)

    def _room_found(self, room: asyncio.Future[None]) -> None:
        self._room = None
        backlog, self._backlog = self._backlog, deque()
        if self._ending or room.cancelled():
            return
        error = room.exception()
        if error is not None and type(backlog[0]) not in STORE_APPENDS:
            self._end(f"an append found no room: {error}")
            return
        try:
            self._append(backlog.popleft(), has_room=True)
            for command in backlog:
                if not self._ending:
                    self._serve_in_turn(command)
        except WireError as error:
            self._end(str(error))
        self._resume()

    def _serve(self, command: Command) -> None:
        if isinstance(command, KeepAlive):
            self._send(command)
        elif isinstance(command, Hello):
            self._answer_hello(command)
        elif self._hello is not None:
            raise WireError(f"{type(command).__name__} came before Hello")
        elif type(command) in STORE_KINDS:
            if (store_work := self._store_commands.begin(command)) is not None:
                self._begin(command, store_work)
        elif not self._is_allowed(command):
            pass  # and that was answered
        elif isinstance(command, SetupAppend):
            self._begin(command, self._appends.set_up(command))
        elif isinstance(command, CreateTransientSegment):
            self._begin(command, self._transients.create(command))
        elif isinstance(command, ReadSegment):
            self._begin_read(command)
        elif (work := begin(self._context, command)) is not None:
            self._begin(command, work)
        elif not isinstance(command, Padding):
            name = type(command).__name__
            self._context.counts.refused(f"unsupported {name}")
            self._send(OperationUnsupported(getattr(command, "request_id", 0), name, ""))

    def _is_allowed(self, command: Command) -> bool:
        """Whether the token of a request allows it; else that is the answer."""
        authorization = self._authorization
        if authorization is None or isinstance(command, Padding):
            return True
        reply = authorization.refusal(command)
        if reply is not None:
            self._context.counts.refused(f"{type(command).__name__}: AuthTokenCheckFailed")
            self._send(reply)
            return False
        if isinstance(command, SetupAppend) and self._tokens is not None:
            self._tokens.set_up(command.writer_id, command.token)
        return True

    def _answer_hello(self, hello: Hello) -> None:
        if self._hello is not None:
            self._hello.cancel()
            self._hello = None
        extension = EXTENSION_VERSION if hello.extension else 0
        if extension:
            self._is_announced = True
            self._decoder.accept(_ALL_REQUESTS, self._store_commands.frame_bytes_max)
        self._send(Hello(VERSION, VERSION_MIN, extension))
        if hello.low_version > VERSION or hello.high_version < VERSION_MIN:
            self._end(f"the client has versions {hello.low_version} to {hello.high_version}")

    def _begin_read(self, command: ReadSegment) -> None:
        """A read waits, perhaps for hours. It keeps its token where that is checked again, and
        reads with one token keep it once: a frame has room for 64 KiB.
        """
        if command.token:
            authorization = self._authorization
            token = "" if authorization is None else authorization.kept(command.token)
            command = command._replace(token=token)
        self._begin(command, self._work_of(command))

    def _begin(self, command: Command, work: Coroutine[Any, Any, Command | None]) -> None:
        """Have a request carried out; `work` gives the reply, or sends it itself."""
        size = _keyed_bytes(command)
        self._share.take(size)
        task = own_task(self._guard(command, work), name=f"wire {type(command).__name__}")
        self._requests[task] = command
        task.add_done_callback(partial(self._served, size, work))

    def _served(
        self, size: int, work: Coroutine[Any, Any, object], task: asyncio.Task[None]
    ) -> None:
        # Cancelled before it began, it would complain.
        work.close()
        del self._requests[task]
        self._share.give_back(size)
        self._resume()

    async def _guard(self, command: Any, work: Coroutine[Any, Any, Command | None]) -> None:
        """Answer a request, also its errors."""
        try:
            await self._turns.wait()
            if type(command) in TABLE_READS:
                async with self._table_reads.of(command):
                    reply = await self._read(command, work)
            elif type(command) in _REPEATABLE:
                reply = await self._read(command, work)
            else:
                reply = await work
        except WireError as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - of one request: the others go on
            self._answer_error(command, error)
        else:
            # A read has waited, perhaps longer than its token was good for.
            is_allowed = not isinstance(command, ReadSegment) or self._is_allowed(command)
            if reply is not None and is_allowed:
                self._send(reply)

    async def _read(
        self, command: Any, work: Coroutine[Any, Any, Command | None]
    ) -> Command | None:
        return await self._turns.of_read(await work, partial(self._work_of, command))

    def _work_of(self, command: Any) -> Coroutine[Any, Any, Command | None]:
        if type(command) in STORE_KINDS:
            work: Coroutine[Any, Any, Command | None] | None = self._store_commands.begin(command)
        else:
            work = begin(self._context, command)
        assert work is not None
        return work

    def _answer_error(self, command: Any, error: Exception) -> None:
        if type(command) in STORE_KINDS:
            if not isinstance(error, SegmentStoreError):
                self._context.report_bug(type(command).__name__, error)
            self._context.counts.refused(f"{type(command).__name__}: {type(error).__name__}")
            self._send(refused(command.request_id, error))
            return
        segment = getattr(command, "segment", "") or getattr(command, "target", "")
        offset = getattr(command, "offset", NO_OFFSET)
        reply = refusal(error, command.request_id, segment, offset)
        kind = type(command).__name__
        if reply is not None:
            self._context.counts.refused(f"{kind}: {type(reply).__name__}")
            self._send(reply)
            return
        if not isinstance(error, SegmentStoreError):
            self._context.report_bug(kind, error)
        self._end(f"{kind} failed: {error}")

    # --- the other side's speed -------------------------------------------------------------------

    def _must_wait(self) -> bool:
        return (
            not self._turns.are_open
            or bool(self._backlog)
            or len(self._requests) >= REQUESTS_MAX
            or self._share.must_wait()
        )

    def _pause_if_needed(self) -> None:
        if not self._is_paused and not self._ending and self._must_wait():
            self._is_paused = True
            assert self._transport is not None
            with suppress(RuntimeError):
                self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self._ending and not self._must_wait():
            self._is_paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _send(self, reply: Command) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            parts = encode_parts(reply)
        except WireError as error:
            # It echoes a name that came in a form which the protocol has no other bytes for.
            self._end(str(error))
            return
        if sum(map(len, parts)) <= _JOINED_BYTES_MAX:
            transport.write(b"".join(parts))
        else:
            for part in parts:
                transport.write(part)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        """Close, once what was written is sent; nothing more is read."""
        if not self._ending:
            self._ending = True
            self._context.report_end(self.peer, reason)
            assert self._transport is not None
            self._transport.close()
            # A client that reads nothing would keep it open.
            asyncio.get_running_loop().call_later(STOP_S, self.abort)

    async def stop(self) -> None:
        """Read no more, answer what is on its way but for reads, close."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._ending = True
        if not self._is_paused:
            transport.pause_reading()
        await self._appends.quiet()
        await self._store_commands.quiet()
        changes = [task for task, command in self._requests.items() if type(command) not in _READS]
        if changes:
            await asyncio.wait(changes)
        # Their reports are written in the next turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self._is_announced and not transport.is_closing():
            await self._take_leave(transport)
        transport.close()

    async def _take_leave(self, transport: asyncio.Transport) -> None:
        """Let the client close first. Closed with requests that were not read, the connection would
        be reset, and the client might lose our last replies.
        """
        self._send(ConnectionClosing())
        transport.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._lost.wait()

    def _cancel_read(self, request_id: int) -> None:
        for task, command in self._requests.items():
            if isinstance(command, ReadBytes) and command.request_id == request_id:
                task.cancel()

    def _leave_to_parent(self) -> None:
        assert self._transport is not None
        forks.release_descriptor(self._transport.get_extra_info("socket").fileno())

    def abort(self) -> None:
        """Close at once, whatever is not sent."""
        if self._transport is not None:
            self._transport.abort()


def _keyed_bytes(command: Command) -> int:
    """What counts as outstanding of a request about keys of a table."""
    if isinstance(command, UpdateTableEntries):
        return sum(len(key.key) + len(value) for key, value in command.entries)
    if isinstance(command, RemoveTableKeys | ReadTable):
        return sum(len(key.key) for key in command.keys)
    return 0
