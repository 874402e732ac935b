"""Reads of tables that are slow: how many of one connection go on, and when none is waited for.

The disk is slow in them: a read of the index waits for a gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmentstore.server import table_read_room
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.tables.table_index import MemoryIndex
from segmentstore.tables.table_records import KeyLocation
from segmentstore.tables.table_types import ENTRY_BYTES_MAX
from segmentstore.wire.commands import (
    NO_VERSION,
    CreateTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    SegmentCreated,
    TableEntriesUpdated,
    TableKey,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)
from tests.server.wire_client import WireClient, connected, served
from tests.store.harness import run, until

KEY = TableKey(b"key", NO_VERSION)
READS = 20
AT_A_TIME = 3


class SlowReads:
    """Look-ups in indexes wait while the gate is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        locate = MemoryIndex.locate

        async def slow(index: MemoryIndex, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
            return await locate(index, keys)

        monkeypatch.setattr(MemoryIndex, "locate", slow)
        monkeypatch.setattr(table_read_room, "READING_BYTES_MAX", AT_A_TIME * ENTRY_BYTES_MAX)


async def make_table(client: WireClient) -> None:
    await client.ask(CreateTableSegment(1, "t", ""), SegmentCreated)
    update = UpdateTableEntries(2, "t", "", ((KEY, b"value"),))
    await client.ask(update, TableEntriesUpdated)


def reads() -> list[ReadTable]:
    return [ReadTable(number, "t", "", (KEY,)) for number in range(READS)]


def test_so_many_go_on_as_have_room_for_their_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        slow = SlowReads(monkeypatch)
        async with (
            served(tmp_path) as (_, server),
            connected(server.port) as client,
            connected(server.port) as other,
        ):
            await make_table(client)
            slow.gate.clear()
            client.put(*reads())
            await until(lambda: slow.waiting == AT_A_TIME)
            await client.ask(GetTableSegmentInfo(99, "t", ""), TableSegmentInfo)
            assert slow.waiting == AT_A_TIME
            other.put(ReadTable(1, "t", "", (KEY,)))
            await until(lambda: slow.waiting == AT_A_TIME + 1)
            slow.gate.set()
            assert isinstance(await other.take(), TableRead)
            for number in range(READS):
                reply = await client.take()
                assert isinstance(reply, TableRead)
                assert reply.request_id == number
                assert reply.entries[0][1] == b"value"

    run(main())


def test_they_end_with_their_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        slow = SlowReads(monkeypatch)
        async with served(tmp_path) as (_, server):
            async with connected(server.port) as client:
                await make_table(client)
                slow.gate.clear()
                client.put(*reads())
                await until(lambda: slow.waiting == AT_A_TIME)
                (connection,) = server._connections
            await until(lambda: not slow.waiting)
            await until(lambda: not connection._requests)
            slow.gate.set()
            async with connected(server.port) as client:
                (read, *_) = reads()
                reply = await client.ask(read, TableRead)
                assert reply.entries[0][1] == b"value"

    run(main())


def test_keys_that_wait_are_outstanding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        slow = SlowReads(monkeypatch)
        tiny = OutstandingBytes(total_max=100_000, shared_max=50_000, free=20_000)
        async with served(tmp_path, tiny) as (_, server), connected(server.port) as client:
            await make_table(client)
            (connection,) = server._connections
            slow.gate.clear()
            long = TableKey(bytes(8000), NO_VERSION)
            client.put(*(ReadTable(number, "t", "", (long,)) for number in range(400)))
            await until(lambda: connection._is_paused)
            # Those of one reading of the socket.
            assert len(connection._requests) < 100
            slow.gate.set()
            for number in range(400):
                reply = await client.take()
                assert isinstance(reply, TableRead)
                assert reply.request_id == number
            await until(lambda: tiny.total == 0)

    run(main())
