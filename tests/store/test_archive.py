"""A store with an archive: sealed parts of its log are there before the log deletes them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log import LogAddress
from durablelog.operations import CheckpointOperation, SnapshotCheckpointOperation
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    TierUnavailableError,
)
from tests.store.archive_world import (
    DAY_S,
    MANY,
    World,
    all_archived,
    archive_of,
    archiver,
    fill,
    is_truncated_to,
    log_parts,
    names_in,
    names_of,
    operations_in,
)
from tests.store.harness import read_all, run, until


def test_sealed_parts_are_archived_before_the_log_deletes_them_also_over_a_restart(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        expected = b""
        for _ in range(3):
            async with world.open() as store:
                expected += await fill(store)
                await store.flush()
                # The log is truncated to a checkpoint, and that must be archived, too.
                await store.checkpoint()
                last = max(log_parts(store))
                expected += await fill(store)
                await store.flush()
                await all_archived(store, hot_deleted=True)
                await store.checkpoint()
                await until(partial(is_truncated_to, store, last - 5))
                assert await read_all(store, "x") == expected
                assert store.stats()["health"] == []
                archived = [each async for each in store.list_archived_parts()]
                assert len(archived) > 5
        async with world.open() as store:
            found = await operations_in(store)
            numbers = [operation.sequence_number for _, _, operation in found]
            assert numbers == sorted(set(numbers))
            for part in {id(part): part for part, _, _ in found}.values():
                mine = [each for owner, _, each in found if owner is part]
                assert mine[-1].sequence_number == part.last_sequence
                assert mine[0].sequence_number <= part.first_sequence
                assert max(each.timestamp_ms for each in mine) <= part.last_ms
            kinds = (CheckpointOperation, SnapshotCheckpointOperation)
            begun = {
                begin: operation.sequence_number
                for _, begin, operation in found
                if isinstance(operation, kinds)
            }
            for part in {id(part): part for part, _, _ in found}.values():
                if part.checkpoint_sequence:
                    address = LogAddress(part.number << 32 | part.checkpoint_entry)
                    assert begun[address] == part.checkpoint_sequence

    run(main())


def test_every_operation_is_in_the_log_or_in_the_archive(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await store.checkpoint()
            await all_archived(store)
            archived = {each.sequence_number for _, _, each in await operations_in(store)}
            logged = {each.sequence async for each in store.list_operations()}
            everything = archived | logged
            assert archived
            low, high = min(everything), max(everything)
            assert everything == set(range(low, high + 1)), "the epoch of one owner has no gaps"

    run(main())


def test_the_lag_keeps_the_hot_copies(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
            await store.checkpoint()
            parts = log_parts(store)
            last = archive_of(store).last_number
            assert parts[0] == 1
            assert archive_of(store).hot_deleted == 0
            assert all(part.state is OffloadState.COMPLETE for part in archive_of(store).tail)
            world.clock.pass_s(DAY_S + 1)
            archiver(store)._wake.set()
            await until(lambda: archive_of(store).hot_deleted >= last)
            await store.checkpoint()
            assert log_parts(store)[0] > parts[0] + 3

    run(main())


def test_an_archive_that_is_away_keeps_the_log_says_so_and_holds_writers(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, unflushed_bytes_max=60_000, offload_above_bytes=30_000)
        async with world.open() as store:
            await store.create_segment("x")
            await store.append("x", b"first")
            world.archive_fails()
            sent = 0

            async def write() -> None:
                nonlocal sent
                while True:
                    await store.append("x", bytes(150))
                    sent += 1

            writing = asyncio.create_task(write())

            def throttled() -> str:
                return store.stats()["containers"][0]["processor"]["throttled_by"]

            await until(lambda: throttled() == "archive")
            health = "\n".join(store.stats()["health"])
            assert "archive failing since" in health
            assert "held back by archive" in health
            assert archive_of(store).count == 0
            assert log_parts(store)[0] == 1, "nothing was truncated"
            assert store.stats()["containers"][0]["archive"]["unarchived_bytes"] > 40_000
            world.disk.heal()
            archiver(store)._wake.set()
            await until(lambda: not throttled())
            before = sent
            await until(lambda: sent > before + 5)
            writing.cancel()
            await all_archived(store)
            assert store.stats()["health"] == []

    run(main())


def test_an_archive_that_is_away_is_not_asked_again_for_each_file(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            world.archive_fails()
            await fill(store, count=30)
            await until(lambda: "archive failing" in str(store.stats()["health"]))
            failures = archiver(store).statistics().failures
            await fill(store)
            assert log_parts(store)[-1] > 15
            assert archiver(store).statistics().failures <= failures + 3
            world.disk.heal()
            archiver(store)._wake.set()
            await all_archived(store)

    run(main())


class Cut(BaseException):
    """The process dies here."""


STEPS = {
    "before the attempt is recorded": ("commit", 1, False),
    "behind the attempt": ("commit", 1, True),
    "in the upload": ("offload", 1, False),
    "behind the upload": ("offload", 1, True),
    "behind the completion": ("commit", 2, True),
    "before a hot copy may be deleted": ("commit", 3, False),
    "behind that": ("commit", 3, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_what_the_next_owner_cleans(tmp_path: Path, step: str) -> None:
    """The disk as it was at that moment is the next owner's."""
    kind, count, behind = STEPS[step]

    async def main() -> None:
        world = World(tmp_path)
        copied = asyncio.Event()
        async with world.open() as store:
            working = archiver(store)
            target: Any = working._source if kind == "commit" else working._offloader
            original = getattr(target, kind)
            calls = 0

            async def cut(*arguments: Any) -> None:
                nonlocal calls
                is_ours = kind == "offload" or type(arguments[0]).__name__ == "ArchiveOperation"
                calls += is_ours
                is_now = is_ours and calls == count and not copied.is_set()
                if not is_now or behind:
                    await original(*arguments)
                if is_now:
                    world.disk.crash_copy(world.folder / "s", world.folder / "t")
                    world.disk.crash_copy(world.archive, world.folder / "u")
                    copied.set()
                    raise TierUnavailableError("archive", "cut off")

            world.archive.mkdir(exist_ok=True)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(type(target), kind, lambda _self, *rest: cut(*rest))
                expected = await fill(store, count=MANY // 2)
                await store.flush()
                await copied.wait()
        world.archive = world.folder / "u"
        world.settings["archive"] = world.archive
        async with world.open("t") as store:
            expected = await read_all(store, "x")
            expected += await fill(store, count=MANY // 2)
            await store.flush()
            await all_archived(store, hot_deleted=True)
            await store.checkpoint()
            assert await read_all(store, "x") == expected
            numbers = [each.sequence_number for _, _, each in await operations_in(store)]
            assert numbers == sorted(set(numbers)), "no part is there twice"
            # The checkpoint may have sealed one more.
            await all_archived(store, hot_deleted=True)
            await until(lambda: world.objects() == names_in(store))
            archived = [each async for each in store.list_archived_parts()]
            assert names_of(archived) == names_in(store), "and nothing else"

    run(main())


def test_offload_prefix_reports_each_part_and_the_first_operation_that_is_missing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path, offload_after_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            parts = log_parts(store)
            assert len(parts) > 3
            (report,) = await store.offload_prefix(before=1)
            assert (report.parts, report.first_not_archived) == ((), 1)
            container = store._containers[0]
            second = container._positions.operations_of(parts[1])
            assert second is not None
            (report,) = await store.offload_prefix(before=second.last_sequence + 1)
            assert [part.number for part in report.parts] == parts[:2]
            assert all(part.failure is None for part in report.parts)
            assert report.first_not_archived == second.last_sequence + 1
            world.archive_fails()
            (report,) = await store.offload_prefix()
            assert [part.number for part in report.parts] == parts[2:3]
            assert "away" in str(report.parts[0].failure)
            world.disk.heal()
            first, other = await asyncio.gather(store.offload_prefix(), store.offload_prefix())
            numbers = [part.number for report in (*first, *other) for part in report.parts]
            assert numbers[: len(parts) - 2] == parts[2:], "each once, whoever asked"
            with pytest.raises(InvalidArgumentError):
                await store.offload_prefix(before=-1)

    run(main())


def test_sealed_log_above_a_size_is_archived_whatever_its_age(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, offload_after_s=DAY_S, offload_above_bytes=20_000)
        async with world.open() as store:
            await fill(store)
            await until(lambda: archive_of(store).count > 0)
            archiver(store)._wake.set()
            await until(lambda: archiver(store).unarchived_bytes <= 20_000)
            parts = list(store._containers[0]._log.sealed_parts())
            waiting = sum(p.length for p in parts if p.number > archive_of(store).last_number)
            assert 10_000 < waiting <= 20_000, "only the oldest"

    run(main())


@pytest.mark.parametrize("by", ["age", "bytes"])
def test_retention_deletes_from_the_oldest_part_on(tmp_path: Path, by: str) -> None:
    settings: dict[str, Any] = (
        {"archive_retention_s": DAY_S}
        if by == "age"
        else {"archive_retention_bytes": 20_000, "offload_above_bytes": 10_000}
    )

    async def main() -> None:
        world = World(tmp_path, **settings)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store, hot_deleted=True)
            if by == "age":
                assert archive_of(store).first == 0
                world.clock.pass_s(DAY_S + 1)
                await fill(store, count=60)
            archiver(store)._wake.set()
            await all_archived(store, hot_deleted=True)

            def is_over(parts: Sequence[ArchivedPart]) -> bool:
                if by == "age":
                    return any(each.last_ms <= world.clock.now_ms - DAY_S * 1000 for each in parts)
                return sum(each.length for each in parts) >= 20_000 + 3 * 8400

            # An earlier pass may have deleted some while the log was being filled.
            await until(lambda: not is_over(archive_of(store).tail[archive_of(store).first :]))
            await until(lambda: 0 < archive_of(store).first == archive_of(store).swept)
            await until(lambda: world.objects() == names_in(store))
            parts = [each async for each in store.list_archived_parts()]
            if by == "age":
                assert all(part.last_ms > world.clock.now_ms - DAY_S * 1000 for part in parts)
            else:
                assert 20_000 <= sum(part.length for part in parts) < 20_000 + 3 * 8400

    run(main())


def test_a_clock_that_jumps_ahead_deletes_nothing_from_the_archive(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_retention_s=DAY_S, archive_deletion_lag_s=DAY_S / 2)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
            world.clock.jump_s(10 * 365 * DAY_S)
            await store.offload_prefix()  # a whole pass
            await store.offload_prefix()
            archive = archive_of(store)
            assert (archive.first, archive.hot_deleted) == (0, 0)
            assert world.objects() == names_in(store)
            world.clock.pass_s(DAY_S + 1)  # it is trusted, and its time has come
            archiver(store)._wake.set()
            await until(lambda: archive_of(store).hot_deleted >= archive.last_number)
            await until(lambda: archive_of(store).first > 0)

    run(main())


def test_a_clock_that_was_ahead_keeps_hot_copies_for_the_lag_alone(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
            last = archive_of(store).last_number
        world.clock.jump_s(-365 * DAY_S)
        async with world.open(archive_deletion_lag_s=0.1) as store:

            def are_deleted() -> bool:
                archiver(store)._wake.set()
                return bool(archive_of(store).hot_deleted >= last)

            await until(are_deleted)

    run(main())


def test_another_place_than_before_neither_deletes_nor_adds(tmp_path: Path) -> None:
    """As an archive whose objects were deleted."""

    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
        async with world.open(archive=tmp_path / "other", archive_deletion_lag_s=0.0) as store:
            before = archive_of(store)
            await until(lambda: "names another place than before" in str(store.stats()["health"]))
            for call in (
                store.offload_prefix(),
                store.remove_archived_parts(before.tail[1].last_sequence + 1, 0),
            ):
                with pytest.raises(DataCorruptionError, match="another place than before"):
                    await call
            await store.checkpoint()
            assert archive_of(store) == before
            assert log_parts(store)[0] == 1
        async with world.open(archive_deletion_lag_s=0.0) as store:
            await all_archived(store, hot_deleted=True)
            assert store.stats()["health"] == []

    run(main())


def test_an_archive_that_was_lost_begins_anew_once_all_of_it_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
        shutil.rmtree(world.archive)
        async with world.open(archive_deletion_lag_s=0.0) as store:
            lost = archive_of(store).count
            assert await store.remove_archived_parts(1 << 40, 0) == (0, lost)
            assert archive_of(store).kept_bytes == 0
            await fill(store)
            await store.flush()
            await all_archived(store, hot_deleted=True)
            await store.checkpoint()
            # It may have sealed one more.
            await all_archived(store, hot_deleted=True)
            await until(lambda: world.objects() == names_in(store))
            parts = [each async for each in store.list_archived_parts()]
            assert parts[0].place == lost
            assert names_of(parts) == names_in(store)
            assert store.stats()["health"] == []

    run(main())


def test_removing_keeps_what_the_log_may_not_delete(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await all_archived(store)
            assert await store.remove_archived_parts(1 << 40, 0) == (0, 0)
            world.clock.pass_s(DAY_S + 1)
            archiver(store)._wake.set()
            await until(lambda: archive_of(store).hot_deleted_count > 2)
            second = archive_of(store).tail[1]
            assert await store.remove_archived_parts(second.last_sequence + 1, 0) == (0, 2)
            await until(lambda: archive_of(store).swept == 2)
            (first, *_) = [each async for each in store.list_archived_parts()]
            assert first.place == 2

    run(main())
