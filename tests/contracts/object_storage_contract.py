"""What every ObjectStorage promises. Subclass `ObjectStorageContract` once per implementation."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
)

PAGE_OBJECTS = 3
"""Implementations under test list in pages this small."""

BAD_NAMES = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a b", "~x", "ä", "a\n", "a\0b", "x" * 513]
ORDER = ["a", "a-b/x", "a.b", "a0", "b", "b-", "c/a", "c/b/a", "c/b/b", "c-/z", "cA", "ca", "d"]
"""Names that sort otherwise by path part than by code point."""


def unique_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def listed(storage: ObjectStorage, prefix: str = "", start_after: str = "") -> list[StoredObject]:
    found: list[StoredObject] = []
    async for page in storage.list(prefix, start_after):
        assert 1 <= len(page) <= PAGE_OBJECTS
        found += page
    return found


class ObjectStorageContract(ABC):
    @abstractmethod
    def make(self, folder: Path) -> ObjectStorage:
        """A new, empty storage that lists in pages of PAGE_OBJECTS."""

    @abstractmethod
    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        """Every object there is, looked at around the storage."""

    @abstractmethod
    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        """Make the next put take effect and fail all the same."""

    def run(self, folder: Path, case: Callable[[ObjectStorage], Awaitable[None]]) -> None:
        async def body() -> None:
            storage = self.make(folder)
            try:
                await case(storage)
            finally:
                await storage.close()

        asyncio.run(body())

    def test_what_is_put_is_there(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/b/c", [b"one", bytearray(b"-"), memoryview(b"xtwox")[1:-1], b""], unique_id(1))
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

    def test_put_again_with_the_same_id_succeeds_and_with_another_is_refused(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("a/x", [b"mine"], unique_id(1))
            await storage.put("a/x", [b"mi", b"ne"], unique_id(1))
            for other in (b"his", b"hers", b"their own"):
                with pytest.raises(ObjectExistsError) as caught:
                    await storage.put("a/x", [other], unique_id(2))
                assert caught.value.name == "a/x"
            assert self.raw(storage) == {"a/x": b"mine"}

        self.run(tmp_path, case)

    def test_of_concurrent_puts_of_one_name_one_wins(self, tmp_path: Path) -> None:
        contents = [bytes([65 + number]) * 5000 for number in range(12)]

        async def case(storage: ObjectStorage) -> None:
            outcomes = await asyncio.gather(
                *(storage.put("s/x", [content], unique_id(n)) for n, content in enumerate(contents)),
                return_exceptions=True,
            )
            winners = [content for content, outcome in zip(contents, outcomes, strict=True) if outcome is None]
            assert len(winners) == 1
            assert sum(isinstance(outcome, ObjectExistsError) for outcome in outcomes) == len(contents) - 1
            assert self.raw(storage) == {"s/x": winners[0]}

        self.run(tmp_path, case)

    def test_a_lost_reply_is_resolved_by_putting_again(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            self.lose_next_put_reply(storage)
            with pytest.raises(StorageUnavailableError):
                await storage.put("a/x", [b"mine"], unique_id(1))
            await storage.put("a/x", [b"mine"], unique_id(1))
            assert self.raw(storage) == {"a/x": b"mine"}
            assert storage.statistics().errors == 1

        self.run(tmp_path, case)

    def test_concurrent_puts_of_ones_own_object_all_succeed(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await asyncio.gather(*(storage.put("s/x", [b"mine" * 999], unique_id(1)) for _ in range(8)))
            assert self.raw(storage) == {"s/x": b"mine" * 999}

        self.run(tmp_path, case)

    def test_absent_objects(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("there/x", [b"1"], unique_id(1))
            for name in ("gone", "there/gone", "there", "there/x/gone"):
                with pytest.raises(ObjectNotFoundError):
                    await storage.get_range(name, 0, 1)
                assert await storage.head(name) is None
                await storage.delete(name)
            assert self.raw(storage) == {"there/x": b"1"}

        self.run(tmp_path, case)

    def test_deleted_is_gone_and_its_name_is_free(self, tmp_path: Path) -> None:
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
            assert [found.size for found in await listed(storage)] == [len(name) for name in everything]
            for prefix in ("", "a", "a-", "c", "c/", "c/b", "c/b/", "c/b/a", "c/b/a/", "d", "zz"):
                for start_after in ("", "a", "a-b/w", "a/", "b", "c/a", "c/b", "c/b/a", "cA", "d", "zz"):
                    expected = [name for name in everything if name.startswith(prefix) and name > start_after]
                    assert [found.name for found in await listed(storage, prefix, start_after)] == expected

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
            assert [statistics.requests(kind) for kind in ("put", "get", "delete")] == [60, 60, 30]
            assert (statistics.bytes_sent, statistics.bytes_received, statistics.errors) == (6000, 3000, 0)

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
