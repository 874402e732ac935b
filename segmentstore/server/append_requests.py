"""ConnectionAppends: SetupAppend and the appends of one connection, for all its writers.

An append costs a future and no task. Bytes of appends on their way are counted; the connection
stops reading its socket while there are too many (segmentstore/server/outstanding.py).

A set-up is answered when all that the writer has on its way to the segment is settled, on whatever
connection it came. So the number in the answer is final, and the writer need not connect again.
Appends that come before the answer wait for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from segmentstore.block_writer import BlockWriter
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidArgumentError,
    NotPrimaryError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    TooManyAttributesError,
)
from segmentstore.server.outstanding import OutstandingShare, ignore
from segmentstore.server.server_context import ServerContext
from segmentstore.tables.table_types import TABLE_ATTRIBUTES
from segmentstore.wire.append_blocks import Append
from segmentstore.wire.append_session import (
    AppendAcknowledged,
    AppendRefused,
    AppendReport,
    AppendSession,
    AppendTicket,
    Refusal,
)
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    ErrorMessage,
    InvalidEventNumber,
    NoSuchSegment,
    SegmentIsSealed,
    SetupAppend,
    WrongHost,
)
from segmentstore.wire.errors import WireError
from segmentstore.wire.system_attributes import EVENT_COUNT

WRITERS_MAX: Final = 65_536
"""Writers of one connection."""
_NO_WRITERS: Final = frozenset(each.bytes for each in (*TABLE_ATTRIBUTES, EVENT_COUNT))
"""A writer's id is an attribute: these say that a segment is a table, and count its events."""
HELD_BYTES_MAX: Final = 32 << 20
"""Appends of one writer that came before its set-up was answered."""

AppendRequest = Append | ConditionalAppend | ConditionalBlockEnd


class _Block(NamedTuple):
    """An append of any kind."""

    number: int
    request_id: int
    data: bytes
    event_count: int
    expected_offset: int | None


class _Writer:
    """A writer of the connection: in set-up, or with its session."""

    __slots__ = ("blocks", "held", "held_bytes", "is_due", "session")

    def __init__(self) -> None:
        self.session: AppendSession | None = None
        self.blocks: BlockWriter | None = None
        self.held: list[_Block] = []
        self.held_bytes = 0
        self.is_due = False
        """Its reports are sent in this turn of the loop."""


class ConnectionAppends:
    """The appends of one connection. `send` writes a reply; `end(reason)` closes the connection."""

    def __init__(
        self,
        context: ServerContext,
        share: OutstandingShare,
        send: Callable[[Command], None],
        end: Callable[[str], None],
    ) -> None:
        self._context = context
        self._share = share
        self._send = send
        self._end = end
        self._writers: dict[bytes, _Writer] = {}
        self.in_flight = 0
        """Appends that were begun and have no outcome yet."""
        self._quiet: asyncio.Future[None] | None = None

    # --- set-up -----------------------------------------------------------------------------------

    def set_up(self, request: SetupAppend) -> Coroutine[Any, Any, None]:
        """Begin a writer's appends to a segment, and give what is left: waiting, and the reply.

        That raises what reading an attribute raises. Raises WireError for one writer too many.
        """
        if len(self._writers) >= WRITERS_MAX and request.writer_id not in self._writers:
            raise WireError(f"a connection has at most {WRITERS_MAX} writers")
        writer = self._writers[request.writer_id] = _Writer()
        return self._answer_set_up(request, writer)

    async def _answer_set_up(self, request: SetupAppend, writer: _Writer) -> None:
        segment, writer_id = request.segment, request.writer_id
        try:
            if writer_id in _NO_WRITERS:
                raise InvalidArgumentError("writer_id", writer_id.hex(), "it has another meaning")
            await self._context.kinds.require_stream(segment)
            blocks = self._context.store.block_writer(
                segment, uuid.UUID(bytes=writer_id), EVENT_COUNT
            )
            last = await self._settled_number(segment, writer_id, blocks)
        except BaseException:
            self._release_held(writer)
            if self._writers.get(writer_id) is writer:
                del self._writers[writer_id]
            raise
        held = self._release_held(writer)
        if self._writers.get(writer_id) is not writer:
            # It was set up anew meanwhile, and that is what is answered; or the connection ended.
            return
        writer.blocks = blocks
        writer.session = AppendSession(segment, last)
        self._send(AppendSetup(request.request_id, segment, writer_id, last))
        for block in held:
            self._begin(writer_id, writer, writer.session, blocks, block)

    async def _settled_number(self, segment: str, writer_id: bytes, blocks: BlockWriter) -> int:
        """The writer's number in the segment while it has nothing on its way there."""
        in_flight = self._context.in_flight
        while True:
            await in_flight.none(segment, writer_id)
            with in_flight.watch(segment, writer_id) as begun:
                last = await blocks.last_number()
            # What another connection held for its own set-up may have begun and settled meanwhile.
            if not begun.is_set():
                return last

    def close(self) -> None:
        """The connection has ended: what is held for set-ups does not begin any more."""
        for writer in self._writers.values():
            self._release_held(writer)
        self._writers.clear()
        self._send = self._end = ignore

    def _release_held(self, writer: _Writer) -> list[_Block]:
        held, writer.held = writer.held, []
        self._share.give_back(writer.held_bytes)
        writer.held_bytes = 0
        return held

    # --- appends ----------------------------------------------------------------------------------

    def append(self, request: AppendRequest, *, has_room: bool) -> asyncio.Future[None] | None:
        """Begin an append. Unless it `has_room`, give what it has to wait for: room in the
        container's queue, None if there is some.

        Raises WireError if the writer may not send it.
        """
        writer = self._writers.get(request.writer_id)
        if writer is None:
            raise WireError("an append of a writer without SetupAppend")
        session, blocks = writer.session, writer.blocks
        if session is None or blocks is None:
            self._hold(writer, _block(request))
            return None
        if session.ended:
            return None
        if not has_room and (room := blocks.room(_size(request))) is not None:
            return room
        self._begin(request.writer_id, writer, session, blocks, _block(request))
        return None

    def _hold(self, writer: _Writer, block: _Block) -> None:
        """Until its set-up is answered."""
        size = len(block.data)
        if writer.held_bytes + size > HELD_BYTES_MAX:
            raise WireError(f"more than {HELD_BYTES_MAX} bytes were sent before AppendSetup")
        writer.held_bytes += size
        self._share.take(size)
        writer.held.append(block)

    def _begin(
        self,
        writer_id: bytes,
        writer: _Writer,
        session: AppendSession,
        blocks: BlockWriter,
        block: _Block,
    ) -> None:
        ticket = session.begin(block.number, block.request_id)
        if ticket.is_repeated:
            self._report_soon(writer_id, writer)
            return
        number, _, data, event_count, expected_offset = block
        size = len(data)
        future = blocks.append(data, number, ticket.expected, event_count, expected_offset)
        self._share.take(size)
        self.in_flight += 1
        self._context.in_flight.begun(session.segment, writer_id)
        self._context.counts.appends += 1
        self._context.counts.append_bytes += size
        future.add_done_callback(partial(self._settled, writer_id, writer, ticket, size))

    def _settled(
        self,
        writer_id: bytes,
        writer: _Writer,
        ticket: AppendTicket,
        size: int,
        future: asyncio.Future[int],
    ) -> None:
        assert writer.session is not None
        self._context.in_flight.settled(writer.session.segment, writer_id)
        self.in_flight -= 1
        error = future.exception()
        if error is None:
            ticket.stored(future.result() + size)
        else:
            ticket.refused(self._refusal(error, writer_id))
        self._share.give_back(size)
        self._report_soon(writer_id, writer)
        if self._quiet is not None and not self.in_flight:
            self._quiet.set_result(None)
            self._quiet = None

    def _refusal(self, error: BaseException, writer_id: bytes) -> Refusal:
        if isinstance(error, BadOffsetError):
            return Refusal.OFFSET
        if isinstance(error, BadAttributeUpdateError):
            # The other attribute of an append is its count, which a client may have set.
            is_number = error.attribute_id == uuid.UUID(bytes=writer_id)
            return Refusal.NUMBER if is_number else Refusal.ILLEGAL
        if isinstance(error, SegmentSealedError):
            return Refusal.SEALED
        if isinstance(error, AppendTooLargeError | TooManyAttributesError):
            return Refusal.ILLEGAL
        if isinstance(error, SegmentNotFoundError):
            return Refusal.MISSING
        if isinstance(error, NotPrimaryError):
            return Refusal.ELSEWHERE
        if not isinstance(error, SegmentStoreError):
            self._context.report_bug("an append", error)
        return Refusal.UNKNOWN

    # --- reports ----------------------------------------------------------------------------------

    def _report_soon(self, writer_id: bytes, writer: _Writer) -> None:
        """AppendReport at the end of this turn of the loop: acknowledgements of it become one."""
        if not writer.is_due:
            writer.is_due = True
            asyncio.get_running_loop().call_soon(self._report, writer_id, writer)

    def _report(self, writer_id: bytes, writer: _Writer) -> None:
        writer.is_due = False
        session = writer.session
        assert session is not None
        for report in session.settle():
            self._send_report(report, writer_id, session)

    def _send_report(self, report: AppendReport, writer_id: bytes, session: AppendSession) -> None:
        rid = report.request_id
        if isinstance(report, AppendAcknowledged):
            self._send(DataAppended(writer_id, report.number, report.previous, rid, report.length))
            return
        self._context.counts.refused(f"append {report.reason.name.lower()}")
        reply = _refused(report, writer_id, session)
        if reply is not None:
            self._send(reply)
        if report.reason is Refusal.NUMBER or reply is None:
            self._end(f"an append of event {report.number}: {report.reason.name.lower()}")

    async def quiet(self) -> None:
        """Wait until no append is on its way."""
        if self.in_flight:
            if self._quiet is None:
                self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._quiet,))


def _refused(report: AppendRefused, writer_id: bytes, session: AppendSession) -> Command | None:
    rid, segment = report.request_id, session.segment
    match report.reason:
        case Refusal.OFFSET:
            return ConditionalCheckFailed(writer_id, report.number, rid)
        case Refusal.NUMBER:
            return InvalidEventNumber(writer_id, rid, "", report.number)
        case Refusal.SEALED:
            return SegmentIsSealed(rid, segment, "", report.number)
        case Refusal.MISSING:
            return NoSuchSegment(rid, segment, "", -1)
        case Refusal.ELSEWHERE:
            return WrongHost(rid, segment, "", "")
        case Refusal.ILLEGAL:
            text = (
                "the append is too large, or the segment has too many attributes, or its count of "
                "events would leave 64 bits"
            )
            return ErrorMessage(rid, segment, text, ILLEGAL_ARGUMENT)
        case _:
            return None


def _block(request: AppendRequest) -> _Block:
    if isinstance(request, Append):
        data = b"".join(request.data)
        return _Block(
            request.last_event_number, request.request_id, data, request.event_count, None
        )
    return _Block(
        request.event_number, request.request_id, bytes(request.data), 1, request.expected_offset
    )


def _size(request: AppendRequest) -> int:
    return sum(map(len, request.data)) if isinstance(request, Append) else len(request.data)
