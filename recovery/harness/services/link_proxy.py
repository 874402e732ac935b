"""LinkProxy: stands between a client and a TCP server, and cuts the link between them.

Rules of this file:

- a silent cut keeps all bytes back and closes nothing, as a network does that drops packets. Behind
  it they arrive, late and in order;
- another cut ends all connections, and every new one at once.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from recovery.harness.services.relay import Relay
from recovery.harness.services.server import HOST

_PIECE: Final = 64 * 1024


class LinkProxy(Relay):
    """A proxy for the server at a port of this machine. An async context manager."""

    def __init__(self, target_port: int, *, host: str = HOST, port: int = 0) -> None:
        """It listens at `host` and `port`; 0: one that is free."""
        super().__init__(host, port)
        self._target_port = target_port
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False

    async def cut(self, *, silent: bool) -> None:
        """Nothing passes from now on, until `heal`."""
        if silent:
            self._passes.clear()
        else:
            self._refuses = True
            await self._end_connections()

    def heal(self) -> None:
        """Connections are taken, and bytes pass. Idempotent."""
        self._refuses = False
        self._passes.set()

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        # What is not sent yet is lost, as with a cut wire.
        writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            return
        await self._passes.wait()
        there_reader, there_writer = await self._connected()
        try:
            sides = [
                asyncio.ensure_future(self._pass_on(reader, there_writer)),
                asyncio.ensure_future(self._pass_on(there_reader, writer)),
            ]
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                await asyncio.gather(*sides, return_exceptions=True)
        finally:
            there_writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the target itself: a loop may lead other connections to its port through here."""
        plain = socket.socket()
        try:
            plain.settimeout(0)
            await asyncio.get_running_loop().sock_connect(plain, (HOST, self._target_port))
            return await asyncio.open_connection(sock=plain)
        except BaseException:
            plain.close()
            raise

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        await self._passes.wait()
        # All that came before the end arrives before it.
        writer.close()
        await writer.wait_closed()
