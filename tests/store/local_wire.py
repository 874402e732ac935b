"""The other end of a local server's connections, byte by byte, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from segmentstore import SegmentStore
from segmentstore.contracts.local_protocol import (
    LENGTH_BYTES,
    Answer,
    HandshakeRequest,
    Refused,
    Request,
    decode_answer,
    encode,
)
from segmentstore.contracts.local_socket import socket_address
from tests.store.harness import open_tiny

WRITER = UUID(int=1).bytes
OTHER = UUID(int=2).bytes


class Wire:
    """The other end of a connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def put(self, *messages: Request, first: int = 1) -> None:
        for number, message in enumerate(messages, first):
            self.writer.writelines(encode(number, message))

    async def take(self) -> tuple[int, Answer]:
        length = int.from_bytes(await self.reader.readexactly(LENGTH_BYTES), "big")
        return decode_answer(await self.reader.readexactly(length))

    async def answers(self, count: int) -> list[Answer]:
        return [(await self.take())[1] for _ in range(count)]


@asynccontextmanager
async def wire(folder: Path, *, handshake: bool = True) -> AsyncIterator[Wire]:
    with socket_address(str(folder)) as address:
        opened = Wire(*await asyncio.open_unix_connection(address))
    try:
        if handshake:
            opened.put(HandshakeRequest())
            await opened.take()
        yield opened
    finally:
        opened.writer.close()
        await opened.writer.wait_closed()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[SegmentStore]:
    async with open_tiny(folder, local_server=True) as store:
        yield store


def codes(answers: Sequence[Answer]) -> list[object]:
    return [answer.code if isinstance(answer, Refused) else type(answer) for answer in answers]
