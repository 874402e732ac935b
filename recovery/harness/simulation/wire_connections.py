"""Connections in memory, which can be cut at any byte of either direction.

A client's end is here; the other end is the protocol that a server gives for each connection. Rules
of this file:

- what is sent reaches the protocol at once, unless it does not read just now. Then it waits, and a
  cut loses it;
- a cut ends both directions. The protocol learns of it in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command, Request
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder


class MemoryConnection:
    """A client's end of a connection to a protocol.

    `sent_max` and `received_max` are the bytes of each direction that arrive before it is cut, None
    for all of them.
    """

    def __init__(
        self,
        accept: Callable[[], asyncio.Protocol],
        sent_max: int | None = None,
        received_max: int | None = None,
    ) -> None:
        self._left = {"sent": sent_max, "received": received_max}
        self.sent = self.received = 0
        self._decoder = FrameDecoder(REPLIES)
        self._replies: deque[Command] = deque()
        self._arrived = asyncio.Event()
        self._is_paused = False
        self._unread: deque[bytes] = deque()
        self.is_cut = False
        self._protocol = accept()
        self._protocol.connection_made(_ServerEnd(self))

    @property
    def reached_bound(self) -> bool:
        """Whether it was cut because a direction had all its bytes."""
        return 0 in self._left.values()

    def put(self, *commands: Request) -> None:
        """Send commands."""
        for command in commands:
            data = self._within("sent", encode(command))
            self.sent += len(data)
            if data:
                self._unread.append(data)
                self._deliver()
            if self._left["sent"] == 0:
                self.cut()

    async def take(self) -> Command | None:
        """The next reply; None once it is cut."""
        while not self._replies:
            if self.is_cut:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._replies.popleft()

    def arrive(self, data: bytes) -> None:
        """The server has written."""
        data = self._within("received", data)
        self.received += len(data)
        self._replies.extend(self._decoder.feed(data))
        self._arrived.set()
        if self._left["received"] == 0:
            self.cut()

    def cut(self) -> None:
        """End it, for both sides."""
        if not self.is_cut:
            self.is_cut = True
            self._unread.clear()
            self._arrived.set()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def pause(self) -> None:
        """The server does not read."""
        self._is_paused = True

    def resume(self) -> None:
        """It reads again, from the next turn of the loop on."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._unread and not self._is_paused and not self.is_cut:
            self._protocol.data_received(self._unread.popleft())

    def _within(self, direction: str, data: bytes) -> bytes:
        left = self._left[direction]
        if self.is_cut:
            return b""
        if left is not None:
            data = data[:left]
            self._left[direction] = left - len(data)
        return data


class _ServerEnd(asyncio.Transport):
    """What the server's protocol writes to."""

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__({"peername": "memory"})
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.arrive(bytes(data))

    def is_closing(self) -> bool:
        return self._connection.is_cut

    def close(self) -> None:
        self._connection.cut()

    def abort(self) -> None:
        self._connection.cut()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here: the client reads at once."""

    def pause_reading(self) -> None:
        self._connection.pause()

    def resume_reading(self) -> None:
        self._connection.resume()
