"""Metadata snapshots as a reader finds them: listed, checked, and whole in a directory."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tests.tier2.faulty_disk import FaultyDisk
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.metadata_manifest import (
    FileContent,
    MetadataManifest,
    SnapshotFile,
    empty_file,
    encode_metadata_manifest,
)
from tier2.metadata_snapshots import (
    PIECE_BYTES,
    UNFINISHED,
    SnapshotObjectDamagedError,
    SnapshotObjectMissingError,
    download_snapshot,
    list_snapshot_manifests,
    read_snapshot_manifest,
)
from tier2.object_names import metadata_file_name, metadata_prefix
from tier2.object_storage import ObjectStorage, StorageUnavailableError
from tier2.unique_ids import new_copy_id

STORE = uuid.UUID("0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10")
OTHER = uuid.UUID(int=1)
FILES = {
    "000001.sst": b"1" * (2 * PIECE_BYTES + 5),
    "000002.sst": b"22",
    "CURRENT": b"M\n",
    "EMPTY": b"",
}
IDS = random.Random(7)


async def put_snapshot(
    storage: ObjectStorage, number: int, store_id: uuid.UUID = STORE, container_id: int = 3
) -> MetadataManifest:
    files = []
    for name, data in FILES.items():
        content = FileContent(name, len(data), crc32c(data))
        if not data:
            files.append(empty_file(content))
            continue
        unique_id = new_copy_id(store_id, IDS)
        await storage.put(metadata_file_name(container_id, 1, unique_id), [data], unique_id)
        files.append(SnapshotFile(content, 1, unique_id))
    unique_id = new_copy_id(store_id, IDS)
    manifest = MetadataManifest(store_id, 4, container_id, 1, number, unique_id, 0, tuple(files))
    await storage.put(manifest.name, [encode_metadata_manifest(manifest)], unique_id)
    return manifest


class World:
    def __init__(self, folder: Path, kind: str = "memory") -> None:
        self.disk = FaultyDisk()
        self.runtime = Runtime(
            clock=LoopClock(), disk=self.disk, executor=inline_executor, random=random.Random(1)
        )
        self.storage: ObjectStorage = (
            MemoryObjectStorage(self.runtime, page_objects=2)
            if kind == "memory"
            else FileObjectStorage(str(folder / "bucket"), self.runtime)
        )
        self.target = folder / "catalog"

    async def download(self, manifest: MetadataManifest) -> None:
        await download_snapshot(self.storage, manifest, str(self.target), self.runtime)

    def there(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.target.iterdir()}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_newest_is_listed_first_and_its_files_are_downloaded(tmp_path: Path, kind: str) -> None:
    async def case() -> None:
        world = World(tmp_path, kind)
        for number in (9, 10, 8):
            await put_snapshot(world.storage, number)
        await put_snapshot(world.storage, 11, OTHER)
        await put_snapshot(world.storage, 12, container_id=2)
        names = await list_snapshot_manifests(world.storage, 3, STORE)
        assert [int(name.split("-")[1], 16) for name in names] == [10, 9, 8]
        assert all(name.startswith(metadata_prefix(3)) for name in names)
        manifest = await read_snapshot_manifest(world.storage, names[0], STORE)
        assert (manifest.name, manifest.sequence_number) == (names[0], 10)
        await world.download(manifest)
        assert world.there() == FILES
        await world.storage.close()

    run_virtual(case())


def test_a_container_without_snapshots_has_none(tmp_path: Path) -> None:
    async def case() -> None:
        assert await list_snapshot_manifests(World(tmp_path).storage, 3, STORE) == []

    run_virtual(case())


def test_a_manifest_that_is_missing_or_damaged_or_of_another_store_is_named(
    tmp_path: Path,
) -> None:
    async def case() -> None:
        world = World(tmp_path)
        storage = world.storage
        assert isinstance(storage, MemoryObjectStorage)
        name = (await put_snapshot(storage, 9)).name
        with pytest.raises(SnapshotObjectDamagedError, match=str(STORE)):
            await read_snapshot_manifest(storage, name, OTHER)
        spoil(storage, name)
        with pytest.raises(SnapshotObjectDamagedError) as damaged:
            await read_snapshot_manifest(storage, name, STORE)
        await storage.delete(name)
        with pytest.raises(SnapshotObjectMissingError) as missing:
            await read_snapshot_manifest(storage, name, STORE)
        assert damaged.value.name == missing.value.name == name

    run_virtual(case())


def spoil(storage: MemoryObjectStorage, name: str) -> None:
    there = storage.bucket.objects[name]
    data = bytearray(there.data)
    data[-1] ^= 1
    storage.bucket.objects[name] = MemoryObject(bytes(data), there.unique_id, there.modified_ms)


@pytest.mark.parametrize("what", ["gone", "spoilt", "longer", "shorter"])
def test_a_file_that_is_missing_or_damaged_is_named_and_the_snapshot_before_can_be_had(
    tmp_path: Path, what: str
) -> None:
    async def case() -> None:
        world = World(tmp_path)
        storage = world.storage
        assert isinstance(storage, MemoryObjectStorage)
        before, newest = await put_snapshot(storage, 9), await put_snapshot(storage, 10)
        name = newest.files[1].object_name(3)
        assert name is not None
        if what == "gone":
            await storage.delete(name)
        elif what == "spoilt":
            spoil(storage, name)
        else:
            storage.bucket.objects[name] = MemoryObject(
                b"222" if what == "longer" else b"2", bytes(16), 0
            )
        kind = SnapshotObjectMissingError if what == "gone" else SnapshotObjectDamagedError
        with pytest.raises(kind) as told:
            await world.download(newest)
        assert told.value.name == name
        assert not world.target.exists()
        await world.download(before)
        assert world.there() == FILES

    run_virtual(case())


def test_a_body_that_was_spoilt_on_the_way_is_asked_for_again(tmp_path: Path) -> None:
    class Spoiling(MemoryObjectStorage):
        left = 1

        async def get_range(self, name: str, offset: int, length: int) -> bytes:
            data = await super().get_range(name, offset, length)
            if offset and self.left:
                self.left -= 1
                return bytes(length)
            return data

    async def case() -> None:
        world = World(tmp_path)
        world.storage = Spoiling(world.runtime)
        await world.download(await put_snapshot(world.storage, 9))
        assert world.there() == FILES

    run_virtual(case())


def test_the_directory_has_its_name_only_when_all_is_durable(tmp_path: Path) -> None:
    """Whatever call is the last one done: what has the name is whole, and another try works."""

    async def case() -> None:
        world, folder, number = World(tmp_path), tmp_path, 0
        for number in range(1000):
            folder = tmp_path / str(number)
            folder.mkdir()
            world = World(folder)
            manifest = await put_snapshot(world.storage, 9)
            calls = 0

            def trap(_call: str, _path: str, last: int = number) -> OSError | None:
                nonlocal calls
                calls += 1
                return OSError(5, "dead") if calls > last else None

            world.disk.trap = trap
            try:
                await world.download(manifest)
            except OSError:
                if world.target.exists():
                    assert world.there() == FILES
                    continue
                world.disk.trap = lambda _call, _path: None
                await world.download(manifest)
                assert world.there() == FILES
                continue
            break
        assert number > 2 * len(FILES)
        synced = [path for call, path in world.disk.calls if "sync" in call]
        parts = [f"{world.target}{UNFINISHED}/{name}" for name in FILES]
        assert set(parts) <= set(synced)
        assert synced[-2:] == [f"{world.target}{UNFINISHED}", str(folder)]

    run_virtual(case())


def test_a_storage_that_fails_is_no_verdict_on_the_snapshot(tmp_path: Path) -> None:
    async def case() -> None:
        world = World(tmp_path)
        storage = world.storage
        assert isinstance(storage, MemoryObjectStorage)
        manifest = await put_snapshot(storage, 9)
        storage.fail("get_range")
        with pytest.raises(StorageUnavailableError):
            await world.download(manifest)
        await asyncio.sleep(1)
        await world.download(manifest)
        assert world.there() == FILES

    run_virtual(case())
