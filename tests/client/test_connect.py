"""`segmentstore.connect`: where it leads, and within which bounds."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import segmentstore
from recovery.harness.services.server import free_port
from segmentstore import (
    AccessRefusedError,
    InvalidArgumentError,
    SegmentNotFoundError,
    StoreUnreachableError,
    TierUnavailableError,
    local_endpoint,
)
from segmentstore.client import client_connection
from segmentstore.client.merge_once import merge_event
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime
from segmentstore.server import store_appends, store_listings, wire_server
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Hello
from segmentstore.wire.store_commands import DescribeStore, NumbersGiven
from segmentstore.wire.tokens import TokenKey
from tests.client.one_store import connect_one, connections_of, impostor
from tests.server.wire_client import served
from tests.store.harness import TINY, open_tiny, read_all, run, until

WRITER = UUID(int=1)


class TestSocket:
    def test_is_there_by_default_for_its_user_alone(self, tmp_path: Path) -> None:
        async def main() -> None:
            path = tmp_path / "s" / STORE_SOCKET_NAME
            async with open_tiny(tmp_path / "s") as store:
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert stat.S_ISSOCK(path.stat().st_mode)
                assert connections_of(store) == 0
            assert not path.exists()

        run(main())

    def test_is_not_there_with_the_setting_off(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", local_server=False) as store:
                assert not (tmp_path / "s" / STORE_SOCKET_NAME).exists()
                assert store.stats()["wire"] is None
                with pytest.raises(StoreUnreachableError, match="local_server off"):
                    await connect_one(tmp_path / "s")

        run(main())

    def test_of_a_crashed_owner_is_replaced(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", local_server=False):
                (tmp_path / "s" / STORE_SOCKET_NAME).write_bytes(b"left behind")
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                await store.create_segment("x")

        run(main())

    def test_works_in_a_folder_whose_path_is_too_long_for_a_socket(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path.joinpath(*["long" * 20] * 3) / "s"
            assert len(os.fsencode(folder)) > 200
            folder.parent.mkdir(parents=True)
            async with open_tiny(folder), connect_one(folder) as store:
                await store.create_segment("x")
            assert not (folder / STORE_SOCKET_NAME).exists()

        run(main())

    def test_without_one_the_store_is_open_and_says_so(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", local_server=False):
                (tmp_path / "s" / STORE_SOCKET_NAME).mkdir()
            async with open_tiny(tmp_path / "s") as store:
                health = [each for each in store.stats()["health"] if "no socket" in each]
                assert len(health) == 1

        run(main())

    @pytest.mark.filterwarnings("error::ResourceWarning")
    @pytest.mark.parametrize("turns", range(7))
    def test_keeps_no_connection_that_came_with_the_close(self, tmp_path: Path, turns: int) -> None:
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]

        async def main() -> None:
            async with open_tiny(tmp_path / "s"):
                for client in clients:
                    client.connect(str(tmp_path / "s" / STORE_SOCKET_NAME))
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

    def test_what_cannot_be_loaded_costs_its_connections_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken() -> None:
            raise ImportError("gone")

        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                with monkeypatch.context() as patched:
                    patched.setattr(local_endpoint, "_make_server", broken)
                    with pytest.raises(StoreUnreachableError):
                        await connect_one(tmp_path / "s")
                await embedded.create_segment("x")
                async with connect_one(tmp_path / "s") as store:
                    assert await store.append("x", b"a") == 0

        run(main())
        assert "cannot be loaded" in caplog.text

    def test_many_come_at_once_before_the_server_is_loaded(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                places = [tmp_path / "s"] * 10
                stores = await asyncio.gather(*map(connect_one, places))
                assert connections_of(embedded) == 10
                await asyncio.gather(*(store.close() for store in stores))

        run(main())

    def test_has_room_for_so_many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wire_server, "LOCAL_CONNECTIONS_MAX", 2)

        async def main() -> None:
            async with open_tiny(tmp_path / "s"):
                first, second = [await connect_one(tmp_path / "s") for _ in range(2)]
                with pytest.raises(StoreUnreachableError):
                    await connect_one(tmp_path / "s")
                await first.close()
                async with connect_one(tmp_path / "s"):
                    pass
                await second.close()

        run(main())


class TestPlaces:
    @pytest.mark.parametrize("place", ["", "s3://bucket/x", 7, "a:0", "host:70000"])
    def test_that_are_none(self, place: str) -> None:
        with pytest.raises(InvalidArgumentError):
            _ = connect_one(place)

    def test_where_no_server_is(self, tmp_path: Path) -> None:
        async def main() -> None:
            port = free_port()
            for place in (tmp_path / "gone", tmp_path, f"127.0.0.1:{port}", f"[::1]:{port}"):
                with pytest.raises(StoreUnreachableError) as caught:
                    await connect_one(place)
                assert caught.value.location == str(place)

        run(main())

    @pytest.mark.parametrize(
        ("replies", "message"),
        [
            ([encode(Hello(16, 5))], "Pravega's protocol"),
            ([encode(DescribeStore(1))], "unknown command"),
            ([encode(NumbersGiven(1, ()))], "unknown command"),
            ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "sent what is no reply"),
        ],
    )
    def test_where_it_is_no_store_of_ours(self, replies: list[bytes], message: str) -> None:
        async def main() -> None:
            async with impostor(*replies) as place:
                with pytest.raises(StoreUnreachableError, match=message):
                    await connect_one(place)

        run(main())

    def test_that_never_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("segmentstore.client.connecting.CONNECT_S", 0.01)

        async def main() -> None:
            async with impostor() as place:
                with pytest.raises(StoreUnreachableError, match="no answer for"):
                    await connect_one(place)

        run(main())

    def test_a_port_with_tokens_refuses(self, tmp_path: Path) -> None:
        async def main() -> None:
            runtime = Runtime()
            authorization = TokenAuthorization(TokenKey(b"k" * 64), runtime.clock)
            async with served(tmp_path, authorization=authorization) as (_, server):
                with pytest.raises(AccessRefusedError, match="no token"):
                    await connect_one(f"127.0.0.1:{server.port}")

        run(main())


class TestMergesAsEvents:
    def test_are_done_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                for name in ("t", "a", "b"):
                    await store.create_segment(name)
                    await store.append(name, name.encode())
                assert await merge_event(store, "t", "a", WRITER, 5) == 1
                assert await merge_event(store, "t", "a", WRITER, 5) is None
                assert await merge_event(store, "t", "b", WRITER, 4) is None
                with pytest.raises(SegmentNotFoundError):
                    await merge_event(store, "t", "a", WRITER, 6)
                assert await merge_event(store, "t", "b", WRITER, 6) == 2
                assert await read_all(store, "t") == b"tab"
                with pytest.raises(SegmentNotFoundError):
                    await merge_event(store, "gone", "t", WRITER, 7)

        run(main())


async def cancel_after(turns: int, task: asyncio.Task[Any]) -> None:
    """Cancel a task that has had so many turns of the loop, and wait for its end."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


class TestBounds:
    def test_what_waits_for_the_store_is_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_connection, "UNANSWERED_BYTES_MAX", 1000)

        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                await store.create_segment("x")
                taken = [store.append("x", bytes(400)) for _ in range(2)]
                with pytest.raises(TierUnavailableError, match="wait for the store"):
                    await store.append("x", bytes(400))
                assert await asyncio.gather(*taken) == [0, 400]
                assert await store.append("x", bytes(4000)) == 800

        run(main())

    def test_a_listing_comes_in_parts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("segmentstore.server.store_requests.LIST_BYTES", 200)
        monkeypatch.setattr("segmentstore.server.store_requests.ATTRIBUTES_AT_ONCE", 1)

        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                names = [f"{number:03}" for number in range(50)]
                await asyncio.gather(*(store.create_segment(name) for name in names))
                assert [info.name async for info in store.list_segments()] == names

        run(main())

    @pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
    def test_cancelled_listings_are_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
    ) -> None:
        monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 1)

        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                for number in range(3):
                    await store.create_segment(f"{number}")
                for _ in range(store_listings.LISTINGS_MAX + 1):
                    frames = store.list_frames()
                    first = asyncio.ensure_future(anext(frames))
                    await cancel_after(turns, first)
                    await frames.aclose()
                assert len([each async for each in store.list_frames()]) >= 3

        run(main())

    @pytest.mark.parametrize("turns", range(1, 9))
    def test_writers_whose_opening_is_cancelled_are_forgotten(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
    ) -> None:
        monkeypatch.setattr(store_appends, "STORE_WRITERS_MAX", 1)

        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                await store.create_segment("x")
                for _ in range(3):
                    opening = asyncio.ensure_future(store.writer("x", WRITER).open())
                    await cancel_after(turns, opening)
                    del opening
                    # One that was opened in these turns is forgotten when it is collected.
                    gc.collect()
                    await store.get_info("x")
                async with store.writer("x", WRITER) as writer:
                    assert await writer.append(b"a") == 0

        run(main())

    def test_writers_that_are_collected_are_forgotten(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                await store.create_segment("x")
                writer = await store.writer("x", WRITER).open()
                number = writer._writer
                del writer
                gc.collect()
                # The next request takes the message along.
                await store.get_info("x")
                with pytest.raises(segmentstore.WriterNotOpenError):
                    await store._connection.append_event(number, 0, b"a")

        run(main())

    def test_a_dropped_connection_warns_and_is_closed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                store = await connect_one(tmp_path / "s")
                references = [store]
                del store
                with pytest.warns(ResourceWarning, match="dropped without close"):
                    references.clear()
                await until(lambda: connections_of(embedded) == 0)

        run(main())


class TestBlocking:
    def test_the_same_calls(self, tmp_path: Path) -> None:
        with segmentstore.blocking.open(tmp_path / "s", **TINY) as embedded:
            with segmentstore.blocking.connect(tmp_path / "s") as store:
                store.create_segment("x")
                assert store.append("x", b"abc") == 0
                futures = [store.append_nowait("x", b"d") for _ in range(3)]
                assert [future.result() for future in futures] == [3, 4, 5]
                with store.writer("x", WRITER) as writer:
                    assert writer.append(b"e") == 6
                    assert writer.append(b"e", 0) is None
                assert b"".join(store.reader("x")) == b"abcddde"
                assert list(store.iterate_attributes("x")) == [(WRITER, 0)]
                assert [info.name for info in store.list_segments()] == ["x"]
                assert store.stats()["store_id"] == embedded.stats()["store_id"]
                with pytest.raises(SegmentNotFoundError):
                    store.get_info("y")
            assert embedded.get_info("x").length == 7

    def test_where_no_server_is(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnreachableError):
            segmentstore.blocking.connect(tmp_path)

    def test_a_dropped_one_ends_its_thread(self, tmp_path: Path) -> None:
        with segmentstore.blocking.open(tmp_path / "s", **TINY):
            references = [segmentstore.blocking.connect(tmp_path / "s")]
            thread = references[0]._thread
            with pytest.warns(ResourceWarning, match="dropped without close"):
                references.clear()
            thread.end()
