"""Connections: the handshake, bad input, bounds, an orderly stop."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from segmentstore.server import connection, wire_server
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    DataAppended,
    Hello,
    KeepAlive,
    Padding,
    ReadSegment,
    SegmentRead,
    SetupAppend,
)
from tests.server.wire_client import WRITER, client_of, connected, served
from tests.store.harness import read_all, run


class TestHandshake:
    def test_the_server_answers_with_its_versions(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                assert await client.ask(Hello(17, 5), Hello) == Hello(16, 5)
                assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()

        run(main())

    @pytest.mark.parametrize("versions", [(4, 1), (20, 17)])
    def test_versions_without_one_in_common_end_it(
        self, tmp_path: Path, versions: tuple[int, int]
    ) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                assert await client.ask(Hello(*versions), Hello) == Hello(16, 5)
                assert await client.take() is None

        run(main())

    def test_nothing_may_come_before_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                client.put(SetupAppend(1, WRITER, "s", ""))
                assert await client.take() is None

        run(main())

    def test_numbers_that_clients_choose_make_no_more_lines(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server):
                for number in range(-3, 4):
                    async with connected(server.port, hello=False) as client:
                        client.put_bytes(struct.pack(">ii", 5000 + number, number))
                        assert await client.take() is None

        run(main())
        (line,) = caplog.messages
        assert "unknown command 4997, or not of this direction" in line

    def test_a_silent_connection_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (_, server),
                connected(server.port, hello=False) as client,
            ):
                assert await client.take() is None

        monkeypatch.setattr(connection, "HELLO_S", 0.01)
        run(main())


class TestBadInput:
    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(struct.pack(">ii", 12345, 4) + b"xxxx", id="unknown command"),
            pytest.param(struct.pack(">ii", 9, -1), id="negative length"),
            pytest.param(struct.pack(">ii", 9, 1 << 24), id="too long"),
            pytest.param(struct.pack(">ii", 9, 3) + b"\0\5a", id="a cut field"),
            pytest.param(struct.pack(">ii", 7, 4) + bytes(4), id="a reply"),
        ],
    )
    def test_a_malformed_frame_ends_its_connection_alone(self, tmp_path: Path, data: bytes) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (_, server),
                connected(server.port) as other,
                connected(server.port) as client,
            ):
                client.put_bytes(data)
                assert await client.take() is None
                assert await other.ask(KeepAlive(), KeepAlive) == KeepAlive()

        run(main())

    def test_padding_between_commands_is_passed_over(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                client.put(Padding(20))
                assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()

        run(main())


class TestBounds:
    def test_a_connection_too_many_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server):
                async with connected(server.port), connected(server.port):
                    async with connected(server.port, hello=False) as third:
                        assert await third.take() is None
                    assert server.context.counts.connections_refused == 1
                await server.no_connections()
                async with connected(server.port) as again:
                    assert await again.ask(KeepAlive(), KeepAlive) == KeepAlive()

        monkeypatch.setattr(wire_server, "CONNECTIONS_MAX", 2)
        run(main())

    def test_all_appends_go_in_however_little_may_be_outstanding(self, tmp_path: Path) -> None:
        async def main() -> None:
            tiny = OutstandingBytes(total_max=300, shared_max=100, free=50)
            async with (
                served(tmp_path, tiny, queue_bytes_max=8192) as (store, server),
                connected(server.port) as one,
                connected(server.port) as two,
            ):
                for client, name in ((one, "s"), (two, "t")):
                    await client.create(name)
                    await client.set_up(name)
                for number in range(1, 201):
                    one.append(number, b"%04d" % number * 25)
                    two.append(number, b"%04d" % number * 25)
                await one.acked(200)
                await two.acked(200)
                want = b"".join(b"%04d" % number * 25 for number in range(1, 201))
                assert await read_all(store, "s") == want
                assert await read_all(store, "t") == want
                assert tiny.total == 0

        run(main())

    def test_appends_wait_for_room_in_the_queue_of_their_container(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(
                tmp_path, queue_bytes_max=4096, append_bytes_max=2048, containers=1
            ) as (store, client):
                await client.create("s")
                await client.set_up("s")
                for number in range(1, 21):
                    client.append(number, b"%04d" % number * 400)
                await client.acked(20)
                want = b"".join(b"%04d" % number * 400 for number in range(1, 21))
                assert await read_all(store, "s") == want

        run(main())

    def test_a_client_that_reads_nothing_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with served(tmp_path, tail_bytes_max=1 << 20, append_bytes_max=1 << 16) as (
                store,
                server,
            ):
                await store.create_segment("s")
                await store.append("s", bytes(1 << 16))
                async with connected(server.port) as client:
                    request = ReadSegment("s", 0, 1 << 16, "", 1)
                    client.put_bytes(encode(request) * 2000)
                    got = 0
                    for _ in range(2000):
                        reply = await client.take()
                        assert isinstance(reply, SegmentRead)
                        got += 1
                        assert server.context.counts.reads_waiting <= 100
                    assert got == 2000

        monkeypatch.setattr(connection, "REPLY_BYTES_MAX", 1 << 16)
        monkeypatch.setattr(connection, "REQUESTS_MAX", 50)
        run(main())


class TestClientsThatVanish:
    def test_the_system_asks_for_silent_ones(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server), connected(server.port):
                (accepted,) = server._connections
                assert accepted._transport is not None
                found = accepted._transport.get_extra_info("socket")
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle_s, interval_s, count = (
                    found.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert idle_s + interval_s * count <= 120

        run(main())


class TestStop:
    def test_appends_on_their_way_are_answered(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server), connected(server.port) as client:
                await client.create("s")
                await client.set_up("s")
                for number in range(1, 51):
                    client.append(number, b"%02d" % number)
                client.put(KeepAlive())
                acked = 0
                while not isinstance(reply := await client.take(), KeepAlive):
                    assert isinstance(reply, DataAppended)
                    acked = reply.event_number
                await server.close()
                while (reply := await client.take()) is not None:
                    assert isinstance(reply, DataAppended)
                    acked = reply.event_number
                assert acked == 50
                assert await read_all(store, "s") == b"".join(b"%02d" % n for n in range(1, 51))

        run(main())

    def test_waiting_reads_do_not_hold_it_up(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server), connected(server.port) as client:
                await store.create_segment("s")
                client.put(ReadSegment("s", 0, 10, "", 1), KeepAlive())
                assert await client.take() == KeepAlive()
                await server.close()
                assert await client.take() is None

        run(main())

    def test_no_client_connects_behind_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server):
                port = server.port
                await server.close()
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", port)

        run(main())
