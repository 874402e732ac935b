"""ReadSegment: flags, waiting at the tail, truncation and the end, as Pravega's clients expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segmentstore.server.read_requests import READ_BYTES_MAX
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    ErrorMessage,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SegmentIsTruncated,
    SegmentRead,
)
from tests.server.wire_client import client_of, connected, served
from tests.store.harness import open_tiny, run, until


def read(offset: int, length: int = 100, rid: int = 5) -> ReadSegment:
    return ReadSegment("s", offset, length, "", rid)


class TestBytes:
    def test_all_to_the_tail(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abcdefghij")
                reply = await client.ask(read(2), SegmentRead)
                assert reply == SegmentRead("s", 2, True, False, b"cdefghij", 5)

        run(main())

    def test_cut_by_the_length_it_is_neither_at_the_tail_nor_at_the_end(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abcdefghij")
                await store.seal("s")
                reply = await client.ask(read(0, 9), SegmentRead)
                assert reply == SegmentRead("s", 0, False, False, b"abcdefghi", 5)

        run(main())

    def test_a_length_below_the_least_is_raised(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abcdefghij")
                assert len((await client.ask(read(0, -1), SegmentRead)).data) == 8

        run(main())

    def test_no_more_than_the_bound_is_given(self, tmp_path: Path) -> None:
        async def main() -> None:
            size = READ_BYTES_MAX + 5
            async with client_of(
                tmp_path,
                append_bytes_max=size,
                frame_bytes_max=1 << 19,
                log_file_bytes=8 << 20,
                tail_bytes_max=size,
            ) as (store, client):
                await store.create_segment("s")
                await store.append("s", bytes(size))
                got = 0
                while got < size:
                    reply = await client.ask(read(got, 1 << 30), SegmentRead)
                    assert 0 < len(reply.data) <= READ_BYTES_MAX
                    got += len(reply.data)
                    assert reply.at_tail == (got == size)

        run(main())

    def test_a_reply_is_filled_with_the_pieces_that_lie_in_memory(self, tmp_path: Path) -> None:
        async def main() -> None:
            data = bytes(each % 251 for each in range(8000))
            options: dict[str, Any] = {
                "piece_bytes": 200,
                "read_ahead_bytes_max": 0,
                "fetched_bytes_max": 8000,
            }
            async with open_tiny(tmp_path / "s", **options) as store:
                await store.create_segment("s")
                for at in range(0, 8000, 500):
                    await store.append("s", data[at : at + 500])
                await store.flush()
                await store.checkpoint()
            async with served(tmp_path, **options) as (store, server):
                at = 0
                while at < 600:
                    at += len(await store.read("s", at, 100))
                assert len(await store.read("s", 0, 1000)) < 600
                async with connected(server.port) as client:
                    reply = await client.ask(read(0, 550), SegmentRead)
                    assert reply == SegmentRead("s", 0, False, False, data[:550], 5)
                    fetches = store.stats()["containers"][0]["read_index"]["fetches"]
                    longer = await client.ask(read(0, 4000), SegmentRead)
                    assert 600 <= len(longer.data) < 4000
                    assert longer.data == data[: len(longer.data)]
                    assert store.stats()["containers"][0]["read_index"]["fetches"] == fetches

        run(main())


class TestWaiting:
    def test_a_read_at_the_tail_waits_for_bytes(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abc")
                client.put(read(3), KeepAlive())
                assert await client.take() == KeepAlive(), "nothing else is held up by it"
                await store.append("s", b"def")
                assert await client.take() == SegmentRead(
                    "s",
                    3,
                    True,
                    False,
                    b"def",
                    5,
                )

        run(main())

    def test_a_read_beyond_the_tail_waits_for_its_offset(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                client.put(read(4))
                await store.append("s", b"abc")
                await store.append("s", b"defg")
                reply = await client.take()
                assert isinstance(reply, SegmentRead)
                assert (reply.offset, reply.data) == (4, b"efg")

        run(main())

    def test_a_seal_ends_the_wait(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abc")
                client.put(read(3))
                await store.seal("s")
                assert await client.take() == SegmentRead(
                    "s",
                    3,
                    False,
                    True,
                    b"",
                    5,
                )

        run(main())

    def test_a_deletion_ends_the_wait(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                client.put(read(0))
                await store.delete("s")
                assert await client.take() == NoSuchSegment(5, "s", "", 0)

        run(main())

    def test_it_is_dropped_with_its_connection(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await store.create_segment("s")
                async with connected(server.port) as client:
                    client.put(*(read(0, rid=number) for number in range(1000)), KeepAlive())
                    assert await client.take() == KeepAlive()
                await server.no_connections()
                await until(lambda: not server.context.counts.reads_waiting)

        run(main())

    def test_one_append_wakes_all(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                client.put(*(read(0, rid=number) for number in range(300)), KeepAlive())
                assert await client.take() == KeepAlive()
                await store.append("s", b"woken")
                replies = [await client.take() for _ in range(300)]
                assert {
                    reply.request_id for reply in replies if isinstance(reply, SegmentRead)
                } == {*range(300)}

        run(main())


class TestRefusals:
    def test_below_the_start(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.append("s", b"abcdefghij")
                await store.truncate("s", 4)
                reply = await client.ask(read(1), SegmentIsTruncated)
                assert reply == SegmentIsTruncated(5, "s", 4, "", 1)

        run(main())

    def test_of_a_missing_segment_it_carries_the_offset(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                assert await client.ask(read(9), NoSuchSegment) == NoSuchSegment(5, "s", "", 9)

        run(main())

    def test_beyond_the_end_of_a_sealed_segment_or_below_zero(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await store.create_segment("s")
                await store.seal("s")
                for offset in (1, -1):
                    reply = await client.ask(read(offset), ErrorMessage)
                    assert (reply.request_id, reply.code) == (5, ILLEGAL_ARGUMENT)
                assert (await client.ask(read(0), SegmentRead)).end_of_segment

        run(main())
