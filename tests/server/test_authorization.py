"""Tokens at the wire server: which request needs what, and a connection whose token runs out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.permission import Permission
from segmentstore.server.authorization import TokenAuthorization, WriterTokens
from segmentstore.server.wire_server import WireServer
from segmentstore.wire.commands import (
    TOKEN_EXPIRED,
    TOKEN_REFUSED,
    AppendSetup,
    AuthTokenCheckFailed,
    Command,
    CreateSegment,
    CreateTransientSegment,
    GetStreamSegmentInfo,
    KeepAlive,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentsMerged,
    SetupAppend,
    StreamSegmentInfo,
)
from segmentstore.wire.formats import REQUESTS
from segmentstore.wire.tokens import TokenKey
from tests.server.wire_client import OTHER, WRITER, WireClient, connected, served
from tests.store.harness import run, until
from tests.support.loop_clock import LoopClock

KEY = TokenKey(b"a key of tests, known to all of them")
READ, UPDATE = Permission.READ, Permission.READ_UPDATE
A, B = "prn::/scope:s/stream:a", "prn::/scope:s/stream:b"
SEGMENT, OTHERS = "s/a/0.#epoch.0", "s/b/0.#epoch.0"
FREE = {"Hello", "KeepAlive", "Padding"}
APPENDS = {"AppendBlock", "AppendBlockEnd", "ConditionalAppend", "ConditionalBlockEnd"}
READS = {
    "GetSegmentAttribute",
    "GetStreamSegmentInfo",
    "GetTableSegmentInfo",
    "ReadSegment",
    "ReadTable",
    "ReadTableEntries",
    "ReadTableEntriesDelta",
    "ReadTableKeys",
}


class SetClock:
    """A wall clock that stands."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def time_ms(self) -> int:
        return self.now_ms


def token(clock: SetClock, resources: Mapping[str, Permission], lifetime_s: int = 600) -> str:
    return KEY.sign("u", resources, clock.time_ms() // 1000, lifetime_s)


@asynccontextmanager
async def client_and_clock(
    folder: Path,
) -> AsyncIterator[tuple[WireServer, WireClient, SetClock]]:
    clock = SetClock()
    async with (
        served(folder, authorization=TokenAuthorization(KEY, clock)) as (_, server),
        connected(server.port) as client,
    ):
        yield server, client, clock


def test_requests_need_a_token_and_the_connection_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_and_clock(tmp_path) as (server, client, clock):
            writing, reading = token(clock, {A: UPDATE}), token(clock, {A: READ})
            refused = AuthTokenCheckFailed(1, "", TOKEN_REFUSED)
            for bad in ("", "x.y.z", reading, token(clock, {B: UPDATE})):
                request = CreateSegment(1, SEGMENT, 0, 0, bad)
                assert await client.ask(request, AuthTokenCheckFailed) == refused
            await client.ask(CreateSegment(1, SEGMENT, 0, 0, writing), SegmentCreated)
            for bad in ("", reading):
                setup = SetupAppend(1, WRITER, SEGMENT, bad)
                assert await client.ask(setup, AuthTokenCheckFailed) == refused
            await client.ask(SetupAppend(2, WRITER, SEGMENT, writing), AppendSetup)
            client.append(1, b"data")
            await client.acked(1)
            for good in (reading, writing):
                read = await client.ask(ReadSegment(SEGMENT, 0, 9, good, 3), SegmentRead)
                assert read.data == b"data"
            failed = await client.ask(ReadSegment(SEGMENT, 0, 9, "", 7), AuthTokenCheckFailed)
            assert failed == AuthTokenCheckFailed(7, "", TOKEN_REFUSED)
            assert server.context.counts.refusals["CreateSegment: AuthTokenCheckFailed"] == 4

    run(main())


def test_an_expired_token_has_its_own_code(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_and_clock(tmp_path) as (_, client, clock):
            writing = token(clock, {A: UPDATE})
            await client.ask(CreateSegment(1, SEGMENT, 0, 0, writing), SegmentCreated)
            clock.now_ms += 600_000
            info = GetStreamSegmentInfo(5, SEGMENT, writing)
            failed = await client.ask(info, AuthTokenCheckFailed)
            assert (failed.request_id, failed.code) == (5, TOKEN_EXPIRED)
            assert "by this host's clock: ask the Controller" in failed.stack
            assert "differ by more than 600 s: the operator sets them" in failed.stack
            info = GetStreamSegmentInfo(6, SEGMENT, token(clock, {A: READ}))
            assert (await client.ask(info, StreamSegmentInfo)).exists

    run(main())


def test_a_read_that_waited_longer_than_its_token_was_good_for_gives_no_bytes(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with (
            client_and_clock(tmp_path) as (server, client, clock),
            connected(server.port) as reader,
        ):
            writing = token(clock, {A: UPDATE}, lifetime_s=900)
            await client.ask(CreateSegment(1, SEGMENT, 0, 0, writing), SegmentCreated)
            await client.ask(SetupAppend(2, WRITER, SEGMENT, writing), AppendSetup)
            reader.put(ReadSegment(SEGMENT, 0, 9, token(clock, {A: READ}), 3))
            while not server.context.counts.reads_waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            clock.now_ms += 600_000
            client.append(1, b"data")
            await client.acked(1)
            failed = await reader.take()
            assert isinstance(failed, AuthTokenCheckFailed)
            assert (failed.request_id, failed.code) == (3, TOKEN_EXPIRED)
            renewed = ReadSegment(SEGMENT, 0, 9, token(clock, {A: READ}), 4)
            assert (await reader.ask(renewed, SegmentRead)).data == b"data"

    run(main())


def test_reads_that_wait_keep_their_token_once(tmp_path: Path) -> None:
    """Each kept its own, of up to 64 KiB: 16,384 of one connection took 450 MB."""

    async def main() -> None:
        async with client_and_clock(tmp_path) as (server, client, clock):
            writing, reading = token(clock, {A: UPDATE}), token(clock, {A: READ})
            await client.ask(CreateSegment(1, SEGMENT, 0, 0, writing), SegmentCreated)
            client.put(*(ReadSegment(SEGMENT, 0, 9, reading, number) for number in range(50)))
            assert await kept_tokens(server, 50) == [reading]
        async with served(tmp_path / "open") as (store, server), connected(server.port) as client:
            await store.create_segment(SEGMENT)
            client.put(*(ReadSegment(SEGMENT, 0, 9, "x" * 9999, number) for number in range(50)))
            assert await kept_tokens(server, 50) == [""]

    run(main())


async def kept_tokens(server: WireServer, reads: int) -> list[str]:
    """Of the reads that wait, each object once."""
    await until(lambda: server.context.counts.reads_waiting == reads)
    (connection,) = server._connections
    commands = connection._requests.values()
    tokens = [command.token for command in commands if isinstance(command, ReadSegment)]
    return list({id(each): each for each in tokens}.values())


def test_a_merge_needs_its_sources_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_and_clock(tmp_path) as (_, client, clock):
            both = token(clock, {A: UPDATE, B: UPDATE})
            for name in (SEGMENT, OTHERS):
                await client.ask(CreateSegment(1, name, 0, 0, both), SegmentCreated)
            for resources in ({A: UPDATE}, {A: UPDATE, B: READ}, {B: UPDATE}):
                few = token(clock, resources)
                for request in (
                    MergeSegments(1, SEGMENT, OTHERS, few, ()),
                    MergeSegmentsBatch(1, SEGMENT, (OTHERS,), few),
                ):
                    await client.ask(request, AuthTokenCheckFailed)
            merged = await client.ask(MergeSegmentsBatch(1, SEGMENT, (), both), SegmentsBatchMerged)
            assert merged.merged == ()
            # A transaction is the stream's own.
            writing = token(clock, {A: UPDATE})
            mine = f"{SEGMENT}#transaction.{'0' * 32}"
            await client.ask(CreateSegment(1, mine, 0, 0, writing), SegmentCreated)
            await client.ask(MergeSegments(1, SEGMENT, mine, writing, ()), SegmentsMerged)

    run(main())


def test_transient_segments_need_the_permission_of_their_parent(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_and_clock(tmp_path) as (_, client, clock):
            request = CreateTransientSegment(1, WRITER, SEGMENT, token(clock, {A: READ}))
            await client.ask(request, AuthTokenCheckFailed)
            request = CreateTransientSegment(1, WRITER, SEGMENT, token(clock, {A: UPDATE}))
            made = await client.ask(request, SegmentCreated)
            setup = SetupAppend(1, WRITER, made.segment, token(clock, {A: UPDATE}))
            await client.ask(setup, AppendSetup)

    run(main())


def example(kind: Any, text: str) -> Command:
    """A command with this text in each field that has one."""
    values: dict[str, Any] = {
        name: text if annotation in {"str", str} else ()
        for name, annotation in kind.__annotations__.items()
    }
    command: Command = kind(**values | {"request_id": 4})
    return command


@pytest.mark.parametrize(
    "kind",
    [layout.kind for layout in REQUESTS.values() if layout.kind.__name__ not in FREE | APPENDS],
)
def test_every_request_is_checked(kind: Any) -> None:
    clock = SetClock()
    authorization = TokenAuthorization(KEY, clock)
    request = example(kind, "s/a/0")

    def code(resources: Mapping[str, Permission]) -> int | None:
        asked: Any = request
        reply = authorization.refusal(asked._replace(token=token(clock, resources)))
        assert reply is None or reply.request_id == 4
        return None if reply is None else reply.code

    assert code({}) == TOKEN_REFUSED
    assert code({"prn::*": UPDATE}) is None
    assert code({"prn::*": READ}) == (None if kind.__name__ in READS else TOKEN_REFUSED)


def test_a_connection_ends_when_the_token_of_a_writer_runs_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with client_and_clock(tmp_path) as (server, client, clock):
            writing = token(clock, {A: UPDATE})
            await client.ask(CreateSegment(1, SEGMENT, 0, 0, writing), SegmentCreated)
            async with connected(server.port) as reader:
                await client.ask(SetupAppend(1, WRITER, SEGMENT, writing), AppendSetup)
                short = token(clock, {A: UPDATE}, 1)
                clock.now_ms += 990
                await client.ask(SetupAppend(2, OTHER, SEGMENT, short), AppendSetup)
                clock.now_ms += 10
                assert await client.take() is None
                assert await reader.ask(KeepAlive(), KeepAlive) == KeepAlive()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "the token of a writer has expired" in caplog.text
    assert token(SetClock(), {A: UPDATE})[:30] not in caplog.text


def test_the_timer_is_that_of_the_last_set_ups() -> None:
    async def main() -> None:
        clock = LoopClock()
        loop = asyncio.get_running_loop()
        authorization = TokenAuthorization(KEY, clock)
        ended: list[float] = []
        begin = loop.time()
        tokens = WriterTokens(authorization, lambda _: ended.append(loop.time() - begin))

        def lasting(seconds: int | None) -> str:
            given = KEY.sign("u", {A: UPDATE}, clock.time_ms() // 1000, seconds)
            assert authorization.refusal(SetupAppend(1, WRITER, SEGMENT, given)) is None
            return given

        tokens.set_up(WRITER, lasting(100))
        tokens.set_up(OTHER, lasting(10))
        await asyncio.sleep(5)
        tokens.set_up(OTHER, lasting(300))
        await asyncio.sleep(60)
        assert ended == []
        tokens.set_up(WRITER, lasting(None))
        await asyncio.sleep(100)
        assert ended == []
        await asyncio.sleep(200)
        assert len(ended) == 1
        assert 300 <= ended[0] <= 306
        tokens.set_up(WRITER, lasting(10))
        tokens.close()
        await asyncio.sleep(100)
        assert len(ended) == 1

    run_virtual(main())
