"""LinkProxy: stands between a client and a TCP server, and cuts the link between them.

Rules of this file:

- it runs on the loop of its caller, and everything it began ends with it;
- a silent cut keeps all bytes back and closes nothing, as a network does that drops packets. Behind
  it they arrive, late and in order;
- another cut ends all connections, and every new one at once.
"""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Any, Final, Self

from recovery.harness.services.server import HOST
from segmentstore.contracts.waiting import stop_accepting

_PIECE: Final = 64 * 1024


class LinkProxy:
    """A proxy for the server at a port of this machine. An async context manager."""

    def __init__(self, target_port: int, *, host: str = HOST, port: int = 0) -> None:
        """It listens at `host` and `port`; 0: one that is free."""
        self._target_port = target_port
        self._place = (host, port)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[Any], None] = {}
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False
        self.port = 0
        """Where clients find it."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, *self._place)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        await stop_accepting(self._server)
        await asyncio.sleep(0)
        await self._end_connections()

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

    async def _end_connections(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        try:
            if not self._refuses:
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side went away, the link was cut, or the proxy ends
        finally:
            # What is not sent yet is lost, as with a cut wire.
            writer.transport.abort()
            del self._connections[task]

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
