"""The local server of an open store: what other processes are answered, and that events land once
whatever breaks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

import segmentstore.local_connection
import segmentstore.local_server
from segmentstore import AppendTooLargeError, ConfigError
from segmentstore.contracts.local_protocol import (
    Append,
    Code,
    Create,
    Describe,
    Description,
    Done,
    HandshakeRequest,
    LastEvent,
    Refused,
    encode,
)
from segmentstore.contracts.local_socket import SOCKET_NAME
from tests.store.harness import open_tiny, read_all, run
from tests.store.local_wire import OTHER, WRITER, codes, served, wire
from tier2.spark.common.local_client import LocalClient, StoreNotServedError, StoreRefusedError


class TestSocket:
    def test_is_there_for_its_owner_while_the_store_is_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            path = tmp_path / "s" / SOCKET_NAME
            async with served(tmp_path / "s"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert stat.S_ISSOCK(path.stat().st_mode)
            assert not path.exists()

        run(main())

    def test_is_not_there_unless_asked_for(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s"):
                assert not (tmp_path / "s" / SOCKET_NAME).exists()

        run(main())

    @pytest.mark.filterwarnings("error::ResourceWarning")
    @pytest.mark.parametrize("turns", range(7))
    def test_keeps_no_connection_that_came_with_the_close(self, tmp_path: Path, turns: int) -> None:
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]

        async def main() -> None:
            async with served(tmp_path / "s"):
                for client in clients:
                    client.connect(str(tmp_path / "s" / SOCKET_NAME))
                for _ in range(turns):
                    await asyncio.sleep(0)

        run(main())
        for client in clients:
            # The other side is closed, not forgotten.
            client.settimeout(60)
            with suppress(ConnectionError):
                while client.recv(1024):
                    pass
            client.close()
        gc.collect()

    def test_of_a_crashed_owner_is_replaced(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s"):
                (tmp_path / "s" / SOCKET_NAME).write_bytes(b"left behind")
            async with served(tmp_path / "s"), LocalClient(str(tmp_path / "s")) as client:
                assert await client.create("x")

        run(main())

    def test_works_in_a_folder_whose_path_is_too_long_for_a_socket(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path.joinpath(*["long" * 20] * 3) / "s"
            assert len(os.fsencode(folder)) > 200
            folder.parent.mkdir(parents=True)
            async with served(folder), LocalClient(str(folder)) as client:
                assert await client.create("x")
            assert not (folder / SOCKET_NAME).exists()

        run(main())

    def test_that_cannot_be_created_refuses_the_opening_and_releases_the_store(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s"):
                (tmp_path / "s" / SOCKET_NAME).mkdir()
            with pytest.raises(ConfigError, match="local_server"):
                await open_tiny(tmp_path / "s", local_server=True)
            async with open_tiny(tmp_path / "s"):
                pass

        run(main())

    def test_nobody_there_is_said_after_the_timeout(self, tmp_path: Path) -> None:
        async def main() -> None:
            with pytest.raises(StoreNotServedError, match="does not answer"):
                await LocalClient(str(tmp_path), timeout_s=0.1).open()

        run(main())


class TestRequests:
    def test_do_what_the_store_does(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as store, LocalClient(str(tmp_path / "s")) as client:
                assert (client.store_id, client.append_bytes_max) == (
                    store.stats()["store_id"],
                    4096,
                )
                assert await client.last_event("x", WRITER) is None
                assert await client.create("x")
                assert not await client.create("x")
                assert await client.last_event("x", WRITER) == -1
                assert await client.append("x", WRITER, 5, b"five") == 0
                assert await client.append("x", WRITER, 5, b"five") is None
                assert await client.append("x", WRITER, 4, b"four") is None
                assert await client.append("x", OTHER, 0, b"zero") == 4
                assert await client.append("x", OTHER, 1, b"") == 8
                assert await client.last_event("x", WRITER) == 5
                described = await client.describe("x")
                assert described is not None
                assert (described.length, described.sealed) == (8, False)
                assert await client.names("") == ["x"]
                assert await client.names("y") == []
                assert await read_all(store, "x") == b"fivezero"
                assert await client.delete("x")
                assert not await client.delete("x")
                assert await client.describe("x") is None

        run(main())

    def test_refusals_carry_the_stores_own_words(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as store, LocalClient(str(tmp_path / "s")) as client:
                with pytest.raises(
                    StoreRefusedError, match="segment 'x' does not exist"
                ) as refused:
                    await client.append("x", WRITER, 0, b"data")
                assert (refused.value.code, refused.value.error) == (
                    Code.NOT_FOUND,
                    "SegmentNotFoundError",
                )
                await store.create_segment("x")
                await store.seal("x")
                await client.last_event("x", WRITER)
                with pytest.raises(StoreRefusedError) as refused:
                    await client.append("x", WRITER, 0, b"data")
                assert (refused.value.code, refused.value.error) == (
                    Code.REFUSED,
                    "SegmentSealedError",
                )
                with pytest.raises(AppendTooLargeError):
                    await client.append("x", OTHER, 0, bytes(4097))
                client.append_bytes_max = 1 << 20
                with pytest.raises(StoreRefusedError, match="over the limit"):
                    await client.append("x", OTHER, 0, bytes(4097))
                with pytest.raises(StoreRefusedError, match="over the limit"):
                    await client.append("x", OTHER, 0, bytes(40_970))

        run(main())

    def test_a_listing_longer_than_an_answer_comes_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segmentstore.local_connection, "NAMES_BYTES_MAX", 10)

        async def main() -> None:
            async with served(tmp_path / "s"), LocalClient(str(tmp_path / "s")) as client:
                names = [f"a/{number:03}" for number in range(25)]
                for name in [*names, "b"]:
                    await client.create(name)
                assert await client.names("a/") == names

        run(main())

    def test_a_merge_is_an_event_of_its_writer(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as store, LocalClient(str(tmp_path / "s")) as client:
                await client.create("x")
                for name, data in (("a", b"first"), ("b", b"second"), ("c", b"third")):
                    await client.create(name)
                    await client.append(name, WRITER, 0, data)
                assert await client.merge("x", "a", WRITER, 0) == 0
                # Sent again after it was carried out, and another source under the same number.
                assert await client.merge("x", "a", WRITER, 0) is None
                assert await client.merge("x", "b", WRITER, 0) is None
                assert await client.merge("x", "b", WRITER, 1) == 5
                assert await client.merge_once("x", "c") == 11
                with pytest.raises(StoreRefusedError) as refused:
                    await client.merge("x", "nothing", WRITER, 9)
                assert refused.value.code == Code.NOT_FOUND
                assert await read_all(store, "x") == b"firstsecondthird"

        run(main())

    def test_a_merge_sent_twice_at_once_is_committed_once_and_both_get_durable_answers(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            folder = str(tmp_path / "s")
            async with served(tmp_path / "s") as store:
                async with LocalClient(folder) as one, LocalClient(folder) as two:
                    await one.create("x")
                    for number in range(20):
                        part = f"part-{number}"
                        await one.create(part)
                        await one.append(part, WRITER, 0, b"<%d>" % number)
                        outcomes = await asyncio.gather(
                            one.merge("x", part, WRITER, number),
                            two.merge("x", part, WRITER, number),
                        )
                        assert outcomes.count(None) == 1
                        assert await one.last_event("x", WRITER) == number
                assert await read_all(store, "x") == b"".join(
                    b"<%d>" % number for number in range(20)
                )

        run(main())


class TestBadMessages:
    def test_that_are_well_framed_are_refused_and_the_conversation_goes_on(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with served(tmp_path / "s"), wire(tmp_path / "s") as other:
                for body in (
                    bytes([200]) + bytes(4),
                    bytes([4, 0, 0, 0, 7, 255, 255]),
                    bytes([4, 0, 0, 0, 7, 0, 1, 255]),
                ):
                    other.writer.write(len(body).to_bytes(4, "big") + body)
                other.put(HandshakeRequest(), Create(""), Create("x"), Describe("x"))
                answers = await other.answers(7)
                assert codes(answers) == [
                    Code.REQUEST_UNKNOWN,
                    Code.MALFORMED,
                    Code.MALFORMED,
                    Code.MALFORMED,
                    Code.REFUSED,
                    Done,
                    Description,
                ]

        run(main())

    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            (b"\0\0\0\0", Code.MALFORMED),
            (b"GET / HTTP/1.1\r\n\r\n", Code.TOO_LARGE),
            (b"".join(map(bytes, encode(1, Create("x")))), Code.HANDSHAKE_FIRST),
            (b"".join(map(bytes, encode(1, HandshakeRequest(2)))), Code.VERSION_UNKNOWN),
            (b"\0\0\0\x05\xff\0\0\0\x01", Code.REQUEST_UNKNOWN),
        ],
    )
    def test_instead_of_a_handshake_end_it_with_a_refusal(
        self, tmp_path: Path, sent: bytes, code: Code
    ) -> None:
        async def main() -> None:
            async with served(tmp_path / "s"), wire(tmp_path / "s", handshake=False) as other:
                other.writer.write(sent)
                assert codes(await other.answers(1)) == [code]
                assert await other.reader.read() == b""

        run(main())

    def test_longer_than_the_largest_append_end_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s"), wire(tmp_path / "s") as other:
                other.put(Append("x", WRITER, 0, bytes(10_000)))
                assert codes(await other.answers(1)) == [Code.TOO_LARGE]

        run(main())

    def test_cut_off_do_no_harm(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as store:
                await store.create_segment("x")
                whole = b"".join(map(bytes, encode(1, Append("x", WRITER, 0, b"data"))))
                for cut in range(len(whole)):
                    async with wire(tmp_path / "s") as other:
                        other.writer.write(whole[:cut])
                async with LocalClient(str(tmp_path / "s")) as client:
                    assert await client.append("x", WRITER, 0, b"data") == 0

        run(main())


def test_a_connection_over_the_bound_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmentstore.local_server, "CONNECTIONS_MAX", 1)

    async def main() -> None:
        async with served(tmp_path / "s"):
            async with wire(tmp_path / "s"):
                async with wire(tmp_path / "s", handshake=False) as other:
                    (refused,) = await other.answers(1)
                    assert isinstance(refused, Refused)
                    assert refused.code == Code.BUSY
                    assert "1 connections" in refused.message
                with pytest.raises(StoreNotServedError):
                    await LocalClient(str(tmp_path / "s"), timeout_s=0.1).open()
                waiting = LocalClient(str(tmp_path / "s"))
                opening = asyncio.ensure_future(waiting.open())
                await asyncio.sleep(0.05)
                assert not opening.done()
            await opening
            assert await waiting.create("x")
            waiting.close()

    run(main())


def test_silent_connections_shut_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmentstore.local_server, "CONNECTIONS_MAX", 3)

    async def main() -> None:
        async with served(tmp_path / "s"), AsyncExitStack() as stack:
            silent = [
                await stack.enter_async_context(wire(tmp_path / "s", handshake=False))
                for _ in range(9)
            ]
            async with LocalClient(str(tmp_path / "s")) as client:
                assert await client.create("x")
                # The oldest made room, and received the reason.
                assert codes([(await silent[0].take())[1]]) == [Code.BUSY]
                assert await silent[0].reader.read() == b""
                assert await client.append("x", WRITER, 0, b"data") == 0

    run(main())


def test_a_connection_that_is_idle_makes_room_and_one_at_work_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmentstore.local_server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(segmentstore.local_server, "IDLE_S", 0.0)

    async def main() -> None:
        async with (
            served(tmp_path / "s"),
            wire(tmp_path / "s") as older,
            wire(tmp_path / "s") as newer,
        ):
            older.put(Create("x"))
            assert codes(await older.answers(1)) == [Done]
            async with LocalClient(str(tmp_path / "s")) as client:
                assert not await client.create("x")
                assert codes(await newer.answers(1)) == [Code.BUSY]
                older.put(Describe("x"))
                assert codes(await older.answers(1)) == [Description]

    run(main())


def test_a_connection_that_sends_no_handshake_in_time_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmentstore.local_connection, "HANDSHAKE_S", 0.01)

    async def main() -> None:
        async with served(tmp_path / "s"), wire(tmp_path / "s", handshake=False) as silent:
            assert codes(await silent.answers(1)) == [Code.HANDSHAKE_FIRST]
            assert await silent.reader.read() == b""

    run(main())


def test_another_store_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path / "one"), served(tmp_path / "two"):
            folder = tmp_path / "link"
            folder.symlink_to(tmp_path / "one")
            async with LocalClient(str(folder), timeout_s=5) as client:
                await client.create("x")
                folder.unlink()
                folder.symlink_to(tmp_path / "two")
                client._hang_up()
                with pytest.raises(StoreNotServedError, match="another store"):
                    await client.create("y")

    run(main())


def test_a_store_that_stops_in_the_middle_is_away_and_not_refusing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path / "s") as store, wire(tmp_path / "s") as other:
            await store.create_segment("x")
            container = store._containers[0]
            container._failed(OSError(5, "the log's disk is gone"))
            other.put(Append("x", WRITER, 0, b"data"), LastEvent("x", WRITER))
            assert codes(await other.answers(2)) == [Code.AWAY, Code.AWAY]

    run(main())


def test_a_connection_that_waits_for_its_last_answers_is_closed_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(connection: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(segmentstore.local_connection.LocalConnection, "_quiet", never)

    async def main() -> None:
        async with served(tmp_path / "s") as store, wire(tmp_path / "s") as other:
            other.writer.write(bytes(4))
            assert codes(await other.answers(1)) == [Code.MALFORMED]
            await store.close()
            async with asyncio.timeout(60):
                assert await other.reader.read() == b""

    run(main())
