"""The past of a store, read from an archive that now and then does not answer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import segmentstore
from recovery.history_check import HistoryCheck
from recovery.moments import AtSequence
from recovery.restore_past import restore_past
from segmentstore.past_store import open_past
from tests.store.archive_world import World, all_archived, fill
from tests.store.harness import run

PATHS = 4


def paths_fail_once(world: World) -> set[str]:
    """The first few of the archive; gives those that have."""
    failed: set[str] = set()

    def trap(_call: str, path: str) -> OSError | None:
        if f"{os.sep}archive{os.sep}" not in path or path in failed or len(failed) == PATHS:
            return None
        failed.add(path)
        return OSError(errno.EIO, "away", path)

    world.disk.trap = trap
    return failed


def test_one_answer_that_does_not_come_ends_neither_a_check_nor_a_restore(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, deletion_lag_s=0.0)
        async with world.open() as store:
            written = await fill(store, count=80)
            last = store._containers[0].metadata.sequence_number
            await store.flush()
            await store.checkpoint()
            await all_archived(store, hot_deleted=True)
        settings = {"SEGMENTSTORE_ARCHIVE": world.archive.as_uri()}
        location = str(world.folder / "s")
        failed = paths_fail_once(world)
        async with await open_past(location, settings, world.runtime) as past:
            (parts,) = past.parts
            check = HistoryCheck(0, parts, past.open_part)
            checked = [each async for each in check.run()]
            assert len(checked) > 3
            assert not [finding for each in checked for finding in each.findings]
            assert len(failed) == PATHS
            failed.clear()
            new = str(tmp_path / "new")
            report = await restore_past(past.source, AtSequence(last), new, world.runtime)
            assert (report.losses, report.findings) == ([], [])
        assert failed
        world.disk.heal()
        async with segmentstore.open(new, runtime=world.runtime) as restored:
            assert await restored.read("x", 0, len(written)) == written

    run(main())
