"""Requests about whole segments: the reply to each outcome."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentNotFoundError, SegmentStore
from segmentstore.server.transient_segments import delete_left_over
from segmentstore.tables.table_types import SEGMENT_TYPE
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    NOT_SET,
    Command,
    ConditionalAttributeUpdate,
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    ErrorMessage,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    KeepAlive,
    LocateOffset,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    OperationUnsupported,
    ReadSegment,
    Request,
    SealSegment,
    SegmentAlreadyExists,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentPolicyUpdated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
    WrongHost,
)
from segmentstore.wire.system_attributes import (
    EVENT_COUNT,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
)
from tests.server.wire_client import WRITER, WireClient, client_of, connected, served
from tests.store.harness import read_all, run
from tier2.spark.sink.epoch_commit import WriteIdentity, staging_name

Body = Callable[[SegmentStore, WireClient], Awaitable[None]]
ATTRIBUTE = bytes(15) + b"\1"


def on_a_store(tmp_path: Path, body: Body, **options: Any) -> None:
    """Run a body on a store with a segment `s` of ten bytes."""

    async def main() -> None:
        async with client_of(tmp_path, **options) as (store, client):
            await store.create_segment("s")
            await store.append("s", b"0123456789")
            await body(store, client)

    run(main())


MISSING: list[tuple[Request, Command]] = [
    (SealSegment(7, "x", ""), NoSuchSegment(7, "x")),
    (DeleteSegment(7, "x", ""), NoSuchSegment(7, "x")),
    (TruncateSegment(7, "x", 3, ""), NoSuchSegment(7, "x", "", 3)),
    (GetStreamSegmentInfo(7, "x", ""), NoSuchSegment(7, "x")),
    (GetSegmentAttribute(7, "x", ATTRIBUTE, ""), NoSuchSegment(7, "x")),
    (UpdateSegmentAttribute(7, "x", ATTRIBUTE, 1, NOT_SET, ""), NoSuchSegment(7, "x")),
    (UpdateSegmentPolicy(7, "x", 1, 1, ""), NoSuchSegment(7, "x")),
    (MergeSegments(7, "x", "s", "", ()), NoSuchSegment(7, "x")),
    (MergeSegments(7, "s", "x", "", ()), NoSuchSegment(7, "x")),
    (MergeSegmentsBatch(7, "x", ("s",), ""), NoSuchSegment(7, "x")),
]


@pytest.mark.parametrize(
    ("request_", "reply"), MISSING, ids=[type(request).__name__ for request, _ in MISSING]
)
def test_of_a_missing_segment(tmp_path: Path, request_: Request, reply: Command) -> None:
    async def body(_: SegmentStore, client: WireClient) -> None:
        client.put(request_)
        assert await client.take() == reply

    on_a_store(tmp_path, body, containers=1)


class TestCreation:
    def test_the_policy_becomes_attributes(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            reply = await client.ask(CreateSegment(7, "t", 20, 2, "", -5), SegmentCreated)
            assert reply == SegmentCreated(7, "t")
            found = await store.get_attributes("t")
            assert (found[SCALE_POLICY_TYPE], found[SCALE_POLICY_RATE]) == (2, 20)
            assert found[ROLLOVER_SIZE] == 0
            updated = await client.ask(UpdateSegmentPolicy(8, "t", 30, 1, ""), SegmentPolicyUpdated)
            assert updated == SegmentPolicyUpdated(8, "t")
            found = await store.get_attributes("t")
            assert (found[SCALE_POLICY_TYPE], found[SCALE_POLICY_RATE]) == (1, 30)

        on_a_store(tmp_path, body)

    def test_of_one_that_is_there(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            reply = await client.ask(CreateSegment(7, "s", 0, 0, ""), SegmentAlreadyExists)
            assert reply == SegmentAlreadyExists(7, "s")

        on_a_store(tmp_path, body)

    def test_an_illegal_name_leaves_the_connection_usable(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            reply = await client.ask(CreateSegment(7, "", 0, 0, ""), ErrorMessage)
            assert reply.code == ILLEGAL_ARGUMENT
            await client.create("t")

        on_a_store(tmp_path, body)


class TestSealing:
    def test_once(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            assert await client.ask(SealSegment(7, "s", ""), SegmentSealed) == SegmentSealed(7, "s")
            again = await client.ask(SealSegment(8, "s", ""), SegmentIsSealed)
            assert again == SegmentIsSealed(8, "s")
            info = await client.ask(GetStreamSegmentInfo(9, "s", ""), StreamSegmentInfo)
            assert (info.exists, info.sealed, info.deleted) == (True, True, False)
            assert (info.length, info.start_offset) == (10, 0)
            for late in (
                UpdateSegmentAttribute(7, "s", ATTRIBUTE, 1, NOT_SET, ""),
                UpdateSegmentPolicy(7, "s", 1, 1, ""),
            ):
                assert await client.ask(late, SegmentIsSealed) == SegmentIsSealed(7, "s")

        on_a_store(tmp_path, body)


class TestTruncation:
    def test_within_the_segment(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            reply = await client.ask(TruncateSegment(7, "s", 4, ""), SegmentTruncated)
            assert reply == SegmentTruncated(7, "s")
            info = await client.ask(GetStreamSegmentInfo(9, "s", ""), StreamSegmentInfo)
            assert info.start_offset == 4
            for offset in (3, 11, -1):
                refused = await client.ask(TruncateSegment(8, "s", offset, ""), SegmentIsTruncated)
                assert refused == SegmentIsTruncated(8, "s", 4, "", offset)

        on_a_store(tmp_path, body)


class TestAttributes:
    def test_unset_set_and_unset_again(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            async def value() -> int:
                request = GetSegmentAttribute(7, "s", ATTRIBUTE, "")
                return (await client.ask(request, SegmentAttribute)).value

            async def update(new: int, expected: int) -> bool:
                request = UpdateSegmentAttribute(7, "s", ATTRIBUTE, new, expected, "")
                return (await client.ask(request, SegmentAttributeUpdated)).success

            assert await value() == NOT_SET
            assert not await update(5, 4)
            assert await update(5, NOT_SET)
            assert await value() == 5
            assert not await update(6, NOT_SET)
            assert await update(NOT_SET, 5)
            assert await value() == NOT_SET
            assert await update(7, NOT_SET)

        on_a_store(tmp_path, body)


class TestMerging:
    def test_the_source_ends_up_in_the_target(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("t")
            await store.append("t", b"abc")
            reply = await client.ask(MergeSegments(7, "s", "t", ""), SegmentsMerged)
            assert reply == SegmentsMerged(7, "s", "t", 13)
            assert await read_all(store, "s") == b"0123456789abc"
            with pytest.raises(SegmentNotFoundError):
                await store.get_info("t")

        on_a_store(tmp_path, body, containers=1)

    def test_its_condition_makes_a_repetition_safe(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("t")
            await store.append("t", b"abc")
            update = ConditionalAttributeUpdate(ATTRIBUTE, 4, 9, NOT_SET)
            request = MergeSegments(7, "s", "t", "", (update,))
            merged = SegmentsMerged(7, "s", "t", 13)
            assert await client.ask(request, SegmentsMerged) == merged
            assert await client.ask(request, SegmentsMerged) == merged
            await store.create_segment("t")
            refused = await client.ask(request, SegmentAttributeUpdated)
            assert refused == SegmentAttributeUpdated(7, success=False)

        on_a_store(tmp_path, body, containers=1)

    def test_an_unknown_kind_of_update_is_an_illegal_argument(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("t")
            update = ConditionalAttributeUpdate(ATTRIBUTE, 9, 9, NOT_SET)
            reply = await client.ask(MergeSegments(7, "s", "t", "", (update,)), ErrorMessage)
            assert reply.code == ILLEGAL_ARGUMENT

        on_a_store(tmp_path, body, containers=1)

    def test_a_batch_in_order_may_be_repeated(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            for name in ("b", "a"):
                await store.create_segment(name)
                await store.append(name, name.encode() * 3)
            request = MergeSegmentsBatch(7, "s", ("b", "a"), "")
            reply = await client.ask(request, SegmentsBatchMerged)
            merged = (MergedSource("b", 13), MergedSource("a", 16))
            assert reply == SegmentsBatchMerged(7, "s", merged)
            assert await read_all(store, "s") == b"0123456789bbbaaa"
            again = await client.ask(request, SegmentsBatchMerged)
            assert [each.length for each in again.merged] == [16, 16]

        on_a_store(tmp_path, body, containers=1)


class TestDeletion:
    def test_the_segment_is_deleted(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            reply = await client.ask(DeleteSegment(7, "s", ""), SegmentDeleted)
            assert reply == SegmentDeleted(7, "s")
            with pytest.raises(SegmentNotFoundError):
                await store.get_info("s")

        on_a_store(tmp_path, body)


class TestTransientSegments:
    def test_they_go_with_their_connection(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server):
                async with connected(server.port) as client:
                    request = CreateTransientSegment(7, WRITER, "a/b/0.#epoch.0", "")
                    name = (await client.ask(request, SegmentCreated)).segment
                    assert name.startswith(f"a/b/0.#epoch.0#transient.{WRITER.hex()}.")
                    await store.append(name, b"part")
                await server.close()
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(name)

        run(main())

    def test_they_go_with_the_server_if_the_client_reads_no_replies(self, tmp_path: Path) -> None:
        """Its connection is aborted, and its end comes behind that."""

        async def main() -> None:
            async with (
                served(tmp_path, tail_bytes_max=1 << 20, append_bytes_max=1 << 16) as (
                    store,
                    server,
                ),
                connected(server.port) as client,
            ):
                request = CreateTransientSegment(7, WRITER, "a/b/0.#epoch.0", "")
                name = (await client.ask(request, SegmentCreated)).segment
                await store.append(name, bytes(1 << 16))
                client.put(*(ReadSegment(name, 0, 1 << 16, "", number) for number in range(400)))
                assert isinstance(await client.take(), SegmentRead)
                await server.close()
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(name)

        run(main())

    @pytest.mark.parametrize("parent", ["x" * 60_000, "a\0b"], ids=["long", "control"])
    def test_nothing_is_left_of_a_refused_one(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, parent: str
    ) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server), connected(server.port) as client:
                request = CreateTransientSegment(7, WRITER, parent, "")
                assert (await client.ask(request, ErrorMessage)).code == ILLEGAL_ARGUMENT
                assert server.context.transients == set()

        run(main())
        assert caplog.text == ""

    def test_those_of_a_crash_are_deleted_at_the_start(self, tmp_path: Path) -> None:
        name = "a/b/0.#epoch.0#transient." + "0" * 32 + "." + "1" * 32

        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await server.close()
                await store.create_segment(name)
            async with served(tmp_path) as (store, server):
                await server.context.finish()
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(name)

        run(main())

    def test_a_stop_waits_for_no_pass_over_the_names(self, tmp_path: Path) -> None:
        name = "a/b/0.#epoch.0#transient." + "0" * 32 + "." + "1" * 32

        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await server.context.finish()
                await store.create_segment(name)
                server.clean_up(store._containers[0])
                await server.close()
                assert (await store.get_info(name)).length == 0

        run(main())

    def test_what_tasks_of_spark_have_staged_is_not_of_a_crash(self, tmp_path: Path) -> None:
        """Without it a batch would be taken for committed, and its rows would be lost."""
        identity = WriteIdentity(uuid.UUID(int=7), 3, lasting=False)
        name = staging_name("a/b", identity, uuid.UUID(int=9))

        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await store.create_segment(name)
                assert not await delete_left_over(server.context, store._containers[0], bool)
                assert (await store.get_info(name)).length == 0

        run(main())

    def test_one_whose_connection_is_open_is_not_of_a_crash(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server), connected(server.port) as client:
                request = CreateTransientSegment(7, WRITER, "s", "")
                name = (await client.ask(request, SegmentCreated)).segment
                assert not await delete_left_over(server.context, store._containers[0], bool)
                assert (await store.get_info(name)).length == 0

        run(main())

    def test_a_merged_one_is_left_alone(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (store, server):
                await store.create_segment("s")
                async with connected(server.port) as client:
                    request = CreateTransientSegment(7, WRITER, "s", "")
                    name = (await client.ask(request, SegmentCreated)).segment
                    await store.append(name, b"large event")
                    await client.ask(MergeSegments(8, "s", name, ""), SegmentsMerged)
                await server.close()
                assert await read_all(store, "s") == b"large event"

        run(main())


def test_what_is_not_served_is_said_and_the_connection_stays(tmp_path: Path) -> None:
    async def body(_: SegmentStore, client: WireClient) -> None:
        reply = await client.ask(LocateOffset(7, "s", 1, ""), OperationUnsupported)
        assert reply == OperationUnsupported(7, "LocateOffset")
        assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()

    on_a_store(tmp_path, body)


def test_a_container_that_is_not_served_here_is_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, containers=2):
            pass
        async with served(tmp_path, serve="0") as (_, server), connected(server.port) as client:
            replies = []
            for number in range(20):
                client.put(CreateSegment(7, f"segment-{number}", 0, 0, ""))
                replies.append(await client.take())
            elsewhere = [reply for reply in replies if isinstance(reply, WrongHost)]
            created = [reply for reply in replies if isinstance(reply, SegmentCreated)]
            assert len(elsewhere) + len(created) == 20
            assert elsewhere
            assert created

    run(main())


def test_an_attribute_is_the_one_that_the_engine_has(tmp_path: Path) -> None:
    async def body(store: SegmentStore, client: WireClient) -> None:
        request = UpdateSegmentAttribute(7, "s", ATTRIBUTE, 5, NOT_SET, "")
        await client.ask(request, SegmentAttributeUpdated)
        assert await store.get_attributes("s") == {uuid.UUID(bytes=ATTRIBUTE): 5}

    on_a_store(tmp_path, body)


def test_no_request_makes_a_stream_a_table(tmp_path: Path) -> None:
    mark = SEGMENT_TYPE.bytes

    async def body(store: SegmentStore, client: WireClient) -> None:
        await client.create("t")
        requests: list[Request] = [
            UpdateSegmentAttribute(7, "s", mark, 1, NOT_SET, ""),
            MergeSegments(7, "s", "t", "", (ConditionalAttributeUpdate(mark, 1, 1, 0),)),
            SetupAppend(7, mark, "s", ""),
            SetupAppend(7, EVENT_COUNT.bytes, "s", ""),
        ]
        for request in requests:
            reply = await client.ask(request, ErrorMessage)
            assert reply.code == ILLEGAL_ARGUMENT
        assert await store.get_attributes("s", [SEGMENT_TYPE]) == {}

    on_a_store(tmp_path, body)


def test_clients_of_a_container_that_is_stopped_are_sent_elsewhere_until_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, server), connected(server.port) as client:
            await client.create("s")
            await client.set_up("s")
            client.append(1, b"one")
            await client.acked(1)
            await store.stop_container(0)
            # A session that is open, and a new one; the connection stays.
            client.append(2, b"two")
            assert isinstance(await client.take(), WrongHost)
            await client.ask(SetupAppend(9, WRITER, "s", ""), WrongHost)
            await store.start_container(0)
            assert await client.set_up("s") == 1
            client.append(2, b"two")
            await client.acked(2)
            assert await read_all(store, "s") == b"onetwo"

    run(main())
