"""A deletion lag: what the log retains in front of its truncation point, and no opening reads."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from durablelog.durable_data_log import DurableDataLog
from segmentstore import SegmentStore
from segmentstore.contracts.disk import OsFile
from segmentstore.stats_types import LogStats
from tests.store.archive_world import (
    DAY_S,
    World,
    all_archived,
    archive_of,
    archiver,
    fill,
    log_parts,
    operations_in,
)
from tests.store.harness import TINY, WorldDisk, read_all, run, until


class FullDisk(WorldDisk):
    """Has no room for another log file while it `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full: Callable[[], bool] = bool

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        allocate = file.allocate

        def allocated(offset: int, length: int) -> None:
            if length >= TINY["log_file_bytes"] and self.is_full():
                raise OSError(errno.ENOSPC, "full", path)
            allocate(offset, length)

        file.allocate = allocated  # type: ignore[method-assign]
        return file


DELETED_AS = {"unlink": "retained-", "rename": "spare-"}
"""Calls that delete retained files, and how the paths begin that they name."""


def retained_names(world: World) -> list[str]:
    return sorted(path.name for path in world.folder.glob("s/log/*/retained-*"))


def log_of(store: SegmentStore) -> LogStats:
    return store.stats()["containers"][0]["log"]


async def truncated(store: SegmentStore) -> None:
    """The log begins behind most of what it has now, and retains that."""
    await store.flush()
    # The log is truncated to a checkpoint, and that must be archived, too.
    await store.checkpoint()
    last = max(log_parts(store))
    await fill(store)
    await store.flush()
    await all_archived(store)
    await store.checkpoint()
    log = store._containers[0]._log
    await until(lambda: max(_retained_numbers(log), default=0) > last - 5)


def _retained_numbers(log: DurableDataLog) -> list[int]:
    bytes_left = log.statistics().retained_bytes
    numbers = []
    for part in log.sealed_parts():
        if bytes_left <= 0:
            break
        numbers.append(part.number)
        bytes_left -= part.length
    return numbers


async def passed(world: World, store: SegmentStore) -> None:
    """The lag is over, and the metadata say so."""
    last = archive_of(store).last_number
    world.clock.pass_s(DAY_S + 1)
    archiver(store)._wake.set()
    await until(lambda: archive_of(store).hot_deleted >= last)


def test_openings_replay_what_is_behind_the_truncation_point_whatever_the_lag(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        for _ in range(3):
            async with world.open() as store:
                await fill(store)
                await truncated(store)
                assert archive_of(store).hot_deleted == 0
                assert log_parts(store)[0] == 1, "every part is there"
        async with world.open() as store:
            log = log_of(store)
            assert log["retained_bytes"] > 2 * log["log_bytes"]
            before = set(retained_names(world))
            assert len(before) > 20
            archived = {each.sequence_number for _, _, each in await operations_in(store)}
            logged = {each.sequence async for each in store.list_operations()}
            assert len(logged) < len(archived) // 2, "so many were replayed"
            await passed(world, store)
            await until(lambda: not before & set(retained_names(world)))
            expected = await read_all(store, "x")
        async with world.open() as store:
            assert await read_all(store, "x") == expected
            assert store.stats()["health"] == []

    run(main())


def test_what_a_crash_kept_from_deletion_the_next_owner_deletes(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await truncated(store)
            before = retained_names(world)
            world.disk.trap = lambda call, path: (
                OSError(errno.EIO, "broken", path)
                if os.path.basename(path).startswith(DELETED_AS.get(call, "?"))
                else None
            )
            await passed(world, store)
            log = store._containers[0]._log
            await until(lambda: log.first_retained is None or log.first_retained > 1)
        world.disk.heal()
        assert before
        assert set(before) <= set(retained_names(world)), "not one was deleted"
        async with world.open() as store:
            await until(lambda: not set(before) & set(retained_names(world)))
            assert store.stats()["health"] == []

    run(main())


def test_what_is_retained_stays_until_the_archive_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await truncated(store)
            kept = retained_names(world)
            assert kept
        async with world.open(archive="") as store:
            await store.flush()
            await store.checkpoint()
            await store._containers[0]._truncation.truncate_now()
            assert set(kept) <= set(retained_names(world))
        async with world.open(archive="none") as store:
            await until(lambda: not retained_names(world))
            assert log_of(store)["retained_bytes"] == 0

    run(main())


def test_a_full_disk_gets_room_by_what_is_retained_if_the_archive_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        world, disk = World(tmp_path, archive_deletion_lag_s=DAY_S), FullDisk()
        world.disk, world.runtime = disk, replace(world.runtime, disk=disk)
        async with world.open() as store:
            await fill(store)
            await truncated(store)
        kept = retained_names(world)
        assert kept

        disk.is_full = lambda: bool(retained_names(world))
        async with world.open(archive=tmp_path / "other") as store:
            log = store._containers[0]._log
            filling = asyncio.create_task(fill(store))
            await until(lambda: "disk of the log is full" in str(store.stats()["health"]))
            await until(lambda: "names another place than before" in str(store.stats()["health"]))
            assert log.short
            assert set(kept) <= set(retained_names(world)), "they may be the only copies"
            disk.is_full = bool
            await filling
        disk.is_full = lambda: bool(set(kept) & set(retained_names(world)))
        async with world.open() as store:
            await fill(store)
            assert not set(kept) & set(retained_names(world))

    run(main())


def test_a_part_in_which_a_full_log_began_is_described_by_all_its_operations(
    tmp_path: Path,
) -> None:
    """The next owner replays from a checkpoint inside of it on, and archives it whole."""

    async def main() -> None:
        world, disk = (
            World(tmp_path, inline_checkpoint_bytes_max=0, checkpoint_operations=7),
            FullDisk(),
        )
        world.disk, world.runtime = disk, replace(world.runtime, disk=disk)
        async with world.open() as store:
            await fill(store)
            log, positions = store._containers[0]._log, store._containers[0]._positions
            while True:
                await fill(store, count=3)
                await store.flush()
                await store.checkpoint()
                first, offset = divmod(positions._checkpoints[-1][1], 1 << 32)
                if offset > 4096 and first > max(log_parts(store)):
                    break  # it is in the active part, behind other operations
            await all_archived(store)
            world.archive_fails()
            disk.is_full = lambda: archive_of(store).last_number < first in log_parts(store)
            filling = asyncio.create_task(fill(store, count=1000))
            await until(lambda: log.short)
            await until(lambda: positions._checkpoints[0][1] >= first << 32 | offset)
            disk.is_full = bool
            filling.cancel()
        disk.heal()
        async with world.open() as store:
            await all_archived(store)
            found: dict[int, list[int]] = {}
            for part, _, operation in await operations_in(store):
                found.setdefault(part.number, []).append(operation.sequence_number)
            parts = [each async for each in store.list_archived_parts()]
            assert first in found
            for part in parts:
                if numbers := found.get(part.number):
                    assert (part.first_sequence, part.last_sequence) == (numbers[0], numbers[-1])

    run(main())
