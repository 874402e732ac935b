"""What every ObjectStorage promises of uploads in parts: a part of `ObjectStorageContract`."""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import ObjectExistsError, ObjectStorage

PAGE_OBJECTS = 3
"""Implementations under test list in pages this small."""


def unique_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class _Part(bytearray):
    """A part of which it can be seen whether it is still held."""


def _alive(parts: Sequence[weakref.ref[_Part]]) -> int:
    return sum(each() is not None for each in parts)


async def _parts(*parts: bytes) -> AsyncGenerator[Buffer, None]:
    for part in parts:
        yield part


class ObjectUploadsContract(ABC):
    parts_held_max: ClassVar[int] = 2
    """Of an upload: one that is sent, and the next."""
    uploads_of_one_name_have_pages: ClassVar[bool] = True
    """False of a server that lists no more than a page of them."""

    @abstractmethod
    def make(self, folder: Path) -> ObjectStorage:
        """A new, empty storage that lists in pages of PAGE_OBJECTS."""

    @abstractmethod
    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        """Every object there is, checked around the storage."""

    def begin_upload(self, storage: ObjectStorage, name: str) -> bool:
        """Begin an upload in parts around the storage, and leave it; False where there is no such
        thing.
        """
        return False

    def run(self, folder: Path, case: Callable[[ObjectStorage], Awaitable[None]]) -> None:
        async def body() -> None:
            storage = self.make(folder)
            try:
                await case(storage)
            finally:
                await storage.close()

        asyncio.run(body())

    def test_unfinished_uploads_are_listed_and_given_up(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            await storage.put("u/x", [b"whole"], unique_id(1))
            if self.begin_upload(storage, "u/left"):
                (found,) = await storage.list_unfinished()
                assert found.name == "u/left"
                assert found.upload_id
                assert list(await storage.list_unfinished("u/l")) == [found]
                assert list(await storage.list_unfinished("v")) == []
                assert await storage.head("u/left") is None
                for _ in range(2):
                    await storage.abort_unfinished(found)
            assert list(await storage.list_unfinished()) == []
            assert self.raw(storage) == {"u/x": b"whole"}

        self.run(tmp_path, case)

    def test_unfinished_uploads_of_many_pages_are_all_listed(self, tmp_path: Path) -> None:
        # A page ends between two of one name.
        names = ["u/a", *["u/b"] * 2, "u/c", *["u/d"] * 2, "u/e"]
        if self.uploads_of_one_name_have_pages:
            names += ["u/f"] * (PAGE_OBJECTS + 2)

        async def case(storage: ObjectStorage) -> None:
            if not all(self.begin_upload(storage, name) for name in names):
                return
            found = await storage.list_unfinished()
            assert sorted(upload.name for upload in found) == names
            assert len({upload.upload_id for upload in found}) == len(names)
            for upload in found:
                await storage.abort_unfinished(upload)
            assert list(await storage.list_unfinished()) == []

        self.run(tmp_path, case)

    def test_parts_become_an_object_and_two_are_held_at_most(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            least = storage.upload_bytes_min
            held: list[weakref.ref[_Part]] = []

            async def parts() -> AsyncGenerator[Buffer, None]:
                for number, size in enumerate((least, least + 3, least, 2)):
                    part = _Part(bytes([65 + number]) * size)
                    held.append(weakref.ref(part))
                    # The server's packages may hold one a moment longer.
                    async with asyncio.timeout(240):
                        while _alive(held) > self.parts_held_max:  # noqa: ASYNC110
                            await asyncio.sleep(0)
                    yield part
                    del part

            expected = b"A" * least + b"B" * (least + 3) + b"C" * least + b"DD"
            await storage.upload("a/parts", parts(), unique_id(1), {"role": "data"})
            assert self.raw(storage) == {"a/parts": expected}
            there = await storage.head("a/parts")
            assert there is not None
            assert (there.size, there.metadata) == (len(expected), {"role": "data"})
            assert await storage.get_range("a/parts", least - 1, 5) == expected[least - 1 :][:5]
            await storage.upload("one", _parts(b"x"), unique_id(2))
            assert await storage.get_whole("one", 1) == (b"x", {})
            with pytest.raises(ObjectExistsError):
                await storage.upload("one", _parts(b"y"), unique_id(3))
            assert self.raw(storage) == {"a/parts": expected, "one": b"x"}
            assert list(await storage.list_unfinished()) == []

        self.run(tmp_path, case)

    def test_an_upload_that_is_refused_or_fails_leaves_nothing(self, tmp_path: Path) -> None:
        class SourceError(Exception):
            pass

        closed: list[int] = []

        async def parts(*sizes: int, fails: bool = False) -> AsyncGenerator[Buffer, None]:
            try:
                for size in sizes:
                    yield bytes(size)
                if fails:
                    raise SourceError
            finally:
                closed.append(len(sizes))

        async def case(storage: ObjectStorage) -> None:
            least = storage.upload_bytes_min
            short = () if least == 1 else ((1, least),)
            for sizes in ((), (0,), (least, 0), *short):
                with pytest.raises(ValueError):
                    await storage.upload("a/x", parts(*sizes), unique_id(1))
            with pytest.raises(SourceError):
                await storage.upload("a/x", parts(least, least, fails=True), unique_id(1))
            assert closed == [0, 1, 2, *(2 for _ in short), 2]
            for name, ids, metadata in (
                ("/a", unique_id(1), {}),
                ("a", b"short", {}),
                ("a", unique_id(1), {"A": "1"}),
                ("a", unique_id(1), {"unique-id": "1"}),
                ("a", unique_id(1), {"a": "\n"}),
                ("a", unique_id(1), {"a": " 1"}),
                ("a", unique_id(1), {"a": "x" * 1900}),
            ):
                with pytest.raises(ValueError):
                    await storage.upload(name, parts(least), ids, metadata)
                with pytest.raises(ValueError):
                    await storage.put(name, [b"1"], ids, metadata)
            assert self.raw(storage) == {}
            assert list(await storage.list_unfinished()) == []
            await storage.upload("a/x", parts(least, 1), unique_id(1))
            assert len(self.raw(storage)["a/x"]) == least + 1

        self.run(tmp_path, case)

    def test_a_cancelled_upload_leaves_nothing(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            reached = asyncio.Event()

            async def parts() -> AsyncGenerator[Buffer, None]:
                yield bytes(storage.upload_bytes_min)
                reached.set()
                await asyncio.Event().wait()

            upload = asyncio.create_task(storage.upload("a/x", parts(), unique_id(1)))
            await reached.wait()
            upload.cancel()
            await asyncio.wait([upload])
            assert upload.cancelled()
            async with asyncio.timeout(240):
                while await storage.list_unfinished():  # noqa: ASYNC110 - aborted beside
                    await asyncio.sleep(0.01)
            assert self.raw(storage) == {}
            await storage.upload("a/x", _parts(b"1"), unique_id(1))
            await storage.close()
            assert self.raw(storage) == {"a/x": b"1"}

        self.run(tmp_path, case)
