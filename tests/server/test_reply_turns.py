"""Replies to a client that reads little: what is buffered for it, and what is kept beside."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from segmentstore.server import connection, reply_turns
from segmentstore.server.connection import WireConnection
from segmentstore.server.reply_turns import ReplyTurns
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command, ReadSegment, SegmentRead
from tests.server.wire_client import connected, served
from tests.store.harness import run, until

SIZE = 1 << 16
READS = 400
"""More than the sockets of both sides buffer."""


def reply(number: int) -> SegmentRead:
    return SegmentRead("s", 0, True, False, bytes(1000), number)


@pytest.mark.parametrize("at_the_tail", [False, True])
def test_a_client_that_reads_little_has_one_reply_beyond_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_the_tail: bool
) -> None:
    buffered: list[int] = []
    send = WireConnection._send

    def measured(self: WireConnection, command: Command) -> None:
        send(self, command)
        assert self._transport is not None
        buffered.append(self._transport.get_write_buffer_size())

    async def main() -> None:
        async with served(tmp_path, tail_bytes_max=1 << 20, append_bytes_max=SIZE) as (
            store,
            server,
        ):
            await store.create_segment("s")
            if not at_the_tail:
                await store.append("s", bytes(SIZE))
            async with connected(server.port) as client:
                requests = [encode(ReadSegment("s", 0, SIZE, "", n)) for n in range(READS)]
                client.put_bytes(b"".join(requests))
                if at_the_tail:
                    await until(lambda: server.context.counts.reads_waiting == READS)
                    await store.append("s", bytes(SIZE))
                seen = set()
                for _ in range(READS):
                    taken = await client.take()
                    assert isinstance(taken, SegmentRead)
                    assert len(taken.data) == SIZE
                    seen.add(taken.request_id)
                assert len(seen) == READS

    monkeypatch.setattr(connection, "REPLY_BYTES_MAX", SIZE)
    monkeypatch.setattr(reply_turns, "KEPT_BYTES_MAX", 3 * SIZE)
    monkeypatch.setattr(WireConnection, "_send", measured)
    run(main())
    assert SIZE < max(buffered) < 2 * SIZE + 100


def test_replies_beyond_what_is_kept_come_again_in_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeated: list[int] = []
    sent: list[int] = []
    turns = ReplyTurns()

    async def again(number: int) -> Command:
        repeated.append(number)
        return reply(number)

    async def serve(number: int) -> None:
        given = await turns.of_read(reply(number), partial(again, number))
        assert given == reply(number)
        sent.append(number)
        turns.close()

    async def main() -> None:
        turns.close()
        tasks = [asyncio.create_task(serve(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert not sent
        for count in range(1, 6):
            turns.open()
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(sent) == count
        await asyncio.gather(*tasks)

    monkeypatch.setattr(reply_turns, "KEPT_BYTES_MAX", 2500)
    asyncio.run(main())
    assert sent == [0, 1, 2, 3, 4]
    assert repeated == [2, 3, 4]


def test_a_reply_that_does_not_come_again_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = ReplyTurns()

    async def never() -> Command:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        turns.close()
        stuck = asyncio.create_task(turns.of_read(reply(0), never))
        other = asyncio.create_task(turns.wait())
        await asyncio.sleep(0)
        turns.open()
        async with asyncio.timeout(5):
            await other
        assert not stuck.done()
        stuck.cancel()

    monkeypatch.setattr(reply_turns, "KEPT_BYTES_MAX", 0)
    monkeypatch.setattr(reply_turns, "AGAIN_S", 0.01)
    asyncio.run(main())
