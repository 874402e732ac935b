"""Appends over the wire: acknowledged once durable, each event once, every refusal its reply."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.block_writer import BlockWriter
from segmentstore.server.server_context import WritersInFlight
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    NOT_SET,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    ErrorMessage,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    NoSuchSegment,
    SegmentAttributeUpdated,
    SegmentIsSealed,
    SetupAppend,
    UpdateSegmentAttribute,
)
from segmentstore.wire.system_attributes import EVENT_COUNT
from tests.server.wire_client import OTHER, WRITER, client_of, connected, served
from tests.store.harness import open_tiny, read_all, run, until


class TestSetUp:
    def test_a_new_writer_has_no_number(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                await client.create("s")
                assert await client.set_up("s") == NOT_SET

        run(main())

    def test_the_number_outlives_the_connection_and_the_store(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                await client.create("s")
                await client.set_up("s")
                client.append(5, b"five")
                await client.acked(5)
            async with client_of(tmp_path) as (_, client):
                assert await client.set_up("s") == 5

        run(main())

    def test_a_sealed_segment_has_the_number_too(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.append(3, b"abc")
                await client.acked(3)
                await store.seal("s")
                assert await client.set_up("s") == 3

        run(main())

    def test_of_a_missing_segment_is_refused(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                reply = await client.ask(SetupAppend(9, WRITER, "s", ""), NoSuchSegment)
                assert reply == NoSuchSegment(9, "s", "", -1)

        run(main())

    def test_waits_for_what_the_writer_has_on_its_way_elsewhere(self, tmp_path: Path) -> None:
        """Both requests are there before the store has done anything."""

        async def main() -> None:
            async with (
                served(tmp_path) as (store, server),
                connected(server.port) as old,
                connected(server.port) as new,
            ):
                await old.create("s")
                await old.set_up("s")
                for number in range(1, 60):
                    old.append(number, b"x" * 90)
                old.put(KeepAlive())
                while not isinstance(await old.take(), KeepAlive):
                    pass
                last = await new.set_up("s")
                info = await store.get_info("s")
                assert info.length == 90 * last
                new.append(60, b"y" * ((60 - last) * 90))
                reply = await new.take()
                # What came later by the old connection may have been first.
                assert isinstance(reply, DataAppended | InvalidEventNumber)

        run(main())

    def test_waits_for_all_of_them_in_whatever_order_they_settle(self) -> None:
        """A refused append settles before the one in front of it."""

        async def main() -> None:
            in_flight = WritersInFlight()
            in_flight.begun("s", WRITER)
            in_flight.begun("s", WRITER)
            in_flight.begun("s", OTHER)
            waiting = asyncio.ensure_future(in_flight.none("s", WRITER))
            in_flight.settled("s", WRITER)
            await asyncio.sleep(0)
            assert not waiting.done()
            in_flight.settled("s", WRITER)
            await waiting
            await in_flight.none("t", WRITER)

        run_virtual(main())

    def test_appends_that_come_before_its_answer_are_stored(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                client.put(SetupAppend(2, WRITER, "s", ""))
                client.append(1, b"one")
                client.append(2, b"two")
                assert isinstance(await client.take(), AppendSetup)
                await client.acked(2)
                assert await read_all(store, "s") == b"onetwo"

        run(main())

    def test_the_end_of_the_connection_drops_what_was_held_for_one(self, tmp_path: Path) -> None:
        """Begun later, it would make the next connection's number stale."""

        async def main() -> None:
            async with served(tmp_path) as (store, server), connected(server.port) as new:
                await new.create("s")
                server.context.in_flight.begun("s", WRITER)
                async with connected(server.port) as dead:
                    dead.put(SetupAppend(2, WRITER, "s", ""))
                    dead.append(1, b"dead")
                    dead.put(KeepAlive())
                    assert isinstance(await dead.take(), KeepAlive)
                await until(lambda: server.statistics()["connections"] == 1)
                assert server.statistics()["outstanding_bytes"] == 0
                server.context.in_flight.settled("s", WRITER)
                assert await new.set_up("s") == NOT_SET
                new.append(1, b"new")
                await new.acked(1)
                assert await read_all(store, "s") == b"new"

        run(main())

    def test_waits_for_what_another_one_held(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its appends begin while the number of the second is on its way from the store."""
        read = BlockWriter.last_number
        begun = asyncio.Event()
        turns: list[None] = []

        async def delayed(writer: BlockWriter) -> int:
            is_first = not turns
            turns.append(None)
            number = await read(writer)
            if is_first:
                await begun.wait()
            return number

        monkeypatch.setattr(BlockWriter, "last_number", delayed)

        async def main() -> None:
            async with (
                served(tmp_path) as (store, server),
                connected(server.port) as old,
                connected(server.port) as new,
            ):
                await store.create_segment("s")
                new.put(SetupAppend(3, WRITER, "s", ""), KeepAlive())
                assert isinstance(await new.take(), KeepAlive)
                old.put(SetupAppend(2, WRITER, "s", ""))
                old.append(6, b"six")
                assert await old.take() == AppendSetup(2, "s", WRITER, NOT_SET)
                await old.acked(6)
                begun.set()
                assert await new.take() == AppendSetup(3, "s", WRITER, 6)

        run(main())

    def test_may_be_sent_right_behind_the_hello(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await store.create_segment("s")
                async with connected(server.port, hello=False) as client:
                    client.put(Hello(16, 5), SetupAppend(2, WRITER, "s", ""))
                    assert isinstance(await client.take(), Hello)
                    assert isinstance(await client.take(), AppendSetup)

        run(main())


class TestAppends:
    def test_bytes_are_stored_in_order_and_acknowledged(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                for number in range(1, 101):
                    client.append(number, b"%03d" % number)
                acked, previous = 0, NOT_SET
                while acked < 100:
                    reply = await client.take()
                    assert isinstance(reply, DataAppended)
                    assert reply.previous_event_number == previous
                    assert reply.length == 3 * reply.event_number
                    acked = previous = reply.event_number
                assert await read_all(store, "s") == b"".join(b"%03d" % n for n in range(1, 101))

        run(main())

    def test_a_block_and_its_end_are_one_append(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.put(AppendBlock(WRITER, b"abcdef"), AppendBlockEnd(WRITER, 6, b"", 2, 2, 2))
                assert await client.acked(2) == DataAppended(WRITER, 2, NOT_SET, 2, 6)
                assert await read_all(store, "s") == b"abcdef"

        run(main())

    def test_events_are_counted_with_the_append(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.append(3, b"abc", events=3)
                client.append(5, b"de", events=2)
                await client.acked(5)
                found = await store.get_attributes("s")
                assert found[EVENT_COUNT] == 5
                assert found[uuid.UUID(bytes=WRITER)] == 5

        run(main())

    def test_blocks_cut_anew_for_a_resend_are_not_stored_twice(self, tmp_path: Path) -> None:
        """Two connections of one writer: the set-up of the second is overtaken by the first."""

        async def main() -> None:
            async with (
                served(tmp_path) as (store, server),
                connected(server.port) as old,
                connected(server.port) as new,
            ):
                await old.create("s")
                await old.set_up("s")
                assert await new.set_up("s") == NOT_SET
                old.append(2, b"12", events=2)
                await old.acked(2)
                new.append(5, b"12345", events=5)
                assert await new.take() == InvalidEventNumber(WRITER, 2, "", 5)
                assert await new.take() is None, "the connection ends"
                assert await read_all(store, "s") == b"12"
            async with client_of(tmp_path) as (store, client):
                assert await client.set_up("s") == 2
                client.append(5, b"345", events=3)
                await client.acked(5)
                assert await read_all(store, "s") == b"12345"

        run(main())

    def test_writers_of_one_connection_are_apart(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.create("t")
                await client.set_up("s", WRITER, 7)
                await client.set_up("t", OTHER, 8)
                client.append(1, b"s", WRITER, rid=7)
                client.append(1, b"t", OTHER, rid=8)
                replies = {await client.take(), await client.take()}
                assert replies == {
                    DataAppended(WRITER, 1, NOT_SET, 7, 1),
                    DataAppended(OTHER, 1, NOT_SET, 8, 1),
                }
                assert (await read_all(store, "s"), await read_all(store, "t")) == (b"s", b"t")

        run(main())

    def test_a_repeated_append_is_acknowledged_and_not_stored(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.append(1, b"a")
                await client.acked(1)
                client.append(1, b"a")
                assert (await client.acked(1)).previous_event_number == 0
                assert await read_all(store, "s") == b"a"

        run(main())

    def test_what_was_acknowledged_survives_the_process(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                await client.create("s")
                await client.set_up("s")
                client.append(1, b"durable")
                await client.acked(1)
            async with open_tiny(tmp_path / "s") as store:
                assert await read_all(store, "s") == b"durable"

        run(main())


class TestConditions:
    @pytest.mark.parametrize("kind", [ConditionalAppend, ConditionalBlockEnd])
    def test_at_the_expected_offset_it_is_stored(
        self, tmp_path: Path, kind: type[ConditionalAppend | ConditionalBlockEnd]
    ) -> None:
        async def main() -> None:
            data = b"\0\0\0\0\0\0\0\3abc"
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.put(kind(WRITER, 1, 0, data, 2))
                assert await client.acked(1) == DataAppended(WRITER, 1, NOT_SET, 2, len(data))
                assert await read_all(store, "s") == data

        run(main())

    def test_at_another_the_connection_stays_and_the_number_is_free(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.put(ConditionalBlockEnd(WRITER, 1, 4, b"abc", 2))
                assert await client.take() == ConditionalCheckFailed(WRITER, 1, 2)
                client.put(ConditionalBlockEnd(WRITER, 1, 0, b"abc", 2))
                await client.acked(1)
                assert await read_all(store, "s") == b"abc"

        run(main())

    def test_each_has_the_request_id_of_its_own(self, tmp_path: Path) -> None:
        """Java's revisioned streams wait for the reply to each by its id."""

        async def main() -> None:
            async with client_of(tmp_path) as (_, client):
                await client.create("s")
                await client.set_up("s", request_id=2)
                client.put(
                    ConditionalAppend(WRITER, 1, 0, b"\0\0\0\0\0\0\0\1a", 31),
                    ConditionalAppend(WRITER, 2, 9, b"\0\0\0\0\0\0\0\1b", 32),
                    ConditionalAppend(WRITER, 3, 9, b"\0\0\0\0\0\0\0\1c", 33),
                )
                assert await client.take() == DataAppended(WRITER, 1, NOT_SET, 31, 9)
                assert await client.take() == DataAppended(WRITER, 2, 1, 32, 18)
                assert await client.take() == ConditionalCheckFailed(WRITER, 3, 33)

        run(main())


class TestRefusals:
    def test_a_seal_is_reported_behind_the_acknowledgements(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.append(1, b"a")
                await client.acked(1)
                await store.seal("s")
                client.append(2, b"b")
                client.append(3, b"c")
                assert await client.take() == SegmentIsSealed(2, "s", "", 2)
                # Nothing of it is stored, and the connection is there for others.
                await client.create("t")
                assert await read_all(store, "s") == b"a"

        run(main())

    def test_one_that_is_too_large_is_said_to_be_and_the_connection_stays(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                client.append(1, bytes(5000))
                reply = await client.take()
                assert isinstance(reply, ErrorMessage)
                assert (reply.request_id, reply.code) == (2, ILLEGAL_ARGUMENT)
                await client.set_up("s")
                client.append(1, b"small")
                await client.acked(1)
                assert await read_all(store, "s") == b"small"

        run(main())

    def test_a_segment_with_too_many_writers(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path, attributes_per_segment_max=2) as (store, client):
                await store.create_segment("s")
                await client.set_up("s")
                client.append(1, b"a")
                await client.acked(1)
                await client.set_up("s", OTHER)
                client.append(1, b"b", OTHER)
                assert isinstance(await client.take(), ErrorMessage)
                assert await read_all(store, "s") == b"a"

        run(main())

    def test_a_deleted_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(tmp_path) as (store, client):
                await client.create("s")
                await client.set_up("s")
                await store.delete("s")
                client.append(1, b"a")
                assert await client.take() == NoSuchSegment(2, "s", "", -1)

        run(main())

    @pytest.mark.parametrize(
        "frames",
        [
            pytest.param((AppendBlockEnd(OTHER, 0, b"x", 1, 1, 2),), id="no set-up"),
            pytest.param(
                (
                    AppendBlockEnd(WRITER, 0, b"x", 1, 5, 2),
                    AppendBlockEnd(WRITER, 0, b"x", 1, 4, 2),
                ),
                id="numbers go down",
            ),
            pytest.param((AppendBlockEnd(WRITER, 0, b"x", 0, 1, 2),), id="no events"),
            pytest.param(
                (AppendBlock(WRITER, b"x"), AppendBlock(WRITER, b"x")), id="a block without its end"
            ),
        ],
    )
    def test_a_broken_append_ends_the_connection(
        self, tmp_path: Path, frames: tuple[AppendBlock | AppendBlockEnd, ...]
    ) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server):
                async with connected(server.port) as client:
                    await client.create("s")
                    await client.set_up("s")
                    client.put(*frames)
                    while (reply := await client.take()) is not None:
                        assert isinstance(reply, DataAppended)
                async with connected(server.port) as client:
                    await client.set_up("s", OTHER)

        run(main())


@pytest.mark.parametrize("is_held", [False, True], ids=["set up", "in its set-up"])
def test_a_count_of_events_without_room_is_an_answer(tmp_path: Path, *, is_held: bool) -> None:
    """The connection was closed without one: a client sent the append again, for ever."""

    async def main() -> None:
        async with client_of(tmp_path) as (store, client):
            await client.create("s")
            full = UpdateSegmentAttribute(7, "s", EVENT_COUNT.bytes, 2**63 - 2, NOT_SET, "")
            assert (await client.ask(full, SegmentAttributeUpdated)).success
            if is_held:
                client.put(SetupAppend(2, WRITER, "s", ""))
            else:
                await client.set_up("s")
            client.append(1, b"first")
            client.append(3, b"second", events=2)
            replies = [await client.take() for _ in range(3 if is_held else 2)]
            refused = replies[-1]
            assert isinstance(replies[-2], DataAppended)
            assert isinstance(refused, ErrorMessage), refused
            assert refused.code == ILLEGAL_ARGUMENT
            assert "its count of events" in refused.message
            assert await read_all(store, "s") == b"first"
            # Of the connection other segments are written on.
            await client.create("t")

    run(main())
