"""Commands of our own as a server answers them: announced, in order, bounded, refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.server import store_appends, store_requests
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    Command,
    ConditionalAttributeUpdate,
    GetStreamSegmentInfo,
    Hello,
    Request,
    StreamSegmentInfo,
)
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.store_commands import (
    ANY_SEGMENT,
    DUPLICATE,
    AppendBytes,
    AppendEvents,
    BytesGiven,
    CancelRead,
    ChangeSegment,
    CloseWriter,
    ConnectionClosing,
    DescribeHosts,
    DescribeSegment,
    DescribeStore,
    EventToAppend,
    HostsDescribed,
    ListAttributes,
    ManageStore,
    NumbersGiven,
    OpenWriter,
    ReadBytes,
    RequestRefused,
    StoreDescribed,
    UpdateAttributes,
)
from segmentstore.wire.store_formats import STORE_REPLIES
from segmentstore.wire.tokens import TokenKey
from tests.server.wire_client import WRITER, WireClient, connected, served
from tests.store.harness import read_all, run


async def announce(client: WireClient) -> None:
    """Say Hello with our mark, and expect it back."""
    client.put(Hello(16, 5, 1))
    assert await client.take() == Hello(16, 5, 1)
    client._decoder.accept({**REPLIES, **STORE_REPLIES}, FRAME_BYTES_MAX)


@asynccontextmanager
async def spoken(folder: Path, **options: Any) -> AsyncIterator[tuple[SegmentStore, WireClient]]:
    """A store, and a connection on which commands of ours may be sent."""
    async with (
        served(folder, **options) as (store, server),
        connected(server.port, hello=False) as client,
    ):
        await announce(client)
        yield store, client


def events(*numbers: int) -> tuple[EventToAppend, ...]:
    return tuple(EventToAppend(number, b"<%d>" % number) for number in numbers)


def refusal(reply: Command | None) -> tuple[int, str]:
    assert isinstance(reply, RequestRefused), reply
    return reply.request_id, reply.error


class TestAnnouncement:
    @pytest.mark.parametrize("command", [DescribeStore(1), AppendBytes(1, -1, "x", (), b"")])
    def test_without_it_the_types_are_unknown(self, tmp_path: Path, command: Request) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server), connected(server.port) as client:
                client.put(command)
                assert await client.take() is None

        run(main())

    def test_both_protocols_are_spoken_on_one_connection(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(AppendBytes(7, -1, "x", (), b"abc"))
                assert await client.take() == NumbersGiven(7, (0,))
                info = await client.ask(GetStreamSegmentInfo(8, "x", ""), StreamSegmentInfo)
                assert info.length == 3
                described = await client.ask(DescribeStore(9), StoreDescribed)
                assert described == (9, store.store_id, 4096, 1, (0,))
                hosts = await client.ask(DescribeHosts(10), HostsDescribed)
                assert hosts == (10, store.store_id, 4096, 1, 0, (("", 0, (0,)),))

        run(main())

    def test_a_port_with_tokens_refuses_every_request(self, tmp_path: Path) -> None:
        async def main() -> None:
            authorization = TokenAuthorization(TokenKey(b"k" * 64), Runtime().clock)
            async with spoken(tmp_path, authorization=authorization) as (store, client):
                await store.create_segment("x")
                client.put(
                    AppendBytes(1, -1, "x", (), b"abc"),
                    OpenWriter(2, "x", WRITER),
                    CloseWriter(2),
                    ManageStore(3, "stats"),
                )
                refused = [refusal(await client.take()) for _ in range(3)]
                assert refused == [(number, "AccessRefusedError") for number in (1, 2, 3)]
                assert (await store.get_info("x")).length == 0

        run(main())


class TestAppends:
    def test_many_on_their_way_are_answered_each(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(*(AppendBytes(n, -1, "x", (), b"<%d>" % n) for n in range(50)))
                replies = [await client.take() for _ in range(50)]
                data = b"".join(b"<%d>" % n for n in range(50))
                wanted = [NumbersGiven(n, (data.index(b"<%d>" % n),)) for n in range(50)]
                assert replies == wanted
                assert await read_all(store, "x") == data

        run(main())

    def test_wait_for_room_in_the_queue_and_for_bytes_on_their_way(self, tmp_path: Path) -> None:
        async def main() -> None:
            tiny = OutstandingBytes(total_max=3000, shared_max=1000, free=500)
            async with spoken(tmp_path, outstanding=tiny, queue_bytes_max=8192) as (store, client):
                await store.create_segment("x")
                client.put(*(AppendBytes(n, -1, "x", (), bytes(4000)) for n in range(9)))
                assert [await client.take() for _ in range(9)] == [
                    NumbersGiven(n, (n * 4000,)) for n in range(9)
                ]

        run(main())

    def test_a_refused_one_harms_no_other(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(
                    AppendBytes(1, -1, "gone", (), b"a"),
                    AppendBytes(2, 5, "x", (), b"a"),
                    AppendBytes(3, -1, "a\nb", (), b"a"),
                    AppendBytes(4, -1, "x", (), bytes(5000)),
                    AppendBytes(5, -1, "x", (), b"a"),
                )
                taken: list[Any] = [await client.take() for _ in range(5)]
                replies = {reply.request_id: reply for reply in taken}
                errors = [replies[n].error for n in range(1, 5)]
                assert errors == [
                    "SegmentNotFoundError",
                    "BadOffsetError",
                    "InvalidNameError",
                    "AppendTooLargeError",
                ]
                assert replies[5] == NumbersGiven(5, (0,))

        run(main())

    def test_an_update_that_is_none_ends_the_connection(self, tmp_path: Path) -> None:
        async def main() -> None:
            for make in (
                lambda updates: AppendBytes(1, -1, "x", updates, b"a"),
                lambda updates: UpdateAttributes(1, "x", updates),
            ):
                async with spoken(tmp_path) as (store, client):
                    if "x" not in [info.name async for info in store.list_segments()]:
                        await store.create_segment("x")
                    client.put(make((ConditionalAttributeUpdate(WRITER, 9, 0, 0),)))
                    assert await client.take() is None
                    assert (await store.get_info("x")).length == 0

        run(main())


class TestWriters:
    def test_events_are_stored_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(OpenWriter(1, "x", WRITER))
                assert await client.take() == NumbersGiven(1, (-1,))
                client.put(AppendEvents(2, 1, events(0, 1)), AppendEvents(3, 1, events(1, 2)))
                assert await client.take() == NumbersGiven(2, (0, 3))
                assert await client.take() == NumbersGiven(3, (DUPLICATE, 6))
                client.put(AppendEvents(4, 1, ()))
                assert await client.take() == NumbersGiven(4, ())
                client.put(OpenWriter(5, "x", WRITER))
                assert await client.take() == NumbersGiven(5, (2,))
                assert await read_all(store, "x") == b"<0><1><2>"

        run(main())

    def test_end_with_a_malformed_event_and_leave_no_gap(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(OpenWriter(1, "x", WRITER))
                await client.take()
                broken = (*events(0), EventToAppend(-5, b"x"), *events(2))
                client.put(AppendEvents(2, 1, broken), AppendEvents(3, 1, events(3)))
                replies = [await client.take() for _ in range(3)]
                assert NumbersGiven(2, (0,)) in replies
                refused = sorted(refusal(each) for each in replies if each != NumbersGiven(2, (0,)))
                assert refused == [(2, "InvalidArgumentError"), (3, "InvalidArgumentError")]
                assert await read_all(store, "x") == b"<0>"

        run(main())

    def test_that_were_not_opened_or_were_closed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(AppendEvents(1, 7, events(0)), CloseWriter(7))
                assert refusal(await client.take()) == (1, "WriterNotOpenError")
                client.put(OpenWriter(2, "x", WRITER))
                await client.take()
                client.put(CloseWriter(2), AppendEvents(3, 2, events(0)))
                assert refusal(await client.take()) == (3, "WriterNotOpenError")
                client.put(OpenWriter(4, "gone", WRITER))
                assert refusal(await client.take()) == (4, "SegmentNotFoundError")

        run(main())

    def test_that_are_closed_in_the_same_bytes_are_not_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_appends, "STORE_WRITERS_MAX", 1)

        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                for number in (1, 2):
                    client.put(OpenWriter(number, "x", WRITER), CloseWriter(number))
                    # No call waits for it: the answer says that nothing was opened.
                    assert refusal(await client.take()) == (number, "WriterNotOpenError")
                client.put(AppendEvents(3, 2, events(0)))
                assert refusal(await client.take()) == (3, "WriterNotOpenError")
                client.put(OpenWriter(4, "x", WRITER))
                assert await client.take() == NumbersGiven(4, (-1,))

        run(main())

    def test_that_are_not_opened_yet_take_no_events(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                client.put(OpenWriter(1, "x", WRITER), AppendEvents(2, 1, events(0)))
                replies = [await client.take() for _ in range(2)]
                assert NumbersGiven(1, (-1,)) in replies
                replies.remove(NumbersGiven(1, (-1,)))
                assert refusal(replies[0]) == (2, "WriterNotOpenError")

        run(main())

    def test_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_appends, "STORE_WRITERS_MAX", 2)

        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                for number in (1, 2):
                    client.put(OpenWriter(number, "x", WRITER))
                    await client.take()
                client.put(OpenWriter(3, "x", WRITER))
                assert refusal(await client.take()) == (3, "TierUnavailableError")
                client.put(CloseWriter(1), OpenWriter(4, "x", WRITER))
                assert await client.take() == NumbersGiven(4, (-1,))

        run(main())


class TestRequests:
    def test_what_is_none_is_refused_and_the_connection_stays(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                await store.create_segment("x")
                for command in (
                    ChangeSegment(1, 9, 0, "x"),
                    ManageStore(1, "explode"),
                    ReadBytes(1, ANY_SEGMENT, -1, 10, -1, "x"),
                    ReadBytes(1, ANY_SEGMENT, 0, 0, -1, "x"),
                    ChangeSegment(1, 2, -1, "x"),
                ):
                    client.put(command)
                    assert refusal(await client.take()) == (1, "InvalidArgumentError")
                client.put(DescribeSegment(2, "gone"))
                reply = await client.take()
                assert isinstance(reply, RequestRefused)
                assert json.loads(bytes(reply.detail)) == {
                    "text": "segment 'gone' does not exist",
                    "values": {"name": "gone"},
                }

        run(main())

    def test_a_bug_is_answered_and_logged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(store: SegmentStore) -> None:
            raise KeyError(store.store_id)

        monkeypatch.setitem(store_requests._ACTIONS, "flush", broken)

        async def main() -> None:
            async with spoken(tmp_path) as (_, client):
                client.put(ManageStore(1, "flush"))
                assert refusal(await client.take()) == (1, "SegmentStoreError")
                client.put(DescribeStore(2))
                assert isinstance(await client.take(), StoreDescribed)

        run(main())
        assert "ManageStore failed" in caplog.text

    def test_a_read_that_is_cancelled_waits_no_longer(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (store, server),
                connected(server.port, hello=False) as client,
            ):
                await announce(client)
                await store.create_segment("x")
                client.put(ReadBytes(1, ANY_SEGMENT, 0, 10, 60_000, "x"), DescribeStore(2))
                await client.take()
                assert server.statistics()["reads_waiting"] == 1
                client.put(CancelRead(1), CancelRead(99), DescribeStore(3))
                assert isinstance(await client.take(), StoreDescribed)
                assert server.statistics()["reads_waiting"] == 0
                # Also if it had not begun.
                read = encode(ReadBytes(4, ANY_SEGMENT, 0, 10, 60_000, "x"))
                client.put_bytes(read + encode(CancelRead(4)) + encode(DescribeStore(5)))
                assert isinstance(await client.take(), StoreDescribed)
                assert server.statistics()["reads_waiting"] == 0

        run(main())

    def test_the_id_of_a_segment_is_kept_to(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with spoken(tmp_path) as (store, client):
                old = await store.create_segment("x")
                await store.append("x", b"abc")
                read = ReadBytes(1, old.segment_id, 0, 10, -1, "x")
                attributes = ListAttributes(2, old.segment_id, bytes(16), b"\xff" * 16, "x")
                client.put(read)
                assert await client.take() == BytesGiven(1, b"abc")
                await store.delete("x")
                await store.create_segment("x")
                await store.append("x", b"def")
                client.put(read)
                assert refusal(await client.take()) == (1, "SegmentNotFoundError")
                client.put(attributes)
                assert refusal(await client.take()) == (2, "SegmentNotFoundError")

        run(main())

    def test_an_orderly_stop_answers_changes(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path) as (store, server),
                connected(server.port, hello=False) as client,
            ):
                await announce(client)
                await store.create_segment("x")
                appends = [AppendBytes(n, -1, "x", (), b"a") for n in range(10)]
                client.put(*appends, ChangeSegment(10, 1, 0, "x"))
                first = await client.take()
                await server.close()
                replies: list[Any] = [first, *[await client.take() for _ in range(10)]]
                assert {reply.request_id for reply in replies} == set(range(11))
                assert await client.take() == ConnectionClosing()
                assert await client.take() is None
                assert (await store.get_info("x")).sealed

        run(main())
