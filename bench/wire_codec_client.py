"""A client of the wire protocol on our own codec: many requests on one connection, each a future.

Serves both sides of the wire cases, in the processes that press on a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, TypeVar

from bench.workspace import BenchError
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    NoSuchSegment,
    Request,
    SegmentAlreadyExists,
    SegmentCreated,
    SetupAppend,
)
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder

HOST: Final = "127.0.0.1"
WRITER: Final = bytes(range(16))
_HELLO: Final = encode(Hello(16, 5))
_NAMES: Final = 64
"""So many that each of some containers has one of them."""
_SERVES_S: Final = 120.0
_TRY_S: Final = 0.1
R = TypeVar("R")


class CodecClient(asyncio.Protocol):
    """A connection; `connected` makes it. Not for several event loops."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(REPLIES)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._alive: asyncio.Future[None] | None = None
        self._ids = count(1)
        self._transport: Any = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say Hello; the answer is not waited for."""
        self._transport = transport
        self._transport.write(_HELLO)

    def data_received(self, data: bytes) -> None:
        """Resolve what was answered."""
        for reply in self._decoder.feed(data):
            if isinstance(reply, KeepAlive):
                alive, self._alive = self._alive, None
                if alive is not None:
                    alive.set_result(None)
            elif isinstance(reply, DataAppended):
                self._resolve(-reply.event_number, reply)
            elif not isinstance(reply, Hello):
                self._resolve(getattr(reply, "request_id", 0), reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BenchError(f"the server has closed the connection ({exc})"))
        self._waiting.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    def next_id(self) -> int:
        """A request id of this connection."""
        return next(self._ids)

    def send(self, request_id: int, command: Request) -> asyncio.Future[Any]:
        """The reply to come; it may be a refusal."""
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._transport.write(encode(command))
        return future

    async def ask(self, request_id: int, command: Request, reply: type[R]) -> R:
        """Send a command and wait. Raises BenchError for another reply."""
        found = await self.send(request_id, command)
        if not isinstance(found, reply):
            raise BenchError(f"{type(command).__name__} was answered by {found}")
        return found

    async def keep_alive(self) -> None:
        """A round trip for which the server does nothing. One at a time."""
        self._alive = asyncio.get_running_loop().create_future()
        self._transport.write(encode(KeepAlive()))
        await self._alive

    async def create(self, segment: str) -> None:
        """A segment, if it is not there."""
        request = self.next_id()
        found = await self.send(request, CreateSegment(request, segment, 0, 0, ""))
        if not isinstance(found, SegmentCreated | SegmentAlreadyExists):
            raise BenchError(f"CreateSegment was answered by {found}")

    async def set_up(self, segment: str, writer: bytes = WRITER) -> int:
        """Begin appends; the writer's last number there, 0 without."""
        request = self.next_id()
        reply = await self.ask(request, SetupAppend(request, writer, segment, ""), AppendSetup)
        return max(0, reply.last_event_number)

    async def append(self, number: int, data: bytes, writer: bytes = WRITER) -> None:
        """One event, and its acknowledgement."""
        future = self._waiting[-number] = asyncio.get_running_loop().create_future()
        self._transport.write(encode(AppendBlockEnd(writer, 0, data, 1, number, self.next_id())))
        await future

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def _resolve(self, request_id: int, reply: object) -> None:
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(reply)


async def wait_until_all_serve(port: int) -> None:
    """Until segments of all containers can be asked for: a server that was restarted may get them
    later than its port. Raises TimeoutError.
    """
    async with asyncio.timeout(_SERVES_S):
        while True:
            try:
                async with connected(port) as client:
                    for number in range(_NAMES):
                        request = client.next_id()
                        name = f"bench/absent{number}/0.#epoch.0"
                        question = GetStreamSegmentInfo(request, name, "")
                        await client.ask(request, question, NoSuchSegment)
                    return
            except (OSError, BenchError):
                await asyncio.sleep(_TRY_S)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[CodecClient]:
    """A connection to a server of this machine."""
    _, client = await asyncio.get_running_loop().create_connection(CodecClient, HOST, port)
    try:
        yield client
    finally:
        client.close()
