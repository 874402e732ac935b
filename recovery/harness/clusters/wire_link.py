"""WireLink: one connection of a client of the wire protocol, as Pravega's clients have it.

A connection that is silent is probed with KeepAlive, and given up SILENT_S after its last byte: a
stopped process, or a cut that drops everything, closes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self

from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command, Hello, KeepAlive, Request
from segmentstore.wire.errors import WireError
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder

SILENT_S: Final = 5.0
_VERSION: Final = Hello(16, 5)
_READ_BYTES: Final = 1 << 16


class WireLostError(Exception):
    """The connection has ended, or the segment is not served at its other end."""


class WireLink:
    """To one host, from `open` to `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(REPLIES)
        self._replies: deque[Command] = deque()
        self._loop = asyncio.get_running_loop()
        self._received_s = self._loop.time()
        self._is_probed = False

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect, and say which versions are spoken. Raises WireLostError."""
        try:
            async with asyncio.timeout(SILENT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise WireLostError(f"{host}:{port}: {error!r}") from error
        connection = cls(reader, writer)
        connection.put(_VERSION)
        return connection

    def put(self, *commands: Request) -> None:
        """Send commands."""
        self._writer.writelines(map(encode, commands))

    async def take(self, seconds: float) -> Command | None:
        """The next reply, but for Hello and KeepAlive; None if there is none for so long.

        Raises WireLostError.
        """
        end_s = self._loop.time() + seconds
        while not self._replies:
            now_s = self._loop.time()
            silent_s = now_s - self._received_s
            if silent_s >= SILENT_S:
                raise WireLostError(f"there was nothing for {silent_s:.1f} s")
            if silent_s >= SILENT_S / 2 and not self._is_probed:
                self._is_probed = True
                self.put(KeepAlive())
            probe_s = self._received_s + (SILENT_S if self._is_probed else SILENT_S / 2)
            try:
                async with asyncio.timeout_at(min(end_s, probe_s)):
                    await self._read()
            except TimeoutError:
                if self._loop.time() >= end_s:
                    return None
        return self._replies.popleft()

    async def _read(self) -> None:
        try:
            data = await self._reader.read(_READ_BYTES)
            replies = self._decoder.feed(data)
        except (OSError, WireError) as error:
            raise WireLostError(repr(error)) from error
        if not data:
            raise WireLostError("it was closed")
        self._received_s, self._is_probed = self._loop.time(), False
        self._replies += (each for each in replies if not isinstance(each, Hello | KeepAlive))

    def close(self) -> None:
        """End it. Idempotent."""
        self._writer.close()
