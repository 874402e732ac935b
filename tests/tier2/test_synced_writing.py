"""Objects are written in pieces, each synced: what bounds how long an append waits behind one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import unique_id
from tests.support.sync_sizes import CountingDisk
from tests.tier2.faulty_disk import FaultyDisk
from tier2.file_object_storage import FileObjectStorage
from tier2.object_storage import StorageUnavailableError
from tier2.synced_writing import (
    GROWTH,
    SYNCED_BYTES,
    SYNCED_BYTES_MAX,
    SyncSizes,
    pieces_of,
)


@given(parts=st.lists(st.binary(max_size=9), max_size=6), size=st.integers(1, 7))
def test_pieces_are_the_same_bytes_in_equal_sizes(parts: list[bytes], size: int) -> None:
    pieces = [b"".join(piece) for piece in pieces_of(parts, size)]
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert 0 < len(pieces[-1]) <= size or pieces == [b""]


def test_parts_grow_while_objects_follow_each_other_and_shrink_behind_a_pause() -> None:
    sizes = SyncSizes()
    now_ms, begun = 100, []
    for pause_ms in (0, 0, 99, 99, 150, 200, 399, 99, 300, 400, 99, 10_000, 99):
        now_ms += pause_ms
        begun.append(sizes.begin(now_ms) // SYNCED_BYTES)
        sizes.end(now_ms, now_ms + 100)
        now_ms += 100
    most = SYNCED_BYTES_MAX // SYNCED_BYTES
    assert most == GROWTH**2
    assert begun == [
        *(1, GROWTH, most, most, most),
        *(most, most, most, most),
        *(1, GROWTH, 1, GROWTH),
    ]


def run(root: Path, disk: Disk, case: Callable[[FileObjectStorage], Awaitable[None]]) -> None:
    async def body() -> None:
        storage = FileObjectStorage(str(root), Runtime(disk=disk))
        try:
            await case(storage)
        finally:
            await storage.close()

    asyncio.run(body())


def test_a_put_leaves_no_more_than_a_piece_to_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    parts = [b"a" * 10, b"b" * (2 * SYNCED_BYTES), b"c" * SYNCED_BYTES]

    async def case(storage: FileObjectStorage) -> None:
        await storage.put("a/x", parts, unique_id(1))

    run(tmp_path, disk, case)
    assert disk.synced == [SYNCED_BYTES, SYNCED_BYTES, SYNCED_BYTES, 10]
    assert (tmp_path / "a/x").read_bytes() == b"".join(parts)


def test_neither_does_an_object_that_comes_in_parts(tmp_path: Path) -> None:
    disk = CountingDisk()
    parts = [b"a" * (SYNCED_BYTES + 10), b"b" * 10]

    async def generated() -> AsyncGenerator[Buffer, None]:
        for part in parts:
            yield part

    async def case(storage: FileObjectStorage) -> None:
        await storage.upload("a/x", generated(), unique_id(1))

    run(tmp_path, disk, case)
    assert disk.synced == [SYNCED_BYTES, 10, 10]
    assert (tmp_path / "a/x").read_bytes() == b"".join(parts)


def test_room_for_a_large_object_is_found_before_anything_is_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    data = bytes(SYNCED_BYTES + 1)

    async def case(storage: FileObjectStorage) -> None:
        disk.fail_once("allocate", errno.ENOSPC)
        with pytest.raises(StorageUnavailableError, match="ENOSPC"):
            await storage.put("a/x", [data], unique_id(1))
        assert "pwrite" not in [call for call, _ in disk.calls]
        await storage.put("a/x", [data], unique_id(1))

    run(tmp_path, disk, case)
    assert (tmp_path / "a/x").read_bytes() == data


@pytest.mark.parametrize(("size", "direct"), [(SYNCED_BYTES, 0), (SYNCED_BYTES + 1, 1)])
def test_large_objects_alone_leave_nothing_in_the_page_cache(
    size: int, direct: int, tmp_path: Path
) -> None:
    disk = FaultyDisk()

    async def case(storage: FileObjectStorage) -> None:
        await storage.put("a/x", [bytes(size)], unique_id(1))

    run(tmp_path, disk, case)
    calls = [call for call, _ in disk.calls]
    assert calls.count("write_directly") == direct
    assert not direct or calls.index("write_directly") < calls.index("pwrite")
