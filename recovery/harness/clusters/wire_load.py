"""WireClients: clients of Pravega's wire protocol at work until they are stopped: a writer and a
reader for each segment of a stream.

Rules of this file:

- where a segment is they ask the Controller, as Pravega's clients do. WrongHost, the end of a
  connection, or silence makes them ask again;
- a writer that connects again is given the number of its last event that is stored, and sends what
  follows. So each event is there once, and in order;
- what the protocol does not allow a server to answer is an error, which ends the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from uuid import UUID

from recovery.harness.clusters.controller_client import ControllerClient
from recovery.harness.clusters.sent_events import FollowedSegment, Sender, event_bytes
from recovery.harness.clusters.wire_link import WireLink, WireLostError
from segmentstore.controller.names import ScopedName, segment_name
from segmentstore.wire.commands import (
    NOT_SET,
    AppendBlockEnd,
    AppendSetup,
    Command,
    DataAppended,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    WrongHost,
)

SEGMENTS: Final = 6
"""Of the stream, each with a writer and a reader."""
_STREAM: Final = ScopedName("cycles", "events")
_IN_FLIGHT: Final = 64
_AGAIN_S: Final = 0.05
_READ_BYTES: Final = 1 << 20


class WrongAnswerError(Exception):
    """A server has answered what it must not."""


class WireClients:
    """Their senders are numbered from `first` on; the first event goes out `pause_s` before the
    second one.
    """

    def __init__(self, controllers: Sequence[str], first: int, pause_s: float) -> None:
        self._controller = ControllerClient(controllers)
        self._pause_s = pause_s
        names = [segment_name(_STREAM, number) for number in range(SEGMENTS)]
        self.senders = [Sender(first + n, name, exactly_once=True) for n, name in enumerate(names)]
        self.followed = [FollowedSegment(name) for name in names]
        self._stopping = False
        self._sending: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Create the stream, and have all clients begin."""
        segments = await self._controller.make_stream(_STREAM, SEGMENTS)
        for segment, sender, followed in zip(segments, self.senders, self.followed, strict=True):
            self._sending.append(asyncio.create_task(self._send(segment, sender)))
            self._following.append(asyncio.create_task(self._follow(segment, followed)))

    async def end(self) -> None:
        """Have all senders end with what they are at."""
        self._stopping = True
        await asyncio.gather(*self._sending)

    async def close(self) -> None:
        """End all. Idempotent."""
        self._stopping = True
        tasks = [*self._sending, *self._following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._controller.close()

    async def _send(self, segment: int, sender: Sender) -> None:
        writer = WireWriter(sender, self._pause_s, lambda: self._stopping)
        try:
            while not writer.is_done:
                await self._converse(segment, writer.converse)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client may see it
            sender.errors.append(f"{type(error).__name__}: {error}")

    async def _follow(self, segment: int, followed: FollowedSegment) -> None:
        async def read(connection: WireLink) -> None:
            await _read_on(connection, followed)

        try:
            while True:
                await self._converse(segment, read)
        except Exception as error:  # noqa: BLE001 - the judgement has it
            followed.error = f"{type(error).__name__}: {error}"

    async def _converse(
        self, segment: int, talk: Callable[[WireLink], Coroutine[Any, Any, None]]
    ) -> None:
        """One connection to the owner of a segment, as the Controller knows it, to its end."""
        host, port = await self._controller.address_of(_STREAM, segment)
        try:
            connection = await WireLink.open(host, port)
            try:
                await talk(connection)
            finally:
                connection.close()
        except WireLostError:
            await asyncio.sleep(_AGAIN_S)


class WireWriter:
    """One writer, over all its connections."""

    def __init__(self, sender: Sender, pause_s: float, stopping: Callable[[], bool]) -> None:
        self._sender = sender
        self._id = UUID(int=sender.number + 1).bytes
        self._pause_s = pause_s
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, float]] = deque()
        """Events without an answer, with the time of their first sending."""

    @property
    def is_done(self) -> bool:
        """It is stopped, and all that it sent is acknowledged."""
        return self._stopping() and not self._waiting

    async def converse(self, connection: WireLink) -> None:
        """Send what is not stored, and go on. Raises WireLostError; returns when it is done."""
        connection.put(SetupAppend(1, self._id, self._sender.segment, ""))
        reply: Command | None = None
        while reply is None:
            reply = await connection.take(self._pause_s)
        if not isinstance(reply, AppendSetup):
            raise _refusal(reply)
        acknowledged = reply.last_event_number
        self._stored(acknowledged)
        for number, _ in self._waiting:
            self._put(connection, number)
        next_s = self._loop.time()
        while not self.is_done:
            if self._loop.time() >= next_s:
                next_s = self._loop.time() + self._pause_s
                if not self._stopping() and len(self._waiting) < _IN_FLIGHT:
                    number, self._sender.sent = self._sender.sent, self._sender.sent + 1
                    self._waiting.append((number, self._loop.time()))
                    self._put(connection, number)
            reply = await connection.take(max(0.0, next_s - self._loop.time()))
            if reply is None:
                continue
            if not isinstance(reply, DataAppended):
                raise _refusal(reply)
            if reply.previous_event_number != acknowledged:
                raise WrongAnswerError(f"{acknowledged} was acknowledged before {reply}")
            acknowledged = reply.event_number
            self._appended(reply)

    def _put(self, connection: WireLink, number: int) -> None:
        data = event_bytes(self._sender.number, number)
        connection.put(AppendBlockEnd(self._id, 0, data, 1, number, 1))

    def _stored(self, last: int) -> None:
        """Of a new connection: all events up to `last` are stored, and those behind are not."""
        known, sent = self._sender.last_acknowledged, self._sender.sent
        last = -1 if last == NOT_SET else last
        if not known <= last < max(sent, 1):
            raise WrongAnswerError(f"{last} is the last event, of {sent}; {known} was acknowledged")
        while self._waiting and self._waiting[0][0] <= last:
            self._acknowledge(None)

    def _appended(self, reply: DataAppended) -> None:
        """All events up to that of the reply are stored, and the segment ends behind that one."""
        if not self._waiting or not self._waiting[0][0] <= reply.event_number < self._sender.sent:
            raise WrongAnswerError(f"{reply}, and {self._sender.sent} events were sent")
        while self._waiting and self._waiting[0][0] < reply.event_number:
            self._acknowledge(None)
        data = event_bytes(self._sender.number, reply.event_number)
        self._acknowledge(reply.length - len(data) if reply.length >= 0 else None)

    def _acknowledge(self, offset: int | None) -> None:
        number, begun_s = self._waiting.popleft()
        self._sender.acknowledge(number, offset, self._loop.time() - begun_s)


async def _read_on(connection: WireLink, followed: FollowedSegment) -> None:
    """Read what follows on what there is, for ever. Raises WireLostError."""
    request_id = 0
    while True:
        request_id += 1
        connection.put(ReadSegment(followed.name, followed.length, _READ_BYTES, "", request_id))
        reply: Command | None = None
        while reply is None:
            # At the end of the segment it is answered when there is more.
            reply = await connection.take(1.0)
        if not isinstance(reply, SegmentRead):
            raise _refusal(reply)
        if reply.offset != followed.length or not reply.data:
            found = f"{len(reply.data)} bytes at {reply.offset}"
            raise WrongAnswerError(f"{found}, not at {followed.length}")
        followed.add(bytes(reply.data))


def _refusal(reply: Command) -> Exception:
    if isinstance(reply, WrongHost):
        return WireLostError(f"it is not served there: {reply}")
    return WrongAnswerError(str(reply))
