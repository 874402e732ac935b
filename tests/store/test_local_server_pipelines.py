"""Events on their way together over the local server: in their order, once, and within bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from uuid import UUID

import pytest

import segmentstore.local_connection
import segmentstore.local_server
from segmentstore.contracts.local_protocol import (
    Append,
    Code,
    Describe,
    LastEvent,
    Stored,
)
from segmentstore.local_connection import LocalConnection
from tests.store.harness import open_tiny, read_all, run, until
from tests.store.local_wire import OTHER, WRITER, codes, served, wire
from tier2.spark.common.local_client import LocalClient


class TestPipelines:
    def test_of_several_clients_are_committed_in_their_orders(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            async with served(folder) as store:
                await store.create_segment("x")

                async def write(client_number: int) -> None:
                    async with LocalClient(str(folder)) as client:
                        writer_id = UUID(int=client_number).bytes
                        for number in range(500):
                            await client.send(
                                "x", writer_id, number, b"%d:%d\n" % (client_number, number)
                            )
                        await client.settle()

                await asyncio.gather(*map(write, range(4)))
                lines = (await read_all(store, "x")).split(b"\n")
                for client_number in range(4):
                    mine = [line for line in lines if line.startswith(b"%d:" % client_number)]
                    assert mine == [b"%d:%d" % (client_number, number) for number in range(500)]

        run(main())

    def test_of_one_writer_on_two_connections_are_committed_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            async with served(folder) as store:
                await store.create_segment("x")

                async def write() -> None:
                    async with LocalClient(str(folder)) as client:
                        for number in range(300):
                            await client.send("x", WRITER, number, b"%d," % number)
                        await client.settle()

                await asyncio.gather(write(), write())
                assert await read_all(store, "x") == b"".join(
                    b"%d," % number for number in range(300)
                )

        run(main())

    def test_are_committed_once_while_the_store_is_closed_and_opened_again(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            store = await open_tiny(folder, local_server=True)
            await store.create_segment("x")

            async def write(client_number: int) -> None:
                async with LocalClient(str(folder)) as client:
                    writer_id = UUID(int=client_number).bytes
                    for number in range(400):
                        await client.send(
                            "x", writer_id, number, b"%d:%d\n" % (client_number, number)
                        )
                        if not number % 40:
                            await asyncio.sleep(0.01)
                    await client.settle()

            writers = [asyncio.ensure_future(write(number)) for number in range(3)]
            rng = random.Random(5)
            try:
                for _ in range(6):
                    await asyncio.sleep(rng.uniform(0.01, 0.05))
                    await store.close()
                    store = await open_tiny(folder, local_server=True)
                await asyncio.gather(*writers)
                lines = (await read_all(store, "x")).split(b"\n")
            finally:
                await store.close()
            for client_number in range(3):
                mine = [line for line in lines if line.startswith(b"%d:" % client_number)]
                assert mine == [b"%d:%d" % (client_number, number) for number in range(400)]

        run(main())

    def test_end_with_their_first_refusal_until_a_new_session(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as store, wire(tmp_path / "s") as other:
                await store.create_segment("x")
                other.put(
                    Append("x", WRITER, 0, b"zero"),
                    Append("x", WRITER, 1, bytes(4097)),
                    Append("x", WRITER, 2, b"two"),
                    Append("x", OTHER, 0, b"other"),
                    LastEvent("x", WRITER),
                    Append("x", WRITER, 1, b"one"),
                )
                answers = dict([await other.take() for _ in range(6)])
                assert codes([answers[number] for number in (2, 3)]) == [Code.REFUSED, Code.REFUSED]
                assert codes([answers[number] for number in (1, 4, 6)]) == [Stored, Stored, Stored]
                assert await read_all(store, "x") == b"zerootherone"

        run(main())

    def test_of_more_writers_than_are_remembered_are_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segmentstore.local_connection, "SESSIONS_MAX", 3)

        async def main() -> None:
            async with served(tmp_path / "s") as store, LocalClient(str(tmp_path / "s")) as client:
                await store.create_segment("x")
                for number in range(20):
                    assert await client.append("x", UUID(int=number).bytes, 0, b"!") is not None
                assert await read_all(store, "x") == b"!" * 20

        run(main())

    def test_with_too_many_refused_writers_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segmentstore.local_connection, "SESSIONS_MAX", 3)

        async def main() -> None:
            async with served(tmp_path / "s"), wire(tmp_path / "s") as other:
                other.put(
                    *(Append("missing", UUID(int=number).bytes, 0, b"!") for number in range(4))
                )
                assert codes(await other.answers(4)) == [Code.NOT_FOUND] * 3 + [Code.BUSY]
                assert await other.reader.read() == b""

        run(main())

    def test_that_do_not_read_their_answers_are_held_back_and_others_are_served(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connections = []
        serve = LocalConnection.serve

        def noted(self: LocalConnection) -> Coroutine[None, None, None]:
            connections.append(self)
            return serve(self)

        monkeypatch.setattr(LocalConnection, "serve", noted)

        def is_stuck(stream: asyncio.StreamWriter) -> bool:
            _, high = stream.transport.get_write_buffer_limits()
            return stream.transport.get_write_buffer_size() > high and not is_reading(stream)

        def is_reading(stream: asyncio.StreamWriter) -> bool:
            assert isinstance(stream.transport, asyncio.ReadTransport)
            return stream.transport.is_reading()

        async def main() -> None:
            async with served(tmp_path / "s") as store, wire(tmp_path / "s") as greedy:
                await store.create_segment("x")
                sent = 0

                async def pump() -> None:
                    nonlocal sent
                    while True:
                        greedy.put(Describe("n" * 1000))
                        await greedy.writer.drain()
                        sent += 1

                pumping = asyncio.ensure_future(pump())
                # Both ends have stopped to read, and have more to write than the socket takes.
                seen = -1
                while seen != sent:
                    # The kernel may take some more of what looked stuck.
                    seen = sent
                    await asyncio.sleep(0.05)
                    await until(
                        lambda: is_stuck(greedy.writer) and is_stuck(connections[0]._writer)
                    )
                async with LocalClient(str(tmp_path / "s")) as client:
                    assert await client.append("x", OTHER, 0, b"!") is not None
                assert seen == sent
                pumping.cancel()
                greedy.writer.transport.abort()

        run(main())

    def test_are_read_no_further_than_their_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segmentstore.local_connection, "OUTSTANDING_MAX", 2)
        most = 0
        appended = LocalConnection._append

        def counted(self: LocalConnection, request: int, message: Append, size: int) -> None:
            nonlocal most
            appended(self, request, message, size)
            most = max(most, self._outstanding)

        monkeypatch.setattr(LocalConnection, "_append", counted)

        async def main() -> None:
            async with served(tmp_path / "s") as store, wire(tmp_path / "s") as other:
                await store.create_segment("x")
                other.put(*(Append("x", WRITER, number, b".") for number in range(50)))
                assert codes(await other.answers(50)) == [Stored] * 50
                assert await read_all(store, "x") == b"." * 50

        run(main())
        assert most == 2
