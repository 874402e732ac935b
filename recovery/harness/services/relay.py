"""Relay: what the proxies between two TCP endpoints have in common: a port, and its connections.

It runs on the loop of its caller, and everything it began ends with it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from segmentstore.contracts.waiting import stop_accepting


class Relay(ABC):
    """A port, and the connections that came to it. An async context manager."""

    def __init__(self, host: str, port: int) -> None:
        """It listens there; port 0: one that is free."""
        self._place = (host, port)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[Any], None] = {}
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
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side went away, the link was cut, or the proxy ends
        finally:
            self._hang_up(writer)
            del self._connections[task]

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        writer.close()

    @abstractmethod
    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
