"""The socket for entries, with this test at its other end."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import pytest

from durablelog.bookkeeper.gateway.add_connection import (
    SILENCE_S,
    STALL_S,
    AddConnection,
    Beat,
    GatewayWriter,
)
from durablelog.bookkeeper.gateway.gateway_protocol import ACK, BEAT, ENTRY, ENTRY_BYTES_MAX
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED
from durablelog.bookkeeper.ledger_store import EMPTY, OK, AddResult
from tests.contracts.ledger_store_contract import Results


class Pair:
    """A connection and the gateway's end of it."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.settimeout(0)
        self.theirs.settimeout(0)
        self.reasons: list[str] = []
        self.sealed: list[int] = []
        self.beats: list[Beat] = []
        self.connection = AddConnection(ours, self.reasons.append, self.beats.append)

    def writer(self, handle: int) -> GatewayWriter:
        async def seal(closed: int) -> None:
            self.sealed.append(closed)

        return GatewayWriter(self.connection, handle, 1000 + handle, seal)

    async def take(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = await asyncio.get_running_loop().sock_recv(
                self.theirs, min(count - len(got), 50_000)
            )
            assert piece
            got += piece
        return got

    async def answer(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, data)

    def close(self) -> None:
        self.connection.close("the test is over")
        self.theirs.close()


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    async def paired() -> None:
        pair = Pair()
        try:
            await asyncio.wait_for(scenario(pair), 240)
        finally:
            pair.close()

    asyncio.run(paired())


def oks(handle: int, first: int, count: int, together: int = 1) -> bytes:
    """Acknowledgements of so many entries, of `together` at a time."""
    end = first + count
    return b"".join(
        ACK.pack(handle, one, min(together, end - one), OK, one)
        for one in range(first, end, together)
    )


def test_entries_go_out_whole_and_in_order_even_if_the_other_end_is_slow() -> None:
    async def scenario(pair: Pair) -> None:
        writers = [pair.writer(1), pair.writer(2)]
        rng = random.Random(6)
        expected = b""
        for number in range(60):
            parts = [
                rng.randbytes(rng.choice((0, 1, 700, 100_000)))
                for _ in range(rng.choice((1, 3, 1500)) % 50 + 1)
            ]
            writers[number % 2].append(parts)
            payload = b"".join(parts)
            expected += ENTRY.pack(len(payload), number % 2 + 1, number // 2) + payload
        assert await pair.take(len(expected)) == expected
        # After all that the connection still sends at once.
        writers[0].append([b"last"])
        assert await pair.take(ENTRY.size + 4) == ENTRY.pack(4, 1, 30) + b"last"

    run(scenario)


def test_an_entry_of_more_parts_than_the_system_takes_at_once() -> None:
    async def scenario(pair: Pair) -> None:
        parts = [bytes([number % 256]) for number in range(10_000)]
        pair.writer(7).append(parts)
        assert await pair.take(ENTRY.size + 10_000) == ENTRY.pack(10_000, 7, 0) + b"".join(parts)

    run(scenario)


@pytest.mark.parametrize("together", [1, 4, 9])
def test_acknowledgements_cut_anywhere_are_put_together(together: int) -> None:
    async def scenario(pair: Pair) -> None:
        writer = pair.writer(3)
        results = Results(writer)
        for _ in range(9):
            writer.append([b"x"])
        data = oks(3, 0, 9, together)
        for place in range(0, len(data), 7):
            await pair.answer(data[place : place + 7])
            await asyncio.sleep(0)
        assert await results.until(9) == [AddResult(OK, number) for number in range(9)]

    run(scenario)


def test_each_writer_learns_of_its_own_in_one_call() -> None:
    async def scenario(pair: Pair) -> None:
        calls: list[tuple[int, int]] = []
        writers = [pair.writer(1), pair.writer(2)]
        writers[0].on_results = lambda results: calls.append((1, len(results)))
        second = Results(writers[1])
        for _ in range(50):
            writers[0].append([b"a"])
            writers[1].append([b"b"])
        await pair.answer(b"".join(oks(1, number, 1) + oks(2, number, 1) for number in range(50)))
        assert await second.until(50) == [AddResult(OK, number) for number in range(50)]
        assert calls == [(1, 50)]

    run(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ACK.pack(1, 1, 1, OK, 1), id="another sequence"),
        pytest.param(ACK.pack(1, 0, 1, OK, 5), id="another entry"),
        pytest.param(ACK.pack(1, 0, 1, OK, 0) * 2, id="twice"),
        pytest.param(ACK.pack(1, 0, 2, OK, 0) + ACK.pack(1, 1, 1, OK, 1), id="twice, in a row"),
        pytest.param(ACK.pack(1, 0, 4, OK, 0), id="more than were sent"),
        pytest.param(ACK.pack(1, 0, 0, OK, 0), id="none"),
    ],
)
def test_an_answer_to_another_question_ends_the_connection(answer: bytes) -> None:
    async def scenario(pair: Pair) -> None:
        writer = pair.writer(1)
        results = Results(writer)
        for _ in range(3):
            writer.append([b"x"])
        await pair.answer(answer)
        assert await results.until(3) == [AddResult(GATEWAY_CLOSED, EMPTY)] * 3
        assert "mixed up" in pair.reasons[0]

    run(scenario)


def test_what_is_lost_is_reported_once_and_later_entries_too() -> None:
    async def scenario(pair: Pair) -> None:
        writer = pair.writer(1)
        results = Results(writer)
        for _ in range(5):
            writer.append([bytes(500_000)])
        await pair.answer(oks(1, 0, 2))
        await results.until(2)
        pair.theirs.close()
        lost = AddResult(GATEWAY_CLOSED, EMPTY)
        assert await results.until(5) == [AddResult(OK, 0), AddResult(OK, 1), lost, lost, lost]
        writer.append([b"later"])
        assert len(results.got) == 5
        assert await results.until(6) == [*results.got[:5], lost]
        assert len(pair.reasons) == 1
        await writer.close()
        assert pair.sealed == []

    run(scenario)


def test_a_closed_writer_gets_and_sends_nothing_more() -> None:
    async def scenario(pair: Pair) -> None:
        writer, other = pair.writer(1), pair.writer(2)
        results, others = Results(writer), Results(other)
        writer.append([b"x"])
        other.append([b"y"])
        await asyncio.gather(writer.close(), writer.close())
        assert pair.sealed == [1]
        writer.append([b"z"])
        await pair.answer(ACK.pack(1, 0, 1, -11, -1) + oks(2, 0, 1))
        assert await others.until(1) == [AddResult(OK, 0)]
        assert results.got == []

    run(scenario)


def look(pair: Pair, seconds: float, *, said: bool = False) -> None:
    """As the connection does by itself, once a second."""
    connection = pair.connection
    for _ in range(int(seconds)):
        if connection.lost is None:
            connection._watch.cancel()
            connection._check_progress(connection._said - said, connection._answered)


def test_a_gateway_that_says_nothing_is_reported_and_then_given_up() -> None:
    async def scenario(pair: Pair) -> None:
        results = Results(writer := pair.writer(1))
        look(pair, SILENCE_S - 1)
        assert pair.connection.health() == "the gateway has said nothing for 7 s"
        # Something came meanwhile, then nothing again.
        look(pair, 1, said=True)
        assert pair.connection.health() is None
        writer.append([b"x"])
        look(pair, SILENCE_S - 1)
        assert pair.connection.lost is None
        look(pair, 1)
        assert pair.connection.hangs
        assert pair.reasons == ["the gateway said nothing for 8 s"]
        assert pair.connection.health() is None
        await asyncio.sleep(0)
        assert results.got == [AddResult(GATEWAY_CLOSED, EMPTY)]

    run(scenario)


def test_a_gateway_that_only_beats_and_answers_no_entry_is_given_up_later() -> None:
    async def scenario(pair: Pair) -> None:
        writer = pair.writer(1)
        results = Results(writer)
        look(pair, 2 * STALL_S, said=True)
        assert pair.connection.lost is None
        for _ in range(2):
            writer.append([b"x"])
        await pair.answer(oks(1, 0, 1))
        await results.until(1)
        look(pair, STALL_S - 1, said=True)
        assert pair.connection.lost is None
        look(pair, 1, said=True)
        assert pair.connection.hangs
        assert results.got == [AddResult(OK, 0), AddResult(GATEWAY_CLOSED, EMPTY)]

    run(scenario)


def test_beats_are_reported_and_answer_nothing() -> None:
    async def scenario(pair: Pair) -> None:
        results = Results(writer := pair.writer(1))
        for _ in range(2):
            writer.append([b"x"])
        await pair.answer(oks(1, 0, 1) + ACK.pack(BEAT, 7, 1, OK, 4 << 20) + oks(1, 1, 1))
        assert await results.until(2) == [AddResult(OK, 0), AddResult(OK, 1)]
        assert pair.beats == [Beat(7, 1, 4 << 20)]

    run(scenario)


def test_an_entry_that_no_gateway_takes_is_refused_at_once() -> None:
    async def scenario(pair: Pair) -> None:
        with pytest.raises(ValueError, match="over"):
            pair.writer(1).append([bytes(ENTRY_BYTES_MAX), b"x"])

    run(scenario)
