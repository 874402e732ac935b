"""A server of replies that never end: bytes come, each in time, and too few of them."""

from __future__ import annotations

import asyncio

from segmentstore.contracts.waiting import stop_accepting

READ_HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100000\r\n"
    b"Content-Range: bytes 0-99999/100000\r\n\r\n"
)
LISTING_HEADS = {
    "head": b"HTTP/1.1 200 OK\r\nServer: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
}
"""What of a listing comes at once."""


class Trickling:
    """Used on one event loop."""

    def __init__(self, head: bytes = READ_HEAD, bytes_max: int = 100_000) -> None:
        """`head` comes at once. The connection is lost behind `bytes_max`, 50 a second."""
        self._head = head
        self._bytes_max = bytes_max
        self.serving: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Begin; the URL it serves."""
        self._server = await asyncio.start_server(self._trickle, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Behind the last client."""
        assert self._server is not None
        await stop_accepting(self._server)
        await asyncio.wait(self.serving)

    async def _trickle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.append(task)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._head)
        try:
            for _ in range(self._bytes_max):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            pass
        writer.transport.abort()
