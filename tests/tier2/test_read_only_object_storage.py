"""Nothing but reads passes a read-only object storage."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path

import pytest

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import ObjectRange, ObjectStorage, StorageRefusedError, UnfinishedUpload
from tier2.read_only_object_storage import ReadOnlyObjectStorage

READS = {
    "close",
    "get_bytes_best",
    "is_local",
    "get_range",
    "get_whole",
    "head",
    "health",
    "list",
    "list_unfinished",
    "statistics",
    "upload_bytes_min",
    "url",
}
REFUSED = {"abort_unfinished", "check", "compose", "delete", "put", "upload"}


def test_every_call_of_an_object_storage_is_a_read_or_refused() -> None:
    calls = {name for name, _ in inspect.getmembers(ObjectStorage) if not name.startswith("_")}
    assert calls == READS | REFUSED | {"compose_bytes_min"}, "a new call: say whether it passes"
    assert vars(ReadOnlyObjectStorage).keys() >= READS | REFUSED


async def no_parts() -> AsyncGenerator[Buffer, None]:
    raise AssertionError("nothing is read of what is refused")
    yield b""  # type: ignore[unreachable]


def test_reads_pass_and_everything_else_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        inner = MemoryObjectStorage(Runtime())
        await inner.put("a/b", [b"bytes"], bytes(16))
        before = inner.statistics().requests()
        storage = ReadOnlyObjectStorage(inner)
        refused: list[Awaitable[object]] = [
            storage.put("a/c", [b"x"], bytes(16)),
            storage.compose("a/c", [ObjectRange("a/b", 0, 5)], bytes(16)),
            storage.upload("a/c", no_parts(), bytes(16)),
            storage.delete("a/b"),
            storage.abort_unfinished(UnfinishedUpload("a/c", "1", 0)),
            storage.check(),
        ]
        for call in refused:
            with pytest.raises(StorageRefusedError, match="read-only view"):
                await call
        assert inner.statistics().requests() == before
        assert storage.compose_bytes_min is None
        assert (storage.url, storage.get_bytes_best) == (inner.url, inner.get_bytes_best)
        assert not storage.is_local
        folder = FileObjectStorage(str(tmp_path), Runtime())
        assert ReadOnlyObjectStorage(folder).is_local
        assert await storage.get_range("a/b", 1, 3) == b"yte"
        assert [each.name async for page in storage.list() for each in page] == ["a/b"]
        assert await storage.get_whole("a/b", 5) == (b"bytes", {})
        assert storage.upload_bytes_min == inner.upload_bytes_min
        there = await storage.head("a/b")
        assert there is not None
        assert await storage.list_unfinished() == ()
        await storage.close()

    asyncio.run(scenario())
