"""What every ObjectStorage promises. Subclass `ObjectStorageContract` once per implementation.

What an implementation may do otherwise than others, without breaking a promise, is a class variable
or a hook with a default; nothing else is to be overridden.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from segmentstore.contracts.checksum import Buffer
from tests.contracts.object_uploads_contract import (
    PAGE_OBJECTS,
    ObjectUploadsContract,
    unique_id,
)
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectRange,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
)

__all__ = ["BAD_NAMES", "ORDER", "PAGE_OBJECTS", "ObjectStorageContract", "listed", "unique_id"]

BAD_NAMES = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/.",
    "a b",
    "~x",
    "ä",
    "a\n",
    "a\0b",
    "x" * 513,
]
ORDER = ["a", "a-b/x", "a.b", "a0", "b", "b-", "c/a", "c/b/a", "c/b/b", "c-/z", "cA", "ca", "d"]
"""Names that sort otherwise by path part than by code point."""


async def listed(
    storage: ObjectStorage, prefix: str = "", start_after: str = ""
) -> list[StoredObject]:
    found: list[StoredObject] = []
    async for page in storage.list(prefix, start_after):
        assert 1 <= len(page) <= PAGE_OBJECTS
        found += page
    return found


class ObjectStorageContract(ObjectUploadsContract):
    large_bytes: ClassVar[int] = 300_001
    """An object of this size is put in three parts, where objects are put in parts."""
    absent_names: ClassVar[Sequence[str]] = ("gone", "there/gone", "there", "there/x/gone")
    """Names that are absent beside an object `there/x`."""
    settles_doubt: ClassVar[bool] = False
    """A put whose reply was lost checks by itself whether it landed, instead of leaving that to the
    next one.
    """
    one_of_racing_puts_wins: ClassVar[bool] = True
    """False of a server that checks a condition and acts on it in two steps."""

    @abstractmethod
    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        """Make the next put take effect and fail all the same."""

    def expect_losses(self) -> None:
        """Before `make`: replies will be lost in this test."""

    def put_empty(self, storage: ObjectStorage, name: str) -> bool:
        """Store an object without bytes around the storage; False where the test has no way to."""
        return False

    def test_what_is_put_is_there(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put(
                "a/b/c", [b"one", bytearray(b"-"), memoryview(b"xtwox")[1:-1], b""], unique_id(1)
            )
            assert self.raw(storage) == {"a/b/c": b"one-two"}
            assert await storage.get_range("a/b/c", 0, 7) == b"one-two"
            head = await storage.head("a/b/c")
            assert head is not None
            assert (head.name, head.size) == ("a/b/c", 7)
            assert [head] == await listed(storage)

        self.run(tmp_path, case)

    def test_ranges_are_exact(self, tmp_path: Path) -> None:
        data = bytes(range(10))

        async def case(storage: ObjectStorage) -> None:
            await storage.put("x", [data], unique_id(1))
            for start in range(10):
                for end in range(start + 1, 11):
                    got = await storage.get_range("x", start, end - start)
                    assert type(got) is bytes
                    assert got == data[start:end]
            for offset, length in ((0, 11), (9, 2), (10, 1), (100, 1)):
                with pytest.raises(InvalidRangeError):
                    await storage.get_range("x", offset, length)
            for offset, length in ((-1, 1), (0, 0), (0, -1)):
                with pytest.raises(ValueError):
                    await storage.get_range("x", offset, length)

        self.run(tmp_path, case)

    def test_put_again_with_the_same_id_succeeds_and_with_another_is_refused(
        self, tmp_path: Path
    ) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/x", [b"mine"], unique_id(1))
            await storage.put("a/x", [b"mi", b"ne"], unique_id(1))
            for other in (b"yours", b"theirs", b"their own"):
                with pytest.raises(ObjectExistsError) as caught:
                    await storage.put("a/x", [other], unique_id(2))
                assert caught.value.name == "a/x"
            assert self.raw(storage) == {"a/x": b"mine"}

        self.run(tmp_path, case)

    def test_of_concurrent_puts_of_one_name_one_wins(self, tmp_path: Path) -> None:
        contents = [bytes([65 + number]) * 5000 for number in range(12)]

        async def case(storage: ObjectStorage) -> None:
            outcomes = await asyncio.gather(
                *(
                    storage.put("s/x", [content], unique_id(n))
                    for n, content in enumerate(contents)
                ),
                return_exceptions=True,
            )
            winners = [
                content
                for content, outcome in zip(contents, outcomes, strict=True)
                if outcome is None
            ]
            losers = [outcome for outcome in outcomes if isinstance(outcome, ObjectExistsError)]
            assert len(winners) + len(losers) == len(contents)
            assert winners
            assert len(winners) == 1 or not self.one_of_racing_puts_wins
            assert self.raw(storage) in [{"s/x": winner} for winner in winners]

        self.run(tmp_path, case)

    def test_a_lost_reply_is_resolved_by_putting_again(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            self.lose_next_put_reply(storage)
            if self.settles_doubt:
                await storage.put("a/x", [b"mine"], unique_id(1))
            else:
                with pytest.raises(StorageUnavailableError):
                    await storage.put("a/x", [b"mine"], unique_id(1))
            await storage.put("a/x", [b"mine"], unique_id(1))
            assert self.raw(storage) == {"a/x": b"mine"}
            assert storage.statistics().errors == 1

        self.expect_losses()
        self.run(tmp_path, case)

    def test_concurrent_puts_of_ones_own_object_all_succeed(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await asyncio.gather(
                *(storage.put("s/x", [b"mine" * 999], unique_id(1)) for _ in range(8))
            )
            assert self.raw(storage) == {"s/x": b"mine" * 999}

        self.run(tmp_path, case)

    def test_absent_objects(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("there/x", [b"1"], unique_id(1))
            for name in self.absent_names:
                with pytest.raises(ObjectNotFoundError):
                    await storage.get_range(name, 0, 1)
                assert await storage.head(name) is None
                await storage.delete(name)
            assert self.raw(storage) == {"there/x": b"1"}

        self.run(tmp_path, case)

    def test_deleted_is_absent_and_its_name_is_free(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/b/x", [b"1"], unique_id(1))
            await storage.delete("a/b/x")
            assert self.raw(storage) == {}
            assert await storage.head("a/b/x") is None
            assert await listed(storage) == []
            await storage.delete("a/b/x")
            await storage.put("a/b/x", [b"2"], unique_id(2))
            assert self.raw(storage) == {"a/b/x": b"2"}

        self.run(tmp_path, case)

    def test_bad_arguments_are_refused_at_the_door(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            for name in BAD_NAMES:
                with pytest.raises(ValueError):
                    await storage.put(name, [b"1"], unique_id(1))
                with pytest.raises(ValueError):
                    await storage.get_range(name, 0, 1)
                with pytest.raises(ValueError):
                    await storage.head(name)
                with pytest.raises(ValueError):
                    await storage.delete(name)
            empty: list[list[Buffer]] = [[], [b""], [b"", bytearray()]]
            for parts in empty:
                with pytest.raises(ValueError):
                    await storage.put("x", parts, unique_id(1))
            with pytest.raises(ValueError):
                await storage.put("x", [b"1"], b"short")
            assert self.raw(storage) == {}

        self.run(tmp_path, case)

    def test_many_parts(self, tmp_path: Path) -> None:
        parts: Sequence[bytes] = [number.to_bytes(3, "big")[: number % 4] for number in range(5000)]

        async def case(storage: ObjectStorage) -> None:
            await storage.put("x", parts, unique_id(1))
            assert self.raw(storage) == {"x": b"".join(parts)}

        self.run(tmp_path, case)

    def test_listing_is_by_code_point_of_the_full_name(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            for number, name in enumerate(reversed(ORDER)):
                await storage.put(name, [name.encode()], unique_id(number))
            everything = sorted(ORDER)
            assert [found.name for found in await listed(storage)] == everything
            assert [found.size for found in await listed(storage)] == [
                len(name) for name in everything
            ]
            for prefix in ("", "a", "a-", "c", "c/", "c/b", "c/b/", "c/b/a", "c/b/a/", "d", "zz"):
                for start_after in (
                    "",
                    "a",
                    "a-b/w",
                    "a/",
                    "b",
                    "c/a",
                    "c/b",
                    "c/b/a",
                    "cA",
                    "d",
                    "zz",
                ):
                    expected = [
                        name
                        for name in everything
                        if name.startswith(prefix) and name > start_after
                    ]
                    assert [
                        found.name for found in await listed(storage, prefix, start_after)
                    ] == expected

        self.run(tmp_path, case)

    def test_many_calls_at_once(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            async def one(number: int) -> None:
                name = f"{number % 5}/{number % 3}/{number}"
                await storage.put(name, [bytes([number]) * 100], unique_id(number))
                assert await storage.get_range(name, 50, 50) == bytes([number]) * 50
                if number % 2:
                    await storage.delete(name)

            await asyncio.gather(*(one(number) for number in range(60)))
            assert len(self.raw(storage)) == 30
            statistics = storage.statistics()
            # A server under load may be asked a second time: a provider counts that as a retry.
            kinds = [statistics.operations[kind] for kind in ("put", "get", "delete")]
            assert [kind.requests - kind.retries for kind in kinds] == [60, 60, 30]
            repeated = sum(kind.retries for kind in kinds)
            assert 6000 <= statistics.bytes_sent <= 6000 + 100 * repeated
            assert 3000 <= statistics.bytes_received <= 3000 + 50 * repeated
            assert statistics.errors <= repeated

        self.run(tmp_path, case)

    def test_a_large_object(self, tmp_path: Path) -> None:
        size = self.large_bytes
        data = random.Random(size).randbytes(size)
        parts: list[Buffer] = [
            data[: size // 3],
            memoryview(data)[size // 3 : size // 2],
            bytearray(data[size // 2 :]),
        ]

        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/large", parts, unique_id(1))
            head = await storage.head("a/large")
            assert head is not None
            assert head.size == size
            for third in (0, size // 3, size // 2, 2 * size // 3, size):
                begin, end = max(third - 700, 0), min(third + 700, size)
                assert await storage.get_range("a/large", begin, end - begin) == data[begin:end]
            assert await storage.get_range("a/large", 0, size) == data
            await storage.put("a/large", [data], unique_id(1))
            with pytest.raises(ObjectExistsError):
                await storage.put("a/large", [bytes(size)], unique_id(2))
            assert await storage.get_range("a/large", 0, size) == data
            with pytest.raises(InvalidRangeError):
                await storage.get_range("a/large", size - 1, 2)
            assert [found.size for found in await listed(storage)] == [size]
            assert list(await storage.list_unfinished()) == []
            assert storage.statistics().bytes_sent >= size

        self.run(tmp_path, case)

    def test_ranges_of_objects_are_composed_where_that_is_offered(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            least = storage.compose_bytes_min
            if least is None:
                with pytest.raises(ValueError, match="copies nothing"):
                    await storage.compose("new", [ObjectRange("x", 0, 1)], unique_id(3))
                return
            long, short = random.Random(1).randbytes(least + 100), b"0123456789"
            await storage.put("a/long", [long], unique_id(1))
            await storage.put("b/short", [short], unique_id(2))
            await self.check_refusals_of_compose(storage, least)
            ranges = [
                ObjectRange("a/long", 7, least),
                ObjectRange("a/long", 0, least),
                ObjectRange("b/short", 2, 5),
            ]
            wanted = long[7 : 7 + least] + long[:least] + b"23456"
            for _ in range(2):
                await storage.compose("c/new", ranges, unique_id(3))
            with pytest.raises(ObjectExistsError):
                await storage.compose("c/new", ranges, unique_id(4))
            await storage.compose("c/one", [ObjectRange("b/short", 0, 10)], unique_id(5))
            expected = {"a/long": long, "b/short": short, "c/new": wanted, "c/one": short}
            assert self.raw(storage) == expected
            assert list(await storage.list_unfinished()) == []

        self.run(tmp_path, case)

    async def check_refusals_of_compose(self, storage: ObjectStorage, least: int) -> None:
        for ranges in (
            [],
            [ObjectRange("a/long", 0, 0)],
            [ObjectRange("a/long", -1, 5)],
            [ObjectRange("a/long", 0, least - 1), ObjectRange("a/long", 0, least)],
        ):
            with pytest.raises(ValueError):
                await storage.compose("c/new", ranges, unique_id(3))
        with pytest.raises(ObjectNotFoundError):
            await storage.compose("c/new", [ObjectRange("gone", 0, 5)], unique_id(3))
        with pytest.raises(InvalidRangeError):
            await storage.compose("c/new", [ObjectRange("b/short", 6, 5)], unique_id(3))
        assert await storage.head("c/new") is None

    def test_metadata_of_an_object_are_read_back(self, tmp_path: Path) -> None:
        metadata = {"role": "index", "a.b_c-d": "with spaces = and (signs)", "none": ""}

        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/plain", [b"1"], unique_id(1))
            await storage.put("a/described", [b"12", b"3"], unique_id(2), metadata)
            whole = await storage.get_whole("a/described", 3)
            assert whole == (b"123", metadata)
            there = await storage.head("a/described")
            assert there is not None
            assert there.metadata == metadata
            assert await storage.get_whole("a/plain", 10**6) == (b"1", {})
            with pytest.raises(InvalidRangeError):
                await storage.get_whole("a/described", 2)
            with pytest.raises(ObjectNotFoundError):
                await storage.get_whole("a/missing", 2)
            assert [each.name for each in await listed(storage)] == ["a/described", "a/plain"]
            await storage.delete("a/described")
            await storage.put("a/described", [b"new"], unique_id(3))
            assert await storage.get_whole("a/described", 3) == (b"new", {})

        self.run(tmp_path, case)

    def test_an_empty_object_of_a_foreign_hand_is_read_as_such(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/x", [b"1"], unique_id(1))
            if self.put_empty(storage, "a/empty"):
                assert await storage.get_whole("a/empty", 100) == (b"", {})
                with pytest.raises(InvalidRangeError):
                    await storage.get_range("a/empty", 0, 1)
                there = await storage.head("a/empty")
                assert there is not None
                assert there.size == 0
                assert storage.statistics().errors == 0

        self.run(tmp_path, case)

    def test_a_store_that_keeps_its_promises_passes_its_check_and_nothing_is_left_of_it(
        self, tmp_path: Path
    ) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("x", [b"1"], unique_id(1))
            for _ in range(2):
                await storage.check()
            assert self.raw(storage) == {"x": b"1"}
            assert list(await storage.list_unfinished()) == []

        self.run(tmp_path, case)

    def test_a_cancelled_call_leaves_the_storage_well(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            put = asyncio.create_task(storage.put("x", [b"1"], unique_id(1)))
            await asyncio.sleep(0)
            put.cancel()
            await asyncio.wait([put])
            await storage.put("x", [b"1"], unique_id(1))
            # The cancelled one may still be at work in its thread; closing waits for it.
            await storage.close()
            assert self.raw(storage) == {"x": b"1"}

        self.run(tmp_path, case)

    def test_after_closing_nothing_is_done(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.close()
            await storage.close()
            with pytest.raises(StorageUnavailableError):
                await storage.put("x", [b"1"], unique_id(1))
            with pytest.raises(StorageUnavailableError):
                await storage.get_range("x", 0, 1)
            assert self.raw(storage) == {}

        self.run(tmp_path, case)
