"""Tables over the wire: the reply to each outcome, and that tables and streams are kept apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from segmentstore import SegmentStore
from segmentstore.tables.table_types import READ_BYTES_MAX
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    NO_VERSION,
    NOT_EXISTS,
    NOT_SET,
    CreateTableSegment,
    DeleteSegment,
    DeleteTableSegment,
    ErrorMessage,
    GetTableSegmentInfo,
    MergeSegments,
    NoSuchSegment,
    OperationUnsupported,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    Request,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    SetupAppend,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    TableSegmentNotEmpty,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)
from segmentstore.wire.system_attributes import CREATION_TIME
from tests.server.wire_client import WRITER, WireClient, client_of
from tests.store.harness import run

Body = Callable[[SegmentStore, WireClient], Awaitable[None]]


def on_a_table(tmp_path: Path, body: Body, key_length: int = 0) -> None:
    """Run a body on a store with a table `t`."""

    async def main() -> None:
        async with client_of(tmp_path, containers=1) as (store, client):
            request = CreateTableSegment(1, "t", "", key_length=key_length)
            assert await client.ask(request, SegmentCreated) == SegmentCreated(1, "t")
            await body(store, client)

    run(main())


async def put(client: WireClient, key: bytes, value: bytes, version: int = NO_VERSION) -> int:
    """Set one key; its new version."""
    request = UpdateTableEntries(2, "t", "", ((TableKey(key, version), value),))
    [new] = (await client.ask(request, TableEntriesUpdated)).versions
    return new


class TestHashTables:
    def test_values_come_back_with_their_versions(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            first, second = await put(client, b"a", b"1"), await put(client, b"b", b"")
            assert 0 <= first < second
            keys = tuple(TableKey(key, NO_VERSION) for key in (b"b", b"x", b"a"))
            reply = await client.ask(ReadTable(3, "t", "", keys), TableRead)
            assert reply == TableRead(
                3,
                "t",
                (
                    (TableKey(b"b", second), b""),
                    (TableKey(b"x", NOT_EXISTS), b""),
                    (TableKey(b"a", first), b"1"),
                ),
            )
            info = await client.ask(GetTableSegmentInfo(4, "t", ""), TableSegmentInfo)
            assert (info.entry_count, info.key_length) == (2, 0)

        on_a_table(tmp_path, body)

    def test_conditions_hold_for_the_whole_batch(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            version = await put(client, b"a", b"1", NOT_EXISTS)
            again = UpdateTableEntries(
                5,
                "t",
                "",
                (
                    (TableKey(b"new", NOT_EXISTS), b"n"),
                    (TableKey(b"a", NOT_EXISTS), b"2"),
                ),
            )
            refused = await client.ask(again, TableKeyBadVersion)
            assert refused == TableKeyBadVersion(5, "t")
            absent = UpdateTableEntries(6, "t", "", ((TableKey(b"new", 3), b"n"),))
            missing = await client.ask(absent, TableKeyDoesNotExist)
            assert missing == TableKeyDoesNotExist(6, "t")
            assert await put(client, b"a", b"2", version) > version

        on_a_table(tmp_path, body)

    def test_a_condition_on_the_length(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            await put(client, b"a", b"1")
            info = await client.ask(GetTableSegmentInfo(4, "t", ""), TableSegmentInfo)
            entry = (TableKey(b"b", NO_VERSION), b"2")
            wrong = UpdateTableEntries(5, "t", "", (entry,), info.length + 1)
            refused = await client.ask(wrong, SegmentIsTruncated)
            assert refused == SegmentIsTruncated(5, "t", info.length, "", info.length + 1)
            right = UpdateTableEntries(6, "t", "", (entry,), info.length)
            await client.ask(right, TableEntriesUpdated)

        on_a_table(tmp_path, body)

    def test_keys_are_removed(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            version = await put(client, b"a", b"1")
            wrong = RemoveTableKeys(5, "t", "", (TableKey(b"a", version + 1),))
            assert await client.ask(wrong, TableKeyBadVersion) == TableKeyBadVersion(5, "t")
            keys = (TableKey(b"a", version), TableKey(b"absent", NO_VERSION))
            done = await client.ask(RemoveTableKeys(6, "t", "", keys), TableKeysRemoved)
            assert done == TableKeysRemoved(6, "t")
            await client.ask(DeleteTableSegment(7, "t", True, ""), SegmentDeleted)

        on_a_table(tmp_path, body)

    def test_pages_go_on_until_one_is_empty(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            want = {f"key-{number}".encode(): str(number).encode() for number in range(7)}
            for key, value in want.items():
                await put(client, key, value)
            keys: list[bytes] = []
            token = b""
            while True:
                page = await client.ask(ReadTableKeys(3, "t", "", 3, token), TableKeysRead)
                if not page.keys:
                    break
                assert len(page.keys) <= 3
                keys += [key.key for key in page.keys]
                token = page.continuation
            assert sorted(keys) == sorted(want)
            entries: dict[bytes, bytes] = {}
            token = b""
            while True:
                read = await client.ask(ReadTableEntries(4, "t", "", 2, token), TableEntriesRead)
                if not read.entries:
                    break
                entries |= {key.key: value for key, value in read.entries}
                token = read.continuation
            assert entries == want

        on_a_table(tmp_path, body)

    def test_changes_from_a_position_on(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            await put(client, b"a", b"1")
            first = await client.ask(
                ReadTableEntriesDelta(3, "t", "", 0, 10), TableEntriesDeltaRead
            )
            assert [value for _, value in first.entries] == [b"1"]
            assert first.reached_end
            await put(client, b"b", b"2")
            later = await client.ask(
                ReadTableEntriesDelta(4, "t", "", first.last_position, 10), TableEntriesDeltaRead
            )
            assert [(key.key, value) for key, value in later.entries] == [(b"b", b"2")]
            beyond = ReadTableEntriesDelta(5, "t", "", later.last_position + 1, 10)
            assert (await client.ask(beyond, ErrorMessage)).code == ILLEGAL_ARGUMENT

        on_a_table(tmp_path, body)


class TestRoom:
    def test_changes_wait_for_room_in_the_queue_of_their_container(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with client_of(
                tmp_path, queue_bytes_max=4096, append_bytes_max=2048, containers=1
            ) as (_, client):
                await client.ask(CreateTableSegment(1, "t", ""), SegmentCreated)
                # Requests that wait until it is open may come behind later ones.
                await put(client, b"0", b"")
                for number in range(40):
                    entry = (TableKey(b"%d" % number, NO_VERSION), b"v" * 1500)
                    client.put(UpdateTableEntries(number, "t", "", (entry,)))
                for number in range(40):
                    key = TableKey(b"%d" % number, NO_VERSION)
                    client.put(RemoveTableKeys(number, "t", "", (key,)))
                replies = [await client.take() for _ in range(80)]
                assert {type(each) for each in replies} == {TableEntriesUpdated, TableKeysRemoved}
                info = await client.ask(GetTableSegmentInfo(4, "t", ""), TableSegmentInfo)
                assert info.entry_count == 0

        run(main())


class TestSizes:
    def test_the_largest_reply_fits_a_frame_and_a_larger_one_is_refused(
        self, tmp_path: Path
    ) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            value = b"v" * 4000
            await put(client, b"a", value)
            # A record has 7 bytes more than its key and value, and counts 24 more.
            fitting = READ_BYTES_MAX // (len(value) + 32)
            key = TableKey(b"a", NO_VERSION)
            reply = await client.ask(ReadTable(3, "t", "", (key,) * fitting), TableRead)
            assert [value for _, value in reply.entries] == [value] * fitting
            larger = ReadTable(4, "t", "", (key,) * (fitting + 1))
            refused = await client.ask(larger, ErrorMessage)
            assert (refused.request_id, refused.code) == (4, ILLEGAL_ARGUMENT)
            absent = tuple(TableKey(b"%08190d" % n, NO_VERSION) for n in range(2040))
            refused = await client.ask(ReadTable(5, "t", "", absent), ErrorMessage)
            assert (refused.request_id, refused.code) == (5, ILLEGAL_ARGUMENT)

        on_a_table(tmp_path, body)

    def test_the_longest_name_fits_beside_the_entries(self) -> None:
        key = TableKey(b"k", 1)
        one = len(encode(TableRead(1, "n" * 65535, ((key, b""),))))
        value = bytes(READ_BYTES_MAX - 25)
        assert len(encode(TableRead(1, "n" * 65535, ((key, value),)))) == one + len(value)


class TestFixedKeyTables:
    def test_ranges_in_order_of_bytes(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            for key in (b"cc", b"aa", b"bb", b"dd"):
                await put(client, key, key)
            request = ReadTableKeys(3, "t", "", 10, from_key=b"aa", to_key=b"cc")
            page = await client.ask(request, TableKeysRead)
            assert [key.key for key in page.keys] == [b"aa", b"bb", b"cc"]
            token = ReadTableKeys(4, "t", "", 10, b"token")
            assert (await client.ask(token, ErrorMessage)).code == ILLEGAL_ARGUMENT
            # It is quoted in part: a text of the protocol has 64 KiB.
            token = ReadTableKeys(5, "t", "", 10, b"token" * 20_000)
            assert (await client.ask(token, ErrorMessage)).code == ILLEGAL_ARGUMENT

        on_a_table(tmp_path, body, key_length=2)

    def test_a_key_of_another_length(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            request = UpdateTableEntries(5, "t", "", ((TableKey(b"abc", NO_VERSION), b""),))
            assert (await client.ask(request, ErrorMessage)).code == ILLEGAL_ARGUMENT

        on_a_table(tmp_path, body, key_length=2)

    def test_what_it_does_not_have(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            for request in (
                ReadTableEntriesDelta(5, "t", "", 0, 10),
                DeleteTableSegment(5, "t", True, ""),
            ):
                assert (await client.ask(request, OperationUnsupported)).request_id == 5

        on_a_table(tmp_path, body, key_length=2)


class TestTablesAsAWhole:
    def test_one_that_is_there(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            request = CreateTableSegment(5, "t", "")
            assert await client.ask(request, SegmentAlreadyExists) == SegmentAlreadyExists(5, "t")

        on_a_table(tmp_path, body)

    def test_one_with_keys_is_not_deleted_if_it_must_be_empty(self, tmp_path: Path) -> None:
        async def body(_: SegmentStore, client: WireClient) -> None:
            await put(client, b"a", b"1")
            request = DeleteTableSegment(5, "t", True, "")
            assert await client.ask(request, TableSegmentNotEmpty) == TableSegmentNotEmpty(5, "t")
            request = DeleteTableSegment(6, "t", False, "")
            assert await client.ask(request, SegmentDeleted) == SegmentDeleted(6, "t")
            missing = GetTableSegmentInfo(7, "t", "")
            assert await client.ask(missing, NoSuchSegment) == NoSuchSegment(7, "t")

        on_a_table(tmp_path, body)

    @pytest.mark.parametrize(
        "request_",
        [
            ReadSegment("t", 0, 10, "", 5),
            SetupAppend(5, WRITER, "t", ""),
            SealSegment(5, "t", ""),
            TruncateSegment(5, "t", 0, ""),
            DeleteSegment(5, "t", ""),
            MergeSegments(5, "t", "s", ""),
            MergeSegments(5, "s", "t", ""),
            UpdateSegmentAttribute(5, "t", bytes(16), 1, NOT_SET, ""),
        ],
        ids=lambda request: type(request).__name__,
    )
    def test_it_is_no_stream_segment(self, tmp_path: Path, request_: Request) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("s")
            reply = await client.ask(request_, ErrorMessage)
            assert (reply.request_id, reply.code) == (5, ILLEGAL_ARGUMENT)

        on_a_table(tmp_path, body)

    def test_a_stream_segment_is_no_table(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("s")
            reply = await client.ask(GetTableSegmentInfo(5, "s", ""), ErrorMessage)
            assert (reply.request_id, reply.code) == (5, ILLEGAL_ARGUMENT)

        on_a_table(tmp_path, body)

    def test_the_kind_of_a_segment_cannot_be_changed(self, tmp_path: Path) -> None:
        async def body(store: SegmentStore, client: WireClient) -> None:
            await store.create_segment("s")
            kind = CREATION_TIME.int | 9
            request = UpdateSegmentAttribute(5, "s", kind.to_bytes(16), 1, NOT_SET, "")
            assert (await client.ask(request, ErrorMessage)).code == ILLEGAL_ARGUMENT

        on_a_table(tmp_path, body)
