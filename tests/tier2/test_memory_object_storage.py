"""Object storage in memory: the contract, and buckets shared by name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import PAGE_OBJECTS, ObjectStorageContract, unique_id
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_storage import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
)


class TestMemoryObjectStorage(ObjectStorageContract):
    def make(self, folder: Path) -> ObjectStorage:
        return MemoryObjectStorage(Runtime(), name=folder.name, page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        assert isinstance(storage, MemoryObjectStorage)
        return {name: there.data for name, there in storage.bucket.objects.items()}

    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        assert isinstance(storage, MemoryObjectStorage)
        storage.fail("put", after_effect=True)


def test_failures_come_in_the_order_asked_for_and_end() -> None:
    async def case() -> None:
        storage = MemoryObjectStorage(Runtime())
        storage.fail("put", 2)
        storage.fail("put", 1, lambda name: ObjectNotFoundError(name, "odd"))
        for error in (StorageUnavailableError, StorageUnavailableError, ObjectNotFoundError):
            with pytest.raises(error):
                await storage.put("x", [b"1"], unique_id(1))
        assert storage.bucket.objects == {}
        assert storage.statistics().errors == 2
        await storage.put("x", [b"1"], unique_id(1))
        storage.fail("get_range", 10)
        storage.heal()
        assert await storage.get_range("x", 0, 1) == b"1"

    asyncio.run(case())


def test_a_delete_whose_reply_is_lost_has_deleted() -> None:
    async def case() -> None:
        storage = MemoryObjectStorage(Runtime())
        await storage.put("x", [b"1"], unique_id(1))
        storage.fail("delete", after_effect=True)
        with pytest.raises(StorageUnavailableError):
            await storage.delete("x")
        assert await storage.head("x") is None

    asyncio.run(case())


def test_the_unique_id_decides_even_if_the_bytes_are_equal() -> None:
    async def case() -> None:
        storage = MemoryObjectStorage(Runtime())
        await storage.put("x", [b"1"], unique_id(1))
        with pytest.raises(ObjectExistsError):
            await storage.put("x", [b"1"], unique_id(2))

    asyncio.run(case())


def test_a_bucket_outlives_its_storage() -> None:
    async def case() -> None:
        bucket = MemoryBucket()
        first = MemoryObjectStorage(Runtime(), bucket)
        await first.put("x", [b"1"], unique_id(1))
        await first.close()
        assert await MemoryObjectStorage(Runtime(), bucket).get_range("x", 0, 1) == b"1"

    asyncio.run(case())
