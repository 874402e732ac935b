"""What each call on a table gives, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest

from segmentstore import (
    AppendTooLargeError,
    AttributeUpdate,
    BadOffsetError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    UpdateType,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.service import SegmentStore
from segmentstore.tables import table_arguments, table_reads
from segmentstore.tables.errors import (
    BadKeyVersionError,
    KeyNotFoundError,
    NotATableError,
    TableNotEmptyError,
    UnsupportedTableOperationError,
    WrongKeyLengthError,
)
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.table_records import put_length
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import (
    KEY_LENGTH,
    NO_VERSION,
    NOT_EXISTS,
    SEGMENT_TYPE,
    TABLE_ATTRIBUTES,
    TableEntry,
    TableInfo,
    VersionedKey,
    is_table,
    key_length_of,
)
from tests.store.harness import attribute
from tests.tables.harness import ON_DISK, TINY_LIMITS, tiny_writes, with_tables

BOTH = pytest.mark.parametrize("limits", [TINY_LIMITS, ON_DISK], ids=["memory", "disk"])
NEVER_COMPACTED = TableLimits(dead_bytes_min=1 << 30)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_writes(monkeypatch)


def puts(*entries: tuple[bytes, bytes]) -> list[tuple[bytes, int, bytes]]:
    return [(key, NO_VERSION, value) for key, value in entries]


async def refused(error: type[SegmentStoreError], call: Awaitable[object]) -> SegmentStoreError:
    with pytest.raises(error) as caught:
        await call
    return caught.value


# --- tables ---------------------------------------------------------------------------------------


def test_a_table_is_a_segment_with_two_attributes() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        own = AttributeUpdate(attribute(5), UpdateType.REPLACE, 50)
        await tables.create("hash", attributes=[own])
        await tables.create("fixed", 16)
        await store.create_segment("stream")
        hashed = await store.get_attributes("hash")
        assert hashed == {attribute(5): 50, SEGMENT_TYPE: 1}
        fixed = await store.get_attributes("fixed", TABLE_ATTRIBUTES)
        assert fixed == {SEGMENT_TYPE: 1, KEY_LENGTH: 16}
        assert (is_table(hashed), key_length_of(hashed)) == (True, 0)
        assert (is_table(fixed), key_length_of(fixed)) == (True, 16)
        assert not is_table(await store.get_attributes("stream"))
        assert SEGMENT_TYPE.bytes.hex() == "80" + "00" * 14 + "09"
        assert KEY_LENGTH.bytes.hex() == "80" + "00" * 14 + "0c"

    with_tables(work)


def test_a_table_cannot_be_created_twice_or_wrongly() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await refused(SegmentExistsError, tables.create("t"))
        await refused(InvalidNameError, tables.create(""))
        for key_length in (-1, 257, True, "4"):
            wrong = cast("int", key_length)
            await refused(InvalidArgumentError, tables.create("u", wrong))
        mark = AttributeUpdate(SEGMENT_TYPE, UpdateType.REPLACE, 0)
        await refused(InvalidArgumentError, tables.create("u", attributes=[mark]))
        await refused(SegmentNotFoundError, store.get_info("u"))

    with_tables(work)


Call = Callable[[TableService, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "delete": lambda tables, name: tables.delete(name),
    "info": lambda tables, name: tables.info(name),
    "update": lambda tables, name: tables.update(name, puts((b"k", b"v"))),
    "update nothing": lambda tables, name: tables.update(name, []),
    "remove": lambda tables, name: tables.remove(name, [(b"k", NO_VERSION)]),
    "get": lambda tables, name: tables.get(name, [b"k"]),
    "keys": lambda tables, name: tables.keys(name, 1),
    "entries": lambda tables, name: tables.entries(name, 1),
    "delta": lambda tables, name: tables.delta(name, 0, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_needs_a_table(call: Call) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await store.create_segment("stream")
        await store.append("stream", b"not a record")
        await refused(NotATableError, call(tables, "stream"))
        await refused(SegmentNotFoundError, call(tables, "missing"))
        await tables.create("t")
        await tables.info("t")
        await tables.delete("t")
        await refused(SegmentNotFoundError, call(tables, "t"))

    with_tables(work)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_table_that_was_deleted_behind_its_back_is_another_one(call: Call) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts((b"k", b"old")))
        await store.delete("t")
        if call is not CALLS["update"]:
            await refused(SegmentNotFoundError, call(tables, "t"))
        await tables.create("t", 1)
        assert await tables.info("t") == TableInfo(
            name="t", start_offset=0, length=0, entry_count=0, key_length=1
        )

    with_tables(work)


@BOTH
def test_deletion_of_a_table_that_must_be_empty(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts(*((b"%d" % number, b"") for number in range(9))))
        error = await refused(TableNotEmptyError, tables.delete("t", must_be_empty=True))
        assert cast("TableNotEmptyError", error).entry_count == 9
        # What is in flight counts.
        removal = tables.remove("t", [(b"%d" % number, NO_VERSION) for number in range(9)])
        removing = asyncio.ensure_future(removal)
        await asyncio.sleep(0)
        await tables.delete("t", must_be_empty=True)
        await removing
        await refused(SegmentNotFoundError, tables.info("t"))
        await tables.create("fixed", 4)
        await refused(UnsupportedTableOperationError, tables.delete("fixed", must_be_empty=True))
        await tables.delete("fixed")

    with_tables(work, limits)


def test_an_update_that_meets_a_deletion_finds_no_table_or_comes_before_it() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        calls = [tables.update("t", puts((b"a", b""))), tables.delete("t")]
        calls += [tables.update("t", puts((b"b", b"")))]
        before, deleted, behind = await asyncio.gather(*calls, return_exceptions=True)
        assert before == [0]
        assert deleted is None
        assert isinstance(behind, SegmentNotFoundError)

    with_tables(work)


# --- changes --------------------------------------------------------------------------------------


@BOTH
def test_versions_are_offsets_in_the_order_of_the_call(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        first, second = await tables.update("t", puts((b"a", b"one"), (b"b", b"two")))
        assert (first, second) == (0, put_length(b"a", b"one"))
        assert await tables.get("t", [b"b", b"x", b"a", b"b"]) == [
            TableEntry(b"b", second, b"two"),
            None,
            TableEntry(b"a", first, b"one"),
            TableEntry(b"b", second, b"two"),
        ]
        (third,) = await tables.update("t", [(b"a", first, b"")])
        assert await tables.get("t", [b"a"]) == [TableEntry(b"a", third, b"")]
        assert (await tables.info("t")).entry_count == 2
        assert await tables.update("t", []) == []
        assert await tables.get("t", []) == []

    with_tables(work, limits)


@BOTH
def test_a_batch_is_done_whole_or_not_at_all(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts(*((b"%d" % number, b"") for number in range(6))))
        (version,) = await tables.update("t", puts((b"a", b"one")))
        length = (await tables.info("t")).length
        new = (b"new", NO_VERSION, b"")
        update, remove = tables.update, tables.remove
        wrong = await refused(BadKeyVersionError, update("t", [new, (b"a", NOT_EXISTS, b"")]))
        assert isinstance(wrong, BadKeyVersionError)
        assert (wrong.key, wrong.expected, wrong.actual) == (b"a", NOT_EXISTS, version)
        await refused(BadKeyVersionError, update("t", [new, (b"a", version + 1, b"")]))
        absent = await refused(KeyNotFoundError, update("t", [(b"x", version, b""), new]))
        assert isinstance(absent, KeyNotFoundError)
        assert (absent.key, absent.expected) == (b"x", version)
        await refused(BadKeyVersionError, remove("t", [(b"0", NO_VERSION), (b"a", NOT_EXISTS)]))
        await refused(BadKeyVersionError, remove("t", [(b"0", NO_VERSION), (b"a", version + 1)]))
        await refused(KeyNotFoundError, remove("t", [(b"0", NO_VERSION), (b"x", version)]))
        info = await tables.info("t")
        assert (info.entry_count, info.length) == (7, length)
        await remove("t", [(b"x", NO_VERSION), (b"y", NOT_EXISTS)])
        assert (await tables.info("t")).length == length, "what is absent needs no record"
        await remove("t", [(b"x", NO_VERSION), (b"a", version)])
        assert await tables.get("t", [b"a"]) == [None]
        await update("t", [(b"a", NOT_EXISTS, b"again")])

    with_tables(work, limits)


@BOTH
def test_a_key_that_is_twice_in_a_batch_has_its_last_entry(limits: TableLimits) -> None:
    """Conditions are of the state before the batch."""

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        first, second = await tables.update(
            "t", [(b"k", NOT_EXISTS, b"one"), (b"k", NOT_EXISTS, b"two")]
        )
        assert second > first
        assert await tables.get("t", [b"k"]) == [TableEntry(b"k", second, b"two")]
        await refused(
            KeyNotFoundError, tables.update("t", [(b"l", NOT_EXISTS, b""), (b"l", 0, b"")])
        )
        info = await tables.info("t")
        assert info.entry_count == 1
        await tables.remove("t", [(b"k", second), (b"k", second)])
        assert (await tables.info("t")).entry_count == 0

    with_tables(work, limits)


def test_a_batch_may_depend_on_the_length() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts((b"a", b"")), 0)
        length = (await tables.info("t")).length
        error = await refused(BadOffsetError, tables.update("t", puts((b"b", b"")), 0))
        assert cast("BadOffsetError", error).actual == length
        await refused(BadOffsetError, tables.remove("t", [(b"a", NO_VERSION)], length + 1))
        await tables.remove("t", [(b"a", NO_VERSION)], length)
        await refused(InvalidArgumentError, tables.update("t", puts((b"b", b"")), -1))

    with_tables(work, NEVER_COMPACTED)


def test_lengths_of_keys_and_values() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("hash")
        await tables.create("fixed", 4)
        for name, key in (("hash", b""), ("hash", b"k" * 8193), ("fixed", b"abc"), ("fixed", b"")):
            await refused(WrongKeyLengthError, tables.update(name, puts((key, b""))))
            await refused(WrongKeyLengthError, tables.remove(name, [(key, NO_VERSION)]))
            await refused(WrongKeyLengthError, tables.get(name, [key]))
        # What is written must also fit with the version that a copy of it has.
        length = store.config.append_bytes_max - 15 - 4
        await tables.update("fixed", puts((b"abcd", b"v" * length)))
        await refused(
            AppendTooLargeError, tables.update("fixed", puts((b"abcd", b"v" * (length + 1))))
        )
        await refused(
            AppendTooLargeError,
            tables.update("fixed", puts((b"abcd", b"v" * length), (b"abce", b""))),
        )
        value = b"v" * (1024 * 1024)
        await refused(InvalidArgumentError, tables.update("hash", puts((b"k", value))))
        assert await tables.get("fixed", [b"abcd"]) == [TableEntry(b"abcd", 0, b"v" * length)]

    with_tables(work)


def test_arguments_of_a_wrong_kind() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        wrong_entries: list[object] = [
            *(None, b"k", "k", [b"k"], [(b"k", NO_VERSION)], [("k", NO_VERSION, b"")]),
            *([(b"k", NO_VERSION, bytearray())], [(b"k", -2, b"")], [(b"k", None, b"")]),
            *([(b"k", 2**63, b"")], [(b"k", True, b"")]),
        ]
        for entries in wrong_entries:
            given = cast("Sequence[tuple[bytes, int, bytes]]", entries)
            await refused(InvalidArgumentError, tables.update("t", given))
        wrong_keys: list[object] = [None, b"k", [b"k"], [(b"k",)], [("k", 0)], [(b"k", -2)]]
        for keys in wrong_keys:
            pairs = cast("Sequence[tuple[bytes, int]]", keys)
            await refused(InvalidArgumentError, tables.remove("t", pairs))
        for plain in (None, b"k", ["k"], [None]):
            await refused(InvalidArgumentError, tables.get("t", cast("list[bytes]", plain)))
        for limit in (0, -1, None, True):
            count = cast("int", limit)
            for call in (tables.keys, tables.entries):
                await refused(InvalidArgumentError, call("t", count))
            await refused(InvalidArgumentError, tables.delta("t", 0, count))
        assert (await tables.info("t")).length == 0

    with_tables(work)


def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_arguments, "BATCH_KEYS_MAX", 3)
    monkeypatch.setattr(table_reads, "READ_BYTES_MAX", 200)

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts((b"a", b"v" * 40), (b"b", b"v" * 40), (b"c", b"v" * 40)))
        four = [b"a", b"x", b"y", b"z"]
        await refused(InvalidArgumentError, tables.get("t", four))
        await refused(InvalidArgumentError, tables.update("t", puts(*((k, b"") for k in four))))
        await refused(InvalidArgumentError, tables.remove("t", [(key, NO_VERSION) for key in four]))
        assert len(await tables.get("t", [b"a", b"b", b"x"])) == 3
        await refused(InvalidArgumentError, tables.get("t", [b"a", b"b", b"c"]))
        await refused(InvalidArgumentError, tables.get("t", [b"a", b"a", b"a"]))
        await refused(InvalidArgumentError, tables.get("t", [b"x" * 90, b"y" * 90]))

    with_tables(work)


def test_a_sealed_table_is_read_only() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts((b"a", b"one")))
        await store.seal("t")
        await refused(SegmentSealedError, tables.update("t", puts((b"a", b"two"))))
        await refused(SegmentSealedError, tables.remove("t", [(b"a", NO_VERSION)]))
        assert await tables.get("t", [b"a"]) == [TableEntry(b"a", 0, b"one")]
        assert len((await tables.delta("t", 0, 5)).entries) == 1

    with_tables(work)


# --- pages ----------------------------------------------------------------------------------------


async def all_keys(tables: TableService, name: str, limit: int) -> list[VersionedKey]:
    found: list[VersionedKey] = []
    token = b""
    while (page := await tables.keys(name, limit, token=token)).keys:
        assert len(page.keys) <= limit
        found += page.keys
        token = page.token
    assert not (await tables.keys(name, limit, token=page.token)).keys
    return found


@BOTH
def test_pages_of_a_hash_table_end_with_an_empty_one(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        assert await tables.keys("t", 5) == ([], b"")
        assert await tables.entries("t", 5) == ([], b"")
        keys = [b"%02d" % number for number in range(20)]
        versions = await tables.update("t", puts(*((key, key * 2) for key in keys)))
        expected = [VersionedKey(*each) for each in zip(keys, versions, strict=True)]
        for limit in (1, 3, 20, 21):
            assert await all_keys(tables, "t", limit) == expected
        page = await tables.entries("t", 3, token=(await tables.keys("t", 3)).token)
        assert page.entries == [
            TableEntry(key, version, key * 2)
            for key, version in zip(keys[3:6], versions[3:6], strict=True)
        ]

    with_tables(work, limits)


@BOTH
def test_keys_of_any_length_are_all_given(limits: TableLimits) -> None:
    """Long ones are ordered by a hash, and in the index on disk only a part of them is the key."""

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        long = [b"l" * 1024 + bytes((number,)) * 500 for number in range(8)]
        keys = [*long, b"l" * 1024, b"l" * 1023, b"m"]
        for key in keys:
            await tables.update("t", puts((key, b"v")))
        await tables.update("t", puts((long[3], b"w")))
        found = await all_keys(tables, "t", 2)
        assert sorted(key for key, _ in found) == sorted(keys)
        entries = await tables.get("t", keys)
        assert [entry and entry.value for entry in entries] == [
            b"w" if key == long[3] else b"v" for key in keys
        ]
        await tables.remove("t", [(key, NO_VERSION) for key in long])
        assert len(await all_keys(tables, "t", 2)) == 3

    with_tables(work, limits)


def test_a_page_ends_at_two_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reads, "PAGE_BYTES_MAX", 100)

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        big = b"v" * 60
        await tables.update("t", puts(*((b"%d" % number, big) for number in range(5))))
        await tables.update("t", puts((b"huge", big * 4)))
        assert len((await tables.keys("t", 9)).keys) == 5
        sizes, token = [], b""
        while (page := await tables.entries("t", 9, token=token)).entries:
            sizes.append(len(page.entries))
            token = page.token
        assert sizes == [1, 1, 1, 1, 1, 1]
        assert len((await tables.delta("t", 0, 9)).entries) == 2

    with_tables(work, NEVER_COMPACTED)


@BOTH
def test_pages_of_a_fixed_key_table_have_bounds_and_no_token(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t", 2)
        keys = [b"%02d" % number for number in range(20)]
        for key in reversed(keys):
            await tables.update("t", puts((key, key)))

        async def found(limit: int, from_key: bytes = b"", to_key: bytes = b"") -> list[bytes]:
            page = await tables.keys("t", limit, from_key=from_key, to_key=to_key)
            with_values = await tables.entries("t", limit, from_key=from_key, to_key=to_key)
            assert page.token == with_values.token == b""
            assert [entry.value for entry in with_values.entries] == [key for key, _ in page.keys]
            return [key for key, _ in page.keys]

        assert await found(99) == keys
        assert await found(3) == keys[:3]
        assert await found(99, b"05", b"08") == keys[5:9]
        assert await found(99, b"05\0") == keys[6:]
        assert await found(99, to_key=b"08") == keys[:9]
        assert await found(99, b"08", b"05") == []
        assert await found(99, b"19", b"19") == keys[19:]
        assert await found(99, b"99") == []

    with_tables(work, limits)


def test_what_belongs_to_the_other_kind_of_table_is_refused() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("hash")
        await tables.create("other")
        await tables.create("fixed", 2)
        for name in ("hash", "other"):
            await tables.update(name, puts((b"aa", b""), (b"ab", b"")))
        token = (await tables.keys("hash", 1)).token
        for pages in (tables.keys, tables.entries):
            await refused(InvalidArgumentError, pages("fixed", 5, token=token))
            await refused(InvalidArgumentError, pages("hash", 5, from_key=b"aa"))
            await refused(InvalidArgumentError, pages("hash", 5, to_key=b"aa"))
            wrong_tokens = (b"x", token[:13], token + b"k" * 9000, b"\2" + token[1:], "")
            for wrong in (*wrong_tokens, None):
                await refused(InvalidArgumentError, pages("hash", 5, token=cast("bytes", wrong)))
            error = await refused(InvalidArgumentError, pages("other", 5, token=token))
            assert "another table" in str(error)
        await refused(UnsupportedTableOperationError, tables.delta("fixed", 0, 5))

    with_tables(work)


def test_a_token_holds_after_its_key_was_removed() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts(*((b"%d" % number, b"") for number in range(6))))
        page = await tables.keys("t", 3)
        await tables.remove("t", [(b"2", NO_VERSION)])
        await tables.update("t", puts((b"20", b"")))
        rest = await tables.keys("t", 9, token=page.token)
        assert [key for key, _ in rest.keys] == [b"20", b"3", b"4", b"5"]

    with_tables(work)


# --- delta ----------------------------------------------------------------------------------------


def test_a_delta_has_the_newest_of_each_key_in_the_order_of_the_log() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        empty = await tables.delta("t", 0, 5)
        assert empty == ([], False, True, 0)
        a, b, c = await tables.update("t", puts((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
        (again,) = await tables.update("t", puts((b"a", b"4")))
        await tables.remove("t", [(b"b", NO_VERSION)])
        length = (await tables.info("t")).length
        whole = await tables.delta("t", 0, 9)
        assert whole.entries == [TableEntry(b"c", c, b"3"), TableEntry(b"a", again, b"4")]
        assert whole[1:] == (False, True, length)
        first = await tables.delta("t", 0, 2)
        assert first.entries == [TableEntry(b"a", a, b"1"), TableEntry(b"b", b, b"2")]
        assert first[1:] == (False, False, c)
        rest = await tables.delta("t", first.position, 2)
        assert rest.entries == [TableEntry(b"c", c, b"3"), TableEntry(b"a", again, b"4")]
        # The page was full before the removal.
        last = await tables.delta("t", rest.position, 2)
        assert last == ([], False, True, length)
        await refused(InvalidArgumentError, tables.delta("t", length + 1, 5))
        await refused(InvalidArgumentError, tables.delta("t", -1, 5))

    with_tables(work, NEVER_COMPACTED)


def test_a_delta_from_what_was_compacted_away_says_so() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        for number in range(40):
            await tables.update("t", puts((b"%d" % (number % 3), b"v" * 30)))
        # Virtual time: compaction has come to its end.
        await asyncio.sleep(1)
        info = await tables.info("t")
        page = await tables.delta("t", 0, 2)
        assert page.should_clear
        found = {entry.key: entry for entry in page.entries}
        while not page.reached_end:
            page = await tables.delta("t", page.position, 2)
            assert not page.should_clear
            found.update((entry.key, entry) for entry in page.entries)
        assert [found[key] for key in sorted(found)] == await tables.get("t", sorted(found))
        assert len(found) == info.entry_count == 3
        assert not (await tables.delta("t", info.length, 2)).should_clear

    with_tables(work)


def test_a_delta_from_within_a_record_is_refused() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", puts((b"key", b"\xff" * 30)))
        for position in (1, 7, 12, 39):
            await refused(InvalidArgumentError, tables.delta("t", position, 5))

    with_tables(work)


def test_calls_behind_the_close_are_refused() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        update = asyncio.ensure_future(tables.update("t", puts((b"a", b""))))
        await asyncio.sleep(0)
        await tables.close()
        await tables.close()
        with pytest.raises(StoreClosedError):
            await update
        for call in CALLS.values():
            await refused(StoreClosedError, call(tables, "t"))

    with_tables(work)
