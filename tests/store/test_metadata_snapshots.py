"""Checkpoints by reference: the metadata come back from the local catalog, or from Tier 2."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog import rocksdb_key_store
from segmentstore import (
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStore,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import Trap, WorldDisk, open_lazy, read_all, run, until
from tests.support.folders import files_below
from tests.support.suites import size

SEGMENTS = size("SNAPSHOT_SEGMENTS", 30, 300)
SNAPSHOTS: dict[str, Any] = {"inline_checkpoint_bytes_max": 0}


async def fill(store: SegmentStore, round_number: int) -> None:
    for number in range(SEGMENTS):
        if not round_number:
            await store.create_segment(f"s{number}")
        await store.append(f"s{number}", b"<%d:%d>" % (round_number, number))


async def check(store: SegmentStore, rounds: int) -> None:
    await check_content(store, rounds)
    assert store.stats()["health"] == []


async def check_content(store: SegmentStore, rounds: int) -> None:
    for number in range(SEGMENTS):
        wanted = b"".join(b"<%d:%d>" % (each, number) for each in range(rounds))
        assert await read_all(store, f"s{number}") == wanted


async def store_with_a_snapshot(folder: Path) -> None:
    """The log of the store begins with a checkpoint by reference, and has more behind it."""
    async with open_lazy(folder, **SNAPSHOTS) as store:
        await fill(store, 0)
        await store.flush()
        await store.checkpoint()
        await fill(store, 1)
    assert snapshot_files(folder)


def snapshot_files(folder: Path) -> list[Path]:
    return files_below(folder / "tier2" / "metadata")


def tables_of(folder: Path) -> list[Path]:
    """Files of RocksDB in the catalogs."""
    return [path for path in files_below(folder / "catalog") if path.suffix == ".sst"]


@pytest.mark.parametrize("local", ["whole", "lost", "damaged", "stale"])
def test_a_store_comes_back_from_its_snapshot(local: str, tmp_path: Path) -> None:
    folder, catalog = tmp_path / "s", tmp_path / "s" / "catalog" / "0"

    async def main() -> None:
        await store_with_a_snapshot(folder)
        if local == "lost":
            shutil.rmtree(catalog)
        elif local == "stale":
            for path in catalog.iterdir():
                path.rename(catalog / path.name.replace("0000000000", "0000000001"))
        elif local == "damaged":
            for path in catalog.glob("0*/*"):
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
        for rounds in (2, 3):
            async with open_lazy(folder, **SNAPSHOTS) as store:
                await check(store, rounds)
                stats = store.stats()["containers"][0]["snapshots"]
                assert stats["by_reference"]
                assert stats["downloaded"] is (local != "whole" and rounds == 2)
                await fill(store, rounds)
                await store.flush()
                await store.checkpoint()
                await until(lambda: store.stats()["containers"][0]["snapshots"]["completed"] > 0)
                assert store.stats()["containers"][0]["snapshots"]["bytes_put"] > 0

    run(main())


def test_metadata_that_are_nowhere_are_named_and_nothing_is_changed(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def main() -> None:
        await store_with_a_snapshot(folder)
        shutil.rmtree(folder / "catalog")
        moved = {path: path.read_bytes() for path in snapshot_files(folder)}
        for path in moved:
            path.unlink()
        with pytest.raises(DataCorruptionError) as caught:
            async with open_lazy(folder, **SNAPSHOTS):
                pass
        assert "metadata/00000000/" in caught.value.detail
        for path, data in moved.items():
            path.write_bytes(data)
        async with open_lazy(folder, **SNAPSHOTS) as store:
            await check(store, 2)

    run(main())


def test_a_store_with_inline_checkpoints_moves_to_the_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def main() -> None:
        async with open_lazy(folder) as store:
            await fill(store, 0)
            await store.flush()
            await store.checkpoint()
        assert not snapshot_files(folder)
        for rounds in (1, 2):
            async with open_lazy(folder, **SNAPSHOTS) as store:
                await check(store, rounds)
                await fill(store, rounds)
                await store.flush()
                await store.checkpoint()
        assert snapshot_files(folder)

    run(main())


def test_checkpoints_wait_for_no_tier2_and_the_log_is_cut_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = WorldDisk()
        async with open_lazy(tmp_path / "s", runtime=Runtime(disk=disk), **SNAPSHOTS) as store:
            await fill(store, 0)
            await store.flush()
            disk.tier2_away()
            # One may have been on its way.
            with suppress(TierUnavailableError):
                await store.checkpoint()
            await fill(store, 1)
            with pytest.raises(TierUnavailableError, match="no checkpoint: metadata snapshot"):
                await store.checkpoint()
            await fill(store, 2)
            assert "metadata snapshot" in str(store.stats()["health"])
            disk.heal()
            checkpoints = store._containers[0]._checkpoints
            await until(lambda: checkpoints.ready and checkpoints.health() is None)
            await store.flush()
            await store.checkpoint()
            assert checkpoints._begin > 0
        async with open_lazy(tmp_path / "s", **SNAPSHOTS) as store:
            await check(store, 3)

    run(main())


def checkpoint_is_in_tier1(folder: Path) -> bool:
    return any((folder / "catalog" / "0").glob("*.files"))


def test_a_checkpoint_ends_when_its_container_fails(tmp_path: Path) -> None:
    async def main() -> None:
        disk, gate = WorldDisk(), threading.Event()
        store = await open_lazy(tmp_path / "s", runtime=Runtime(disk=disk), **SNAPSHOTS)
        await fill(store, 0)
        await store.flush()

        def hold(_call: str, path: str) -> None:
            if "/metadata/" in path:
                gate.wait()

        disk.trap = hold
        asking = [asyncio.ensure_future(store.checkpoint()) for _ in range(2)]
        container = store._containers[0]
        await until(lambda: checkpoint_is_in_tier1(tmp_path / "s"))
        container._failed(RuntimeError("a bug"))
        for each in asking:
            with pytest.raises(ContainerStoppedError, match="a bug"):
                await each
        gate.set()
        await store.close()

    run(main())


def test_a_full_disk_is_given_the_room_of_the_catalog_and_another_snapshot_follows(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"

    def full(call: str, path: str) -> OSError | None:
        grows = call in {"open", "pwrite", "link", "sync", "rename"} and "/catalog/" in path
        return OSError(errno.ENOSPC, "full", path) if grows else None

    async def main() -> None:
        disk = WorldDisk()
        async with open_lazy(folder, runtime=Runtime(disk=disk), **SNAPSHOTS) as store:
            await fill(store, 0)
            await store.flush()
            await store.checkpoint()
            checkpoints = store._containers[0]._checkpoints
            begin = checkpoints._begin
            await fill(store, 1)
            await store.flush()
            disk.trap = full
            await store.checkpoint()
            assert "full" in str(store.stats()["health"])
            await until(lambda: not tables_of(folder))
            disk.heal()
            # It comes unasked.
            await until(lambda: checkpoints._begin > begin)
            await check(store, 2)
        async with open_lazy(folder, **SNAPSHOTS) as store:
            await check(store, 2)

    run(main())


def test_a_full_disk_keeps_a_local_checkpoint_whose_snapshot_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    def full(call: str, path: str) -> OSError | None:
        grows = call in {"pwrite", "link", "sync", "rename"} and "/catalog/" in path
        return OSError(errno.ENOSPC, "full", path) if grows else None

    async def main() -> None:
        await store_with_a_snapshot(folder)
        disk = WorldDisk()
        async with open_lazy(folder, runtime=Runtime(disk=disk), **SNAPSHOTS) as store:
            kept = list((folder / "catalog" / "0").glob("0*.files"))
            for path in snapshot_files(folder):
                path.unlink()
            disk.trap = full
            await store.checkpoint()
            checkpoints = store._containers[0]._checkpoints
            await until(lambda: not any("working-" in str(path) for path in tables_of(folder)))
            await store.checkpoint()
            assert "full" in str(store.stats()["health"])
            assert kept
            assert all(path.exists() for path in kept)
            disk.heal()
            await until(lambda: checkpoints.ready)
            await check_content(store, 2)
        async with open_lazy(folder, **SNAPSHOTS) as store:
            await check_content(store, 2)

    run(main())


def test_a_store_opens_on_a_full_disk_and_begins_its_catalog_anew(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    def full(call: str, path: str) -> OSError | None:
        grows = call in {"pwrite", "link", "sync", "rename"} and "/catalog/" in path
        return OSError(errno.ENOSPC, "full", path) if grows else None

    async def main() -> None:
        await store_with_a_snapshot(folder)
        disk = WorldDisk()
        disk.trap = full
        async with open_lazy(folder, runtime=Runtime(disk=disk), **SNAPSHOTS) as store:
            assert "full" in str(store.stats()["health"])
            await check_content(store, 2)
            checkpoints = store._containers[0]._checkpoints
            begin = checkpoints._begin
            await fill(store, 2)
            await store.flush()
            with suppress(TierUnavailableError):
                await store.checkpoint()
            assert checkpoints._begin == begin
            disk.heal()
            await until(lambda: checkpoints._begin > begin)
            await check(store, 3)
        async with open_lazy(folder, **SNAPSHOTS) as store:
            await check(store, 3)

    run(main())


async def opens(folder: Path, trap: Trap, *, downloaded: bool) -> None:
    """The store opens where calls of the disk go through `trap`."""
    disk = WorldDisk()
    disk.trap = trap
    async with open_lazy(folder, runtime=Runtime(disk=disk), **SNAPSHOTS) as store:
        assert store.stats()["containers"][0]["snapshots"]["downloaded"] is downloaded
        await check_content(store, 2)


def test_a_leftover_that_another_removes_too_is_no_damage(tmp_path: Path) -> None:
    """Of a last owner that is still at work, or ends just then."""
    removed: list[str] = []

    def trap(call: str, path: str) -> OSError | None:
        if call == "unlink" and "/working-" in path and path.endswith(".sst"):
            Path(path).unlink(missing_ok=True)
            removed.append(path)
        return None

    async def main() -> None:
        await store_with_a_snapshot(tmp_path / "s")
        await opens(tmp_path / "s", trap, downloaded=False)
        assert removed

    run(main())


@pytest.mark.parametrize("which", ["working-", "0"])
def test_a_list_that_cannot_be_read_is_damage(which: str, tmp_path: Path) -> None:
    def trap(call: str, path: str) -> OSError | None:
        listed = Path(path).name.startswith(which) and path.endswith(".files")
        bad = listed and call in {"open", "pread"} and old_inode(path)
        return OSError(errno.EIO, "a bad sector", path) if bad else None

    def old_inode(path: str) -> bool:
        return Path(path).exists() and Path(path).stat().st_ino in inodes

    inodes: set[int] = set()

    async def main() -> None:
        await store_with_a_snapshot(tmp_path / "s")
        lists = list((tmp_path / "s" / "catalog" / "0").glob(f"{which}*.files"))
        assert lists
        inodes.update(path.stat().st_ino for path in lists)
        await opens(tmp_path / "s", trap, downloaded=which == "0")

    run(main())


@pytest.mark.parametrize("temporary", ["there", "none"])
def test_a_full_disk_without_a_temporary_directory_harms_no_checkpoint(
    temporary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"

    def full(call: str, path: str) -> OSError | None:
        grows = call in {"pwrite", "link", "sync", "rename"} and "/catalog/" in path
        return OSError(errno.ENOSPC, "full", path) if grows else None

    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(rocksdb_key_store, "_MEMORY", str(memory))

    def no_directory(*_args: object, **_kwargs: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    async def main() -> None:
        await store_with_a_snapshot(folder)
        before = sorted((folder / "catalog" / "0").glob("0*"))
        if temporary == "none":
            with monkeypatch.context() as patch:
                patch.setattr(tempfile, "mkdtemp", no_directory)
                with pytest.raises(TierUnavailableError, match="no temporary directory"):
                    await opens(folder, full, downloaded=False)
        assert sorted((folder / "catalog" / "0").glob("0*")) == before
        await opens(folder, full, downloaded=False)
        assert os.listdir(memory) == []

    run(main())
