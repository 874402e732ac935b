"""Object storage in a folder: the contract, and what a file system can do to it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.runtime import Runtime, thread_executor
from tests.contracts.object_storage_contract import (
    PAGE_OBJECTS,
    ObjectStorageContract,
    listed,
    unique_id,
)
from tests.tier2.faulty_disk import FaultyDisk
from tier2.file_object_storage import FileObjectStorage
from tier2.file_staging import FOLDER, StagingFolder
from tier2.object_storage import ObjectExistsError, ObjectStorage, StorageUnavailableError


def objects_in(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    names = {path.relative_to(root).as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith("~")}


def staged_in(root: Path) -> list[str]:
    folder = root / FOLDER
    return (
        sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")
        if folder.exists()
        else []
    )


class TestFileObjectStorage(ObjectStorageContract):
    executor = staticmethod(thread_executor)
    disk: FaultyDisk
    root: Path

    def make(self, folder: Path) -> ObjectStorage:
        self.disk = FaultyDisk()
        self.root = folder / "new" / "root"
        runtime = Runtime(disk=self.disk, executor=self.executor)
        return FileObjectStorage(str(self.root), runtime, page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        assert storage.url == f"file://{self.root}"
        assert staged_in(self.root) == []
        return objects_in(self.root)

    def put_empty(self, storage: ObjectStorage, name: str) -> bool:
        (self.root / name).touch()
        return True

    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        def trap(call: str, path: str) -> OSError | None:
            if call != "sync_directory" or not (self.root / "a/x").exists():
                return None
            self.disk.trap = lambda _call, _path: None
            return OSError(errno.EIO, "Input/output error", path)

        self.disk.trap = trap


class TestFileObjectStorageWithoutThreads(TestFileObjectStorage):
    """As a simulated world runs it: every blocking call ends before `submit` returns."""

    executor = staticmethod(inline_executor)


def run(root: Path, case: Callable[[FileObjectStorage, FaultyDisk], Awaitable[None]]) -> None:
    async def body() -> None:
        disk = FaultyDisk()
        storage = FileObjectStorage(str(root), Runtime(disk=disk))
        try:
            await case(storage, disk)
        finally:
            disk.trap = lambda _call, _path: None
            await storage.close()

    asyncio.run(body())


@pytest.mark.parametrize("call", ["lock", "open", "pwrite", "sync", "link"])
def test_a_process_that_dies_before_the_link_leaves_nothing_visible(
    tmp_path: Path, call: str
) -> None:
    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        disk.stop_at(call)
        with pytest.raises(StorageUnavailableError):
            await storage.put("a/b/x", [b"1" * 100], unique_id(1))
        assert objects_in(tmp_path) == {}

    run(tmp_path, case)

    async def after(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        assert await listed(storage) == []
        await storage.put("a/b/x", [b"2"], unique_id(2))
        assert objects_in(tmp_path) == {"a/b/x": b"2"}
        assert staged_in(tmp_path) == []

    run(tmp_path, after)


@pytest.mark.parametrize("call", ["pwrite", "sync", "link", "sync_directory"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_errors_of_the_disk_are_named_and_the_put_can_be_tried_again(
    tmp_path: Path, call: str, code: int
) -> None:
    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        disk.fail_once(call, code)
        with pytest.raises(StorageUnavailableError, match=errno.errorcode[code]):
            await storage.put("a/x", [b"mine"], unique_id(1))
        assert staged_in(tmp_path) == []
        await storage.put("a/x", [b"mine"], unique_id(1))
        assert objects_in(tmp_path) == {"a/x": b"mine"}

    run(tmp_path, case)


def test_errors_of_reading_are_not_taken_for_absence(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        await storage.put("a/x", [b"mine"], unique_id(1))
        for call in ("open", "pread"):
            disk.fail_once(call)
            with pytest.raises(StorageUnavailableError, match="EIO"):
                await storage.get_range("a/x", 0, 4)
        disk.fail_once("list_directory")
        with pytest.raises(StorageUnavailableError, match="EIO"):
            await listed(storage)
        assert storage.statistics().errors == 3

    run(tmp_path, case)


def test_a_delete_that_was_not_synced_is_synced_by_the_next(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        await storage.put("a/x", [b"1"], unique_id(1))
        disk.fail_once("sync_directory")
        with pytest.raises(StorageUnavailableError):
            await storage.delete("a/x")
        disk.calls.clear()
        await storage.delete("a/x")
        assert ("sync_directory", str(tmp_path / "a")) in disk.calls

    run(tmp_path, case)


def test_a_delete_whose_folder_another_one_prunes_makes_that_durable(tmp_path: Path) -> None:
    """Else a power cut could bring the folder back, and with it an object that the log has
    forgotten.
    """
    synced: list[str] = []

    class Disk(OsDisk):
        def sync_directory(self, path: str) -> None:
            if path == str(tmp_path / "a" / "b") and os.path.exists(path):
                os.rmdir(path)  # by a delete that had synced it before our object was missing
            super().sync_directory(path)
            synced.append(path)

    async def scenario() -> None:
        storage = FileObjectStorage(str(tmp_path), Runtime(disk=OsDisk()))
        await storage.put("a/b/c", [b"x"], unique_id(1))
        await storage.close()
        storage = FileObjectStorage(str(tmp_path), Runtime(disk=Disk()))
        await storage.delete("a/b/c")
        assert str(tmp_path / "a") in synced
        synced.clear()
        await storage.delete("a/b/c")  # missing, perhaps not for good
        assert str(tmp_path / "a") in synced
        await storage.close()

    asyncio.run(scenario())


def test_every_folder_of_a_name_is_synced_before_the_put_returns(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "a/b")

    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        await storage.put("a/b/x", [b"1"], unique_id(1))
        link = disk.calls.index(("link", str(tmp_path / "a/b/x")))
        synced = {path for call, path in disk.calls[:link] if call == "sync_directory"}
        assert {str(tmp_path), str(tmp_path / "a")} <= synced, (
            "folders found there are not taken for durable"
        )
        assert ("sync_directory", str(tmp_path / "a/b")) in disk.calls[link:]
        file_sync = next(number for number, (call, _) in enumerate(disk.calls) if call == "sync")
        assert file_sync < link

        disk.calls.clear()
        await storage.put("a/b/y", [b"2"], unique_id(2))
        assert [path for call, path in disk.calls if call == "sync_directory"] == [
            str(tmp_path / "a/b")
        ]

    run(tmp_path, case)


def test_an_object_found_in_doubt_is_replaced_by_a_synced_copy(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        await storage.put("a/x", [b"mine"], unique_id(1))
        disk.calls.clear()
        await storage.put("a/x", [b"mine"], unique_id(1))
        renamed = disk.calls.index(("rename", str(tmp_path / "a/x")))
        assert ("sync_directory", str(tmp_path / "a")) in disk.calls[renamed:]

    run(tmp_path, case)


def test_empty_folders_go_and_come_back(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        await storage.put("a/b/x", [b"1"], unique_id(1))
        await storage.put("a/y", [b"2"], unique_id(2))
        await storage.delete("a/b/x")
        assert not (tmp_path / "a/b").exists()
        assert (tmp_path / "a").exists()
        await storage.put("a/b/x", [b"3"], unique_id(3))
        for name in ("a/b/x", "a/y"):
            await storage.delete(name)
        assert os.listdir(tmp_path) == [FOLDER]

    run(tmp_path, case)


def test_a_folder_taken_away_from_outside_is_created_again(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        await storage.put("a/x", [b"1"], unique_id(1))
        (tmp_path / "a/x").unlink()
        (tmp_path / "a").rmdir()
        await storage.put("a/x", [b"2"], unique_id(2))
        assert objects_in(tmp_path) == {"a/x": b"2"}

    run(tmp_path, case)


@pytest.mark.parametrize("removed", [FOLDER, ""])
def test_a_deleted_staging_folder_is_created_again_durably(tmp_path: Path, removed: str) -> None:
    root = tmp_path / "root"

    async def case(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        await storage.put("a/x", [b"1"], unique_id(1))
        shutil.rmtree(root / removed)
        disk.calls.clear()
        await asyncio.gather(
            *(storage.put(f"b/{number}", [b"2"], unique_id(number)) for number in range(2, 6))
        )
        assert {f"b/{number}": b"2" for number in range(2, 6)}.items() <= objects_in(root).items()
        link = next(number for number, (call, _) in enumerate(disk.calls) if call == "link")
        assert ("sync_directory", str(root)) in disk.calls[:link]
        await others_leave_alone(storage, disk)

    async def others_leave_alone(storage: FileObjectStorage, disk: FaultyDisk) -> None:
        """Its lock is in the new folder: what it is writing is not taken for a dead owner's."""
        other = FileObjectStorage(str(root), Runtime())

        async def put_of_another() -> None:
            await other.put("other", [b"3"], unique_id(9))
            await other.close()

        def trap(call: str, path: str) -> OSError | None:
            if call == "link" and path == str(root / "b/last"):
                asyncio.run_coroutine_threadsafe(put_of_another(), loop).result()
            return None

        loop = asyncio.get_running_loop()
        disk.trap = trap
        await storage.put("b/last", [b"4"], unique_id(7))
        assert objects_in(root)["b/last"] == b"4"
        assert storage.statistics().errors == 0

    run(root, case)


def test_leftovers_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path: Path) -> None:
    disk = OsDisk()
    alive = StagingFolder(Runtime(disk=disk), str(tmp_path), 7)
    living = Path(alive.new_path(unique_id(1)))
    living.write_bytes(b"in the making")
    dead = tmp_path / FOLDER / f"{8:016x}-1-{unique_id(2).hex()}"
    dead.write_bytes(b"left")
    (tmp_path / FOLDER / f"{8:016x}.lock").touch()
    foreign = tmp_path / FOLDER / "notes"
    foreign.write_bytes(b"not ours")

    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        await storage.put("x", [b"1"], unique_id(3))
        assert staged_in(tmp_path) == sorted([living.name, "notes"])
        assert [found.name for found in await listed(storage)] == ["x"]

    run(tmp_path, case)
    alive.close()
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == sorted(
        [living.name, "notes"]
    )


def test_two_owners_with_one_tag_keep_apart(tmp_path: Path) -> None:
    first, second = (StagingFolder(Runtime(), str(tmp_path), 2**64 - 1) for _ in range(2))
    assert first.new_path(unique_id(1)) != second.new_path(unique_id(1))
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    first.close()
    second.close()
    second.close()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_names_a_file_system_cannot_hold(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        with pytest.raises(ValueError):
            await storage.put("x" * 256, [b"1"], unique_id(1))
        await storage.put("a/b", [b"1"], unique_id(1))
        for name in ("a", "a/b/c", "a/b/c/d"):
            with pytest.raises(ObjectExistsError):
                await storage.put(name, [b"1"], unique_id(2))
        assert objects_in(tmp_path) == {"a/b": b"1"}

    run(tmp_path, case)


def test_reading_touches_nothing(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        assert await storage.head("x") is None
        assert await listed(storage) == []
        await storage.delete("a/x")

    run(tmp_path / "absent", case)
    assert not (tmp_path / "absent").exists()


def test_closing_waits_for_a_put_whose_caller_has_left(tmp_path: Path) -> None:
    async def case(storage: FileObjectStorage, _disk: FaultyDisk) -> None:
        put = asyncio.create_task(storage.put("x", [b"1" * 100_000], unique_id(1)))
        await asyncio.sleep(0)
        put.cancel()
        await asyncio.wait([put])
        await storage.close()
        assert objects_in(tmp_path) == {"x": b"1" * 100_000}
        assert list((tmp_path / FOLDER).iterdir()) == []

    run(tmp_path, case)
