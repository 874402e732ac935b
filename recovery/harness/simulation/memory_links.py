"""Links: a client's protocol and a server's, joined in memory, until a cut at some byte.

Rules of this file:

- what one side writes reaches the other later, in order and in the same pieces;
- a cut ends both directions and loses what is on its way. An orderly close of one side lets what it
  wrote before arrive;
- both protocols learn of the end later, as a piece would take. What they write meanwhile is not
  sent: their transports are closing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeVar

T = TypeVar("T")

Side = Literal["client", "server"]


class LinkWatch(Protocol):
    """Sees what passes at the client's end of a link."""

    def sent(self, data: bytes) -> None:
        """The client has written."""

    def received(self, data: bytes) -> None:
        """Bytes have reached the client."""


class _Direction:
    """Bytes on their way to one protocol."""

    __slots__ = ("chunks", "is_paused", "left", "protocol", "sender")

    def __init__(self, sender: Side, protocol: asyncio.Protocol, left: int | None) -> None:
        self.sender: Final = sender
        self.protocol: Final = protocol
        self.left = left
        """Bytes that arrive before the cut; None for all."""
        self.chunks: deque[bytes | None] = deque()
        """None: the sender has closed."""
        self.is_paused = False


class MemoryLink:
    """A connection of a client's protocol to a server's.

    `sent_max` and `received_max` are the bytes of each direction, as the client sees it, that
    arrive before it is cut, None for all. `delay_s` is what each piece takes.
    """

    def __init__(
        self,
        client: asyncio.Protocol,
        server: asyncio.Protocol,
        sent_max: int | None = None,
        received_max: int | None = None,
        delay_s: float = 0.0,
        watch: LinkWatch | None = None,
    ) -> None:
        self.ended_by: Side | Literal["", "cut"] = ""
        """The side that closed it first, or a cut; empty while it is open."""
        self._loop = asyncio.get_running_loop()
        self._delay_s = delay_s
        self._watch = watch
        self._to_server = _Direction("client", server, sent_max)
        self._to_client = _Direction("server", client, received_max)
        server.connection_made(_LinkEnd(self, self._to_client, self._to_server))
        client.connection_made(_LinkEnd(self, self._to_server, self._to_client))

    @property
    def is_cut(self) -> bool:
        """Whether it has ended, however that came."""
        return bool(self.ended_by)

    def cut(self) -> None:
        """End it at once, for both sides. Idempotent."""
        self.end("cut")

    def end(self, by: Side | Literal["cut"]) -> None:
        """End it at once. Idempotent."""
        if not self.ended_by:
            self.ended_by = by
            for direction in (self._to_server, self._to_client):
                direction.chunks.clear()
                self._later(direction.protocol.connection_lost, None)

    def write(self, direction: _Direction, data: bytes | None) -> None:
        """Put a piece on its way; None: the sender closes."""
        if self.ended_by or (direction.chunks and direction.chunks[-1] is None):
            return
        if data and direction.sender == "client" and self._watch is not None:
            self._watch.sent(data)
        direction.chunks.append(data)
        self.deliver_soon(direction)

    def deliver_soon(self, direction: _Direction) -> None:
        """Deliver what is on its way, after the delay."""
        self._later(self._deliver, direction)

    def _later(self, callback: Callable[[T], object], argument: T) -> None:
        if self._delay_s:
            self._loop.call_later(self._delay_s, callback, argument)
        else:
            self._loop.call_soon(callback, argument)

    def _deliver(self, direction: _Direction) -> None:
        while direction.chunks and not direction.is_paused:
            data = direction.chunks.popleft()
            if data is None:
                self.end(direction.sender)
                return
            if direction.left is not None:
                data = data[: direction.left]
                direction.left -= len(data)
            if direction.sender == "server" and self._watch is not None:
                self._watch.received(data)
            direction.protocol.data_received(data)
            if direction.left == 0:
                self.cut()


class _LinkEnd(asyncio.Transport):
    """What a protocol writes to."""

    def __init__(self, link: MemoryLink, out: _Direction, into: _Direction) -> None:
        super().__init__({"peername": "memory"})
        self._link = link
        self._out = out
        self._into = into
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._link.write(self._out, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing or self._link.is_cut

    def close(self) -> None:
        self._is_closing = True
        self._link.write(self._out, None)

    def abort(self) -> None:
        self._is_closing = True
        self._link.end(self._out.sender)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here for the other side."""

    def pause_reading(self) -> None:
        self._into.is_paused = True

    def resume_reading(self) -> None:
        if self._into.is_paused:
            self._into.is_paused = False
            self._link.deliver_soon(self._into)
