"""A writer whose connection is cut at any byte, and that sends the rest again: each event once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from recovery.harness.simulation.wire_connections import MemoryConnection
from segmentstore.server.wire_server import WireServer
from segmentstore.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    Hello,
    InvalidEventNumber,
    SetupAppend,
)
from tests.server.wire_client import WRITER, served
from tests.store.harness import read_all, run
from tests.support.suites import size, sized

EVENTS = 12


async def write_all(
    server: WireServer,
    segment: str,
    seed: int,
    sent_max: int | None,
    received_max: int | None,
) -> MemoryConnection:
    """Write all events through as many connections as it takes; give the first."""
    draw = random.Random(seed)
    first: MemoryConnection | None = None
    acked = 0
    while acked < EVENTS:
        connection = MemoryConnection(
            server.accept, *((sent_max, received_max) if first is None else (None, None))
        )
        first = first or connection
        connection.put(Hello(16, 5), SetupAppend(2, WRITER, segment, ""))
        while acked < EVENTS:
            reply = await connection.take()
            if reply is None or isinstance(reply, InvalidEventNumber):
                break
            if isinstance(reply, AppendSetup):
                acked = max(0, reply.last_event_number)
                _send(connection, acked, draw)
            elif isinstance(reply, DataAppended):
                assert reply.previous_event_number < acked + 1 <= reply.event_number
                acked = reply.event_number
        connection.cut()
    assert first is not None
    return first


def _send(connection: MemoryConnection, acked: int, draw: random.Random) -> None:
    """What is not acknowledged, in blocks that are cut anew each time."""
    while acked < EVENTS:
        end = draw.randint(acked + 1, min(acked + 4, EVENTS))
        data = b"".join(b"<%02d>" % number for number in range(acked + 1, end + 1))
        connection.put(AppendBlockEnd(WRITER, 0, data, end - acked, end, 2))
        acked = end


@sized(15)
@pytest.mark.parametrize("direction", ["sent", "received"])
def test_each_event_is_stored_once_and_in_order(tmp_path: Path, direction: str) -> None:
    want = b"".join(b"<%02d>" % number for number in range(1, EVENTS + 1))

    async def main() -> None:
        async with served(tmp_path) as (store, server):
            await store.create_segment("whole")
            whole = await write_all(server, "whole", 0, None, None)
            total = whole.sent if direction == "sent" else whole.received
            assert total > 100
            step = size("CUT_STEP", 7, 1)
            for cut in range(0, total + 1, step):
                name = f"cut-{cut}"
                await store.create_segment(name)
                bounds = (cut, None) if direction == "sent" else (None, cut)
                await write_all(server, name, cut, *bounds)
                assert await read_all(store, name) == want, (direction, cut)

    run(main(), limit_s=300)
