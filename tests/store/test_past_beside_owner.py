"""The past of a store whose owner removes archived parts while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.history_check import HistoryCheck
from recovery.moments import AtSequence, MomentNotKeptError
from recovery.restore_past import restore_past
from segmentstore.contracts.runtime import Runtime
from segmentstore.past_store import open_past
from tests.store.archive_world import World, all_archived, archiver, fill
from tests.store.harness import run


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


def _number(name: str) -> int:
    """Of the ledger of an archived object."""
    return int(name.removesuffix("-index").rpartition("-")[2])
