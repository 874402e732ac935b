"""The past of a store whose owner removes archived parts, or truncates its log, meanwhile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import segmentstore
from recovery.history_check import HistoryCheck
from recovery.moments import AtSequence, MomentNotKeptError
from recovery.restore_past import restore_past
from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.past_store import open_past
from tests.store.archive_world import World, all_archived, archiver, fill
from tests.store.harness import WorldDisk, run


def test_parts_that_the_owner_removes_meanwhile_are_no_damage(tmp_path: Path) -> None:
    async def main() -> None:
        # A view does not outlast a truncation of the log: there is none but the test's own.
        world = World(tmp_path, checkpoint_operations=1 << 20, checkpoint_bytes=1 << 30)
        settings = {"SEGMENTSTORE_ARCHIVE": world.archive.as_uri()}
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await store.checkpoint()
            await all_archived(store, hot_deleted=True)
            async with await open_past(str(world.folder / "s"), settings, Runtime()) as past:
                (parts,) = past.parts
                listed = [await parts.at(index) for index in parts.kept]
                assert await archiver(store).remove_prefix(listed[3].last_sequence + 1) == 4
                (world.archive / min(sorted(world.objects()), key=_number)).unlink()
                check = HistoryCheck(0, parts, past.open_part)
                found = [each async for each in check.run()]
                assert [each.part.number for each in found] == [each.number for each in listed[4:]]
                assert [one.kind for each in found for one in each.findings] == [
                    "archived-part-missing"
                ]
                assert found[0].is_missing
                assert check.removed == 4
                for part in listed[:4]:
                    at = AtSequence(part.last_sequence)
                    with pytest.raises(MomentNotKeptError):
                        await restore_past(past.source, at, str(tmp_path / "new"), Runtime())

    run(main())


def test_a_log_that_the_owner_truncates_meanwhile_is_viewed_again(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, checkpoint_operations=1 << 20, checkpoint_bytes=1 << 30)
        settings = {"SEGMENTSTORE_ARCHIVE": world.archive.as_uri()}
        location, new = str(world.folder / "s"), str(tmp_path / "new")
        async with world.open() as store:
            loop = asyncio.get_running_loop()
            written = await fill(store)
            last = store._containers[0].metadata.sequence_number
            disk = WorldDisk()
            truncations = 0

            def trap(call: str, path: str) -> None:
                # The reader is in the middle of a file of the log, in a thread of its own.
                nonlocal truncations
                if call == "pread" and f"{os.sep}log{os.sep}" in path and path.endswith(".log"):
                    disk.heal()
                    truncations += 1
                    asyncio.run_coroutine_threadsafe(_truncate(store), loop).result()

            disk.trap = trap
            async with await open_past(location, settings, Runtime(disk=disk)) as past:
                disk.trap = trap
                report = await restore_past(past.source, AtSequence(last), new, Runtime())
            assert (report.losses, report.findings) == ([], [])
            assert truncations == 2
        async with segmentstore.open(new, runtime=world.runtime) as restored:
            assert await restored.read("x", 0, len(written)) == written

    run(main())


async def _truncate(store: SegmentStore) -> None:
    """The log's files are removed, or used again."""
    await fill(store, "y")
    await store.flush()
    await store.checkpoint()
    await all_archived(store, hot_deleted=True)
    await fill(store, "y")


def _number(name: str) -> int:
    """Of the ledger of an archived object."""
    return int(name.removesuffix("-index").rpartition("-")[2])
