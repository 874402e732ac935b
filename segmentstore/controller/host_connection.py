"""HostConnection: the wire connection of a Controller to another process that serves segments.

Opened when it is needed, and again after it broke. Requests go side by side. One whose outcome is
not known fails: what the Controller does to segments may be repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

from segmentstore.contracts.errors import describe
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.controller.segment_actions import HostUnavailableError
from segmentstore.published_hosts import PublishedAddress
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command, Hello, Request
from segmentstore.wire.errors import WireError
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder

ANSWER_S: Final = 30.0
"""Longest that an answer, or a connection, may take."""
_READ_BYTES: Final = 64 * 1024
_VERSION: Final = Hello(16, 5)


class HostConnection:
    """To one address. `close` it at the end."""

    def __init__(self, address: PublishedAddress, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._number = 0
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def ask(self, make: Callable[[int], Request]) -> Command:
        """The reply to the request that `make` gives for a request id.

        Raises HostUnavailableError: it may have been carried out.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                async with self._opening:
                    writer = self._writer or await self._open()
                self._number += 1
                number = self._number
                future = asyncio.get_running_loop().create_future()
                self._asked[number] = future
                try:
                    writer.write(encode(make(number)))
                    reply: Command = await future
                finally:
                    del self._asked[number]
        except (OSError, TimeoutError) as error:
            raise self._unavailable(error) from error
        return reply

    async def close(self) -> None:
        """Fail what waits. Idempotent."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    async def _open(self) -> asyncio.StreamWriter:
        self._check_open()
        host, port = self._address
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            self._check_open()
        except HostUnavailableError:
            writer.close()
            raise
        writer.write(encode(_VERSION))
        self._writer = writer
        self._reading = own_task(self._read(reader, writer), name="controller-host")
        return writer

    def _check_open(self) -> None:
        if self._closed:
            raise self._unavailable(ConnectionError("the Controller stops"))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder(REPLIES)
        reason: Exception = ConnectionError("it closed the connection")
        try:
            while data := await reader.read(_READ_BYTES):
                for reply in decoder.feed(data):
                    self._take(reply)
        except (OSError, WireError) as error:
            reason = error
        finally:
            self._writer = None
            writer.close()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(self._unavailable(reason))

    def _take(self, reply: Any) -> None:
        future = self._asked.get(getattr(reply, "request_id", 0))
        if future is not None and not future.done():
            future.set_result(reply)

    def _unavailable(self, error: Exception) -> HostUnavailableError:
        host, port = self._address
        return HostUnavailableError(f"{host}:{port}", describe(error))
