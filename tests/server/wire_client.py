"""The other end of a wire connection, command by command, for tests."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.server.tls import CertificateFiles
from segmentstore.server.wire_server import WireServer
from segmentstore.tables.table_service import TableService
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    Hello,
    Request,
    SegmentCreated,
    SetupAppend,
)
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder
from tests.store.harness import open_tiny

WRITER = bytes(range(16))
OTHER = bytes(range(16, 32))
R = TypeVar("R")


class WireClient:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(REPLIES)
        self._replies: deque[Command] = deque()

    def put(self, *commands: Request) -> None:
        """Send commands."""
        self._writer.writelines(map(encode, commands))

    def put_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._writer.write(data)

    async def take(self) -> Command | None:
        """The next reply; None once the server has closed."""
        while not self._replies:
            try:
                data = await self._reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._replies.extend(self._decoder.feed(data))
        return self._replies.popleft()

    async def ask(self, command: Request, reply: type[R]) -> R:
        """Send a command and take its reply, which is of this type."""
        self.put(command)
        taken = await self.take()
        assert isinstance(taken, reply), taken
        return taken

    async def create(self, name: str) -> None:
        """A segment without a policy."""
        await self.ask(CreateSegment(1, name, 0, 0, ""), SegmentCreated)

    async def set_up(self, name: str, writer: bytes = WRITER, request_id: int = 2) -> int:
        """Begin appends; the writer's last number there."""
        request = SetupAppend(request_id, writer, name, "")
        return (await self.ask(request, AppendSetup)).last_event_number

    def append(
        self, number: int, data: bytes, writer: bytes = WRITER, events: int = 1, rid: int = 2
    ) -> None:
        """Send an append of whole events."""
        self.put(AppendBlockEnd(writer, 0, data, events, number, rid))

    async def acked(self, number: int, writer: bytes = WRITER) -> DataAppended:
        """Take acknowledgements of the writer until this one."""
        while True:
            reply = await self.take()
            assert isinstance(reply, DataAppended), reply
            assert reply.writer_id == writer
            if reply.event_number >= number:
                return reply

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def connected(
    port: int, *, hello: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WireClient]:
    """A connection to a server of this machine."""
    client = WireClient(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
    try:
        if hello:
            assert isinstance(await client.ask(Hello(16, 5), Hello), Hello)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def served(
    folder: Path,
    outstanding: OutstandingBytes | None = None,
    certificates: CertificateFiles | None = None,
    authorization: TokenAuthorization | None = None,
    **options: Any,
) -> AsyncIterator[tuple[SegmentStore, WireServer]]:
    """A tiny store and its server."""
    async with open_tiny(folder / "s", **options) as store:
        tables = TableService(store)
        server = await WireServer.open(
            store, tables, "127.0.0.1", 0, Runtime(), outstanding, certificates, authorization
        )
        store._parts.registry.watch(server.clean_up, lambda _: None)
        try:
            yield store, server
        finally:
            await server.close()
            await tables.close()


@asynccontextmanager
async def client_of(folder: Path, **options: Any) -> AsyncIterator[tuple[SegmentStore, WireClient]]:
    """A tiny store, and a client of it."""
    async with served(folder, **options) as (store, server), connected(server.port) as client:
        yield store, client


def names(replies: Sequence[object]) -> list[str]:
    """The kinds of replies."""
    return [type(reply).__name__ for reply in replies]
