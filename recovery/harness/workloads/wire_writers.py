"""Writers that append blocks of events over the wire, as Pravega's clients do: each has a number
that outlives process runs and connections.

A writer that connects again is given the number of its last event. It sends what follows, in blocks
that are cut anew. Rules of this file:

- one connection at a time, and the one before is cut. So the number given is final: what it does
  not cover was not stored;
- what a server must not answer is an error of the client, and so a violation of the run;
- a conditional append is sent behind others that are on their way, and nothing behind it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from recovery.harness.history import Call, CallKind, CallOutcome, Update
from recovery.harness.records import event_record
from recovery.harness.simulation.wire_connections import MemoryConnection
from recovery.harness.workloads.bench import ClientBench
from recovery.harness.workloads.stage import event_length
from segmentstore.wire.commands import (
    NOT_SET,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    Hello,
    KeepAlive,
    SetupAppend,
    WrongHost,
)
from segmentstore.wire.system_attributes import EVENT_COUNT

HELLO: Final = Hello(16, 5)
ATTEMPTS_MAX: Final = 6
"""Connections in succession that the server ended, after which a client gives up."""
_COUNTED: Final = (Update(EVENT_COUNT, "ACCUMULATE", 1),)
_NOT_STORED: Final = "NotStored"
"""The error of an event that a set-up did not cover."""


class WireFaultError(Exception):
    """The server, or a client of ours, did what it must not."""


@dataclass(slots=True)
class _Block:
    """An append without an answer."""

    number: int
    """Of its last event."""
    request_id: int
    calls: list[Call]
    expected: int | None = None
    """The offset at which alone it may be stored."""
    repeated: bool = False
    """It was stored before."""


async def write_blocks(bench: ClientBench) -> None:
    """Connects again whenever the connection was cut, until its part is done."""
    writer = _Writer(bench)
    refused = 0
    while bench.goes_on() and refused < ATTEMPTS_MAX:
        if await writer.converse():
            refused = 0
        else:
            refused += 1
            await bench.pause(2.0**refused)
    writer.give_up()


class _Writer:
    """One writer of one segment, in one process run."""

    def __init__(self, bench: ClientBench) -> None:
        names = bench.segments["blocks"]
        self._bench = bench
        self._store = bench.store
        self._name = names[bench.place % len(names)]
        self._number = bench.stage.writer(bench.place, bench.process_run)
        self._id = UUID(int=self._number).bytes
        self._unresolved: list[Call] = []
        """Events that were sent, by all connections, and whose outcome is open."""
        self._blocks: deque[_Block] = deque()
        """Of the connection."""
        self._next = 1
        self._acked = NOT_SET
        self._length: int | None = None
        """Of the segment, as acknowledged last."""

    async def converse(self) -> bool:
        """One connection to its end; False if it was the server that ended it."""
        bench = self._bench
        connection = bench.service.connect(bench.random)
        self._blocks.clear()
        self._length = None
        if not await self._set_up(connection):
            return connection.reached_bound
        await self._write(connection)
        by_itself = not connection.is_cut
        connection.cut()
        return by_itself or connection.reached_bound

    def give_up(self) -> None:
        """What is without an answer stays so."""
        self._resolve(None)

    # --- set-up -----------------------------------------------------------------------------------

    async def _set_up(self, connection: MemoryConnection) -> bool:
        call = self._store.begin(CallKind.SET_UP, self._name, writer=self._number)
        connection.put(HELLO, SetupAppend(1, self._id, self._name, ""))
        reply = await connection.take()
        if isinstance(reply, Hello):
            reply = await connection.take()
        if not isinstance(reply, AppendSetup):
            if reply is not None and not isinstance(reply, WrongHost):
                raise WireFaultError(f"SetupAppend is answered by {reply}")
            self._store.ended(call, CallOutcome.UNKNOWN)
            return False
        self._acked = reply.last_event_number
        last = 0 if self._acked == NOT_SET else self._acked
        call.result = None if self._acked == NOT_SET else last
        self._store.ended(call, CallOutcome.OK)
        self._resolve(last)
        self._next = last + 1
        if last and self._bench.rng(0.15):
            self._repeat(connection, last)
        return True

    def _resolve(self, last: int | None) -> None:
        """End what is open, by the last number that is stored; None: it is not known."""
        for call in self._unresolved:
            if last is None:
                self._store.ended(call, CallOutcome.UNKNOWN)
            elif call.event <= last:
                self._store.ended(call, CallOutcome.OK)
            else:
                call.error = _NOT_STORED
                self._store.ended(call, CallOutcome.REFUSED)
        self._unresolved.clear()

    # --- appends ----------------------------------------------------------------------------------

    async def _write(self, connection: MemoryConnection) -> None:
        bench = self._bench
        window = bench.random.choice((1, 2, 8, 30))
        one_request_id = bench.rng(0.7)
        while bench.goes_on() and not connection.is_cut and not bench.rng(0.02):
            request_id = 1 if one_request_id else self._next + 1
            if bench.rng(0.1):
                self._append_conditionally(connection, request_id)
                if not await self._drain(connection):
                    return
            else:
                self._append(connection, request_id)
            if bench.rng(0.05):
                connection.put(KeepAlive())
            while len(self._blocks) >= window or (self._blocks and bench.rng(0.2)):
                if not await self._take(connection):
                    return
        if bench.rng(0.6) or not bench.goes_on():
            await self._drain(connection)

    def _append(self, connection: MemoryConnection, request_id: int) -> None:
        count = self._bench.random.choice((1, 1, 2, 3, 6))
        data = self._begin_block(range(self._next, self._next + count), request_id)
        self._next += count
        if self._bench.rng(0.7):
            self._put(connection, data, count, request_id)
        else:
            end = AppendBlockEnd(self._id, len(data), b"", count, self._next - 1, request_id)
            connection.put(AppendBlock(self._id, data), end)

    def _put(self, connection: MemoryConnection, data: bytes, count: int, request_id: int) -> None:
        number = self._blocks[-1].number
        connection.put(AppendBlockEnd(self._id, 0, data, count, number, request_id))

    def _repeat(self, connection: MemoryConnection, last: int) -> None:
        """Send events that are stored already."""
        first = max(1, last - self._bench.random.randrange(3))
        data = self._begin_block(range(first, last + 1), 1, repeated=True)
        self._put(connection, data, last + 1 - first, 1)

    def _append_conditionally(self, connection: MemoryConnection, request_id: int) -> None:
        """Mostly where other appends, which are on their way, make the condition fail."""
        expected = self._length or 0
        data = self._begin_block(range(self._next, self._next + 1), request_id, expected=expected)
        number, self._next = self._next, self._next + 1
        connection.put(ConditionalBlockEnd(self._id, number, expected, data, request_id))

    def _begin_block(
        self,
        events: range,
        request_id: int,
        *,
        expected: int | None = None,
        repeated: bool = False,
    ) -> bytes:
        """Note events that are about to be sent as one append; their bytes."""
        block = _Block(events[-1], request_id, [], expected, repeated)
        records = []
        for event in events:
            length = event_length(self._number, event)
            record = event_record(self._number, event, length)
            call = self._store.begin(
                CallKind.EVENT,
                self._name,
                lengths=(length,),
                size=len(record),
                writer=self._number,
                event=event,
                updates=() if repeated else _COUNTED,
            )
            block.calls.append(call)
            records.append(record)
        self._unresolved += block.calls
        self._blocks.append(block)
        return b"".join(records)

    # --- replies ----------------------------------------------------------------------------------

    async def _drain(self, connection: MemoryConnection) -> bool:
        while self._blocks:
            if not await self._take(connection):
                return False
        return True

    async def _take(self, connection: MemoryConnection) -> bool:
        """Take one reply; False if there is none any more."""
        reply: Command | None = await connection.take()
        if isinstance(reply, DataAppended):
            self._acknowledged(reply)
        elif isinstance(reply, ConditionalCheckFailed):
            self._check_failed(reply)
        elif isinstance(reply, WrongHost):
            return False
        elif reply is not None and not isinstance(reply, KeepAlive):
            raise WireFaultError(f"appends of writer {self._number} are answered by {reply}")
        return reply is not None

    def _acknowledged(self, reply: DataAppended) -> None:
        previous = {self._acked}
        answered: list[_Block] = []
        while self._blocks and self._blocks[0].number <= reply.event_number:
            block = self._blocks.popleft()
            answered.append(block)
            if block.repeated:
                previous.add(block.number - 1)
        fault = f"writer {self._number} has {self._acked} acknowledged, and now {reply}"
        if not answered or answered[-1].number != reply.event_number:
            raise WireFaultError(fault)
        if reply.previous_event_number not in previous:
            raise WireFaultError(fault)
        ids = {block.request_id for block in answered}
        if ids != {reply.request_id}:
            raise WireFaultError(f"{fault}, of the requests {sorted(ids)}")
        self._acked = max(self._acked, reply.event_number)
        last = answered[-1]
        if reply.length >= 0:
            self._place(last, reply.length)
        if last.expected is not None and last.calls[0].result != last.expected:
            raise WireFaultError(f"{fault}, at an offset that is not the expected {last.expected}")
        for block in answered:
            for call in block.calls:
                self._end(call, CallOutcome.OK)

    def _place(self, block: _Block, length: int) -> None:
        """The block ends at `length` of the segment: so each event of it has its offset."""
        self._length = length
        for call in reversed(block.calls):
            length -= call.size
            call.result = length

    def _check_failed(self, reply: ConditionalCheckFailed) -> None:
        block = self._blocks.popleft()
        if block.expected is None or reply.event_number != block.number:
            raise WireFaultError(f"{reply} came before the answer of event {block.number}")
        block.calls[0].error = "BadOffsetError"
        self._end(block.calls[0], CallOutcome.REFUSED)
        self._next = block.number

    def _end(self, call: Call, outcome: CallOutcome) -> None:
        self._unresolved.remove(call)
        self._store.ended(call, outcome)
