"""LocalClient: appends to a store that another process of this machine has open, over its socket
(docs/formats/local-server.md).

Rules of this file:

- everything sent carries what makes a second sending harmless (an event number, or a name that is
  used once). After a lost connection, or an answer that says the store is away, all that is
  unanswered is sent again in its order, on a new connection;
- a waiting call gives up when nothing was answered for `timeout_s`; a refusal ends the client at
  once, as later events of a pipeline were refused with it;
- what is on its way is bounded in bytes and number, and no task reads answers: they are read where
  they are waited for.

On one event loop, by one caller.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self, TypeVar

from segmentstore.contracts.errors import AppendTooLargeError, SegmentStoreError
from segmentstore.contracts.local_protocol import (
    FRAME_ROOM,
    LENGTH_BYTES,
    NAMES_BYTES_MAX,
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
    decode_answer,
    encode,
    frame_length,
)
from segmentstore.contracts.local_socket import SOCKET_NAME, socket_address
from segmentstore.contracts.segments import check_segment_name

TIMEOUT_S: Final = 120.0
WINDOW_BYTES: Final = 8 << 20
_WINDOW: Final = 512
_ANSWER_BYTES_MAX: Final = 2 * NAMES_BYTES_MAX + FRAME_ROOM
_WAIT_FIRST_S: Final = 0.02
_WAIT_MAX_S: Final = 0.25

A = TypeVar("A", bound=Answer)


class StoreNotServedError(SegmentStoreError):
    """No process serves the store at this folder, or it does not answer.

    The operator's move: `segmentstore serve FOLDER`.

    What was sent and not answered may have been done; sent again under the same numbers it is done
    once.
    """

    def __init__(self, folder: str, detail: str) -> None:
        super().__init__(f"the store at {folder} does not answer at its {SOCKET_NAME}: {detail}")
        self.folder = folder


class StoreRefusedError(SegmentStoreError):
    """The store refused a request.

    `code` is one of local_protocol.Code, `error` the class of the store's own error.
    """

    def __init__(self, code: int, error: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.error = error


class _AwayError(Exception):
    """The store said that it cannot now."""


class _Pending:
    """A request that is not answered."""

    __slots__ = ("answer", "message", "sent_again", "size")

    def __init__(self, message: Request, size: int) -> None:
        self.message = message
        self.size = size
        self.answer: Answer | None = None
        self.sent_again = False


class LocalClient:
    """A conversation with a store that goes on over its restarts:
    `async with LocalClient(folder) as client`.
    """

    def __init__(self, folder: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.folder = folder
        self.store_id = ""
        """Once open."""
        self.append_bytes_max = 0
        """The largest append the store takes; once open."""
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._pending: dict[int, _Pending] = {}
        """By number, in the order in which they were sent."""
        self._bytes = 0
        self._next = 1
        self._give_up: float | None = None
        """On the loop's clock; None while answers come."""
        self._wait_s = 0.0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Connect. Raises StoreNotServedError after `timeout_s`, StoreRefusedError."""
        await self._connect_again(ConnectionResetError("it was not asked yet"))
        self._give_up, self._wait_s = None, 0.0

    def close(self) -> None:
        """Hang up; what was not answered is left to its fate."""
        self._hang_up()
        self._pending.clear()
        self._bytes = 0

    # --- appends on their way together ------------------------------------------------------------

    async def send(self, segment: str, writer_id: bytes, event_number: int, data: bytes) -> None:
        """Append one event of a writer, in the order of the calls; waits only while too much is on
        its way.

        A refusal of this or an earlier one is raised by this call, a later one, or `settle`.
        AppendTooLargeError is raised at once, and nothing was sent.
        """
        self._check(segment, data)
        while self._pending and (
            len(self._pending) >= _WINDOW or self._bytes + len(data) > WINDOW_BYTES
        ):
            await self._receive()
        await self._send(Append(segment, writer_id, event_number, data), len(data))

    async def settle(self) -> None:
        """Wait until all that was sent is durable."""
        while self._pending:
            await self._receive()

    # --- one thing after another ------------------------------------------------------------------

    async def append(
        self, segment: str, writer_id: bytes, event_number: int, data: bytes
    ) -> int | None:
        """Append one event and wait; its offset, or None if the segment had it."""
        self._check(segment, data)
        return await self._stored(Append(segment, writer_id, event_number, data), len(data))

    async def merge(
        self, target: str, source: str, writer_id: bytes, event_number: int
    ) -> int | None:
        """Merge as an event of a writer on the target; the source's offset, or None if the target
        had the event.
        """
        return await self._stored(Merge(target, source, writer_id, event_number))

    async def merge_once(self, target: str, source: str) -> int | None:
        """Merge a source that nobody else merges or deletes; its offset, None if that is not known
        any more.

        It is not known if the store was lost while it answered; then the source is missing because
        it was merged.
        """
        pending = await self._ask(Merge(target, source, None, 0))
        answer = pending.answer
        if isinstance(answer, Refused) and answer.code == Code.NOT_FOUND and pending.sent_again:
            missing = await self._ask(Describe(target))
            if isinstance(missing.answer, Description):
                return None
        return self._expect(answer, Stored).offset

    async def last_event(self, segment: str, writer_id: bytes) -> int | None:
        """The highest event number the segment has of this writer, -1 for none; None if there is no
        such segment.
        """
        check_segment_name(segment)
        answer = (await self._ask(LastEvent(segment, writer_id))).answer
        if isinstance(answer, Refused) and answer.code == Code.NOT_FOUND:
            return None
        return self._expect(answer, EventNumber).number

    async def create(self, segment: str) -> bool:
        """Make a segment; False if it was there."""
        check_segment_name(segment)
        return await self._done_unless(Create(segment), Code.EXISTS)

    async def delete(self, segment: str) -> bool:
        """Remove a segment; False if there was none."""
        check_segment_name(segment)
        return await self._done_unless(Delete(segment), Code.NOT_FOUND)

    async def describe(self, segment: str) -> Description | None:
        """The segment's properties; None if there is none."""
        check_segment_name(segment)
        answer = (await self._ask(Describe(segment))).answer
        if isinstance(answer, Refused) and answer.code == Code.NOT_FOUND:
            return None
        return self._expect(answer, Description)

    async def check_mailbox(self) -> bool:
        """Have the store poll its mailbox now; False if it is of a version that does not know
        how.
        """
        answer = (await self._ask(CheckMailbox())).answer
        if isinstance(answer, Refused) and answer.code == Code.REQUEST_UNKNOWN:
            return False
        self._expect(answer, Done)
        return True

    async def names(self, prefix: str) -> list[str]:
        """Every name that begins with `prefix`, ascending.

        The store checks all its names for it.
        """
        found: list[str] = []
        while True:
            answer = self._expect(
                (await self._ask(ListNames(prefix, found[-1] if found else ""))).answer, Names
            )
            found += answer.names
            if not answer.more:
                return found

    def _check(self, segment: str, data: bytes) -> None:
        check_segment_name(segment)
        if len(data) > self.append_bytes_max:
            raise AppendTooLargeError(len(data), self.append_bytes_max)

    async def _stored(self, message: Append | Merge, length: int = 0) -> int | None:
        answer = (await self._ask(message, length)).answer
        return None if isinstance(answer, Duplicate) else self._expect(answer, Stored).offset

    async def _done_unless(self, message: Create | Delete, so_already: Code) -> bool:
        answer = (await self._ask(message)).answer
        if isinstance(answer, Refused) and answer.code == so_already:
            return False
        if isinstance(answer, Refused):
            raise _refusal(answer)
        return True

    def _expect(self, answer: Answer | None, kind: type[A]) -> A:
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused):
            raise _refusal(answer)
        raise StoreNotServedError(
            self.folder, f"it answered {answer!r} where {kind.__name__} was due"
        )

    # --- the wire ---------------------------------------------------------------------------------

    async def _ask(self, message: Request, length: int = 0) -> _Pending:
        """Send one request behind all others, and wait for its answer, which may be a refusal."""
        await self.settle()
        pending = await self._send(message, length)
        while pending.answer is None:
            await self._receive(alone=True)
        return pending

    async def _send(self, message: Request, length: int) -> _Pending:
        pending = self._pending[self._next] = _Pending(message, length)
        number, self._next = self._next, self._next + 1
        self._bytes += length
        try:
            if self._streams is None:
                raise ConnectionResetError("the conversation has ended")
            await self._write(number, pending)
        except (OSError, TimeoutError) as error:
            await self._connect_again(error)
        return pending

    async def _write(self, number: int, pending: _Pending) -> None:
        assert self._streams is not None
        writer = self._streams[1]
        writer.writelines(encode(number, pending.message))
        async with asyncio.timeout(self._timeout_s):
            await writer.drain()

    async def _receive(self, *, alone: bool = False) -> None:
        """Take one answer.

        A refusal is raised, unless it is of the only request, whose caller checks it.
        """
        assert self._streams is not None, "not open"
        try:
            number, answer = await self._read(self._streams[0])
            if isinstance(answer, Refused) and answer.code in {Code.AWAY, Code.BUSY}:
                raise _AwayError(answer.message)
        except (OSError, EOFError, TimeoutError, LocalProtocolError, _AwayError) as error:
            await self._connect_again(error)
            return
        pending = self._pending.pop(number, None)
        if pending is None and isinstance(answer, Refused):
            # Of the conversation, not of a request.
            self.close()
            raise _refusal(answer)
        if pending is None:
            raise StoreNotServedError(
                self.folder, f"it answered request {number}, which nobody made"
            )
        pending.answer = answer
        self._bytes -= pending.size
        self._give_up, self._wait_s = None, 0.0
        if isinstance(answer, Refused) and not alone:
            self.close()
            raise _refusal(answer)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, Answer]:
        async with asyncio.timeout(self._timeout_s):
            length = frame_length(await reader.readexactly(LENGTH_BYTES), _ANSWER_BYTES_MAX)
            return decode_answer(await reader.readexactly(length))

    # --- connections ------------------------------------------------------------------------------

    async def _connect_again(self, cause: BaseException) -> None:
        """A new connection on which everything unanswered is sent again.

        Gives up `timeout_s` after the first trouble.
        """
        loop = asyncio.get_running_loop()
        if self._give_up is None:
            self._give_up = loop.time() + self._timeout_s
        while True:
            self._hang_up()
            if loop.time() + self._wait_s > self._give_up:
                # No caller waits for the rest: a later call gets the same error.
                self.close()
                raise StoreNotServedError(
                    self.folder, str(cause) or type(cause).__name__
                ) from cause
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(_WAIT_MAX_S, max(_WAIT_FIRST_S, 2 * self._wait_s))
            try:
                await self._connect()
                for number, pending in self._pending.items():
                    pending.sent_again = True
                    await self._write(number, pending)
            except SegmentStoreError:
                self.close()
                raise
            except (OSError, EOFError, TimeoutError, LocalProtocolError, _AwayError) as error:
                cause = error
            else:
                return

    async def _connect(self) -> None:
        with socket_address(self.folder) as address:
            self._streams = await asyncio.open_unix_connection(address, limit=_ANSWER_BYTES_MAX)
        reader, writer = self._streams
        writer.writelines(encode(0, HandshakeRequest()))
        _, answer = await self._read(reader)
        if isinstance(answer, Refused) and answer.code in {Code.AWAY, Code.BUSY}:
            raise _AwayError(answer.message)
        try:
            welcome = self._expect(answer, HandshakeReply)
            if self.store_id not in {"", welcome.store_id}:
                raise StoreNotServedError(
                    self.folder, f"another store is there now: {welcome.store_id}"
                )
        except SegmentStoreError:
            self._hang_up()
            raise
        self.store_id, self.append_bytes_max = welcome.store_id, welcome.append_bytes_max

    def _hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _refusal(answer: Refused) -> StoreRefusedError:
    return StoreRefusedError(answer.code, answer.error, answer.message)
