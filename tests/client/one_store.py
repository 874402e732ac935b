"""One store and its clients: `segmentstore.connect` with its type for that, a port that is no
store, and how many connections there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import segmentstore
from segmentstore import RemoteStore, SegmentStore
from segmentstore.client.connecting import ConnectingStore


def connect_one(location: Any, **options: Any) -> ConnectingStore[RemoteStore]:
    """To a folder or one address."""
    return cast("ConnectingStore[RemoteStore]", segmentstore.connect(location, **options))


@asynccontextmanager
async def impostor(*replies: bytes) -> AsyncIterator[str]:
    """A port that answers with these bytes in turn, whatever is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await reader.read(1 << 16)
            writer.write(reply)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def connections_of(store: SegmentStore) -> int:
    wire = store.stats()["wire"]
    assert wire is not None
    return wire["connections"]
