"""Objects of a store's archive that are of no part are named, and nothing else is."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest

from recovery.archive_orphans import archive_orphans
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding, Severity
from segmentstore.contracts.runtime import Runtime
from segmentstore.past_store import open_past
from tests.store.archive_world import World, all_archived, archive_of, archiver, fill
from tests.store.harness import run
from tier2.archive.archive_names import STORE_KEY, archived_data_name
from tier2.memory_object_storage import MemoryObjectStorage

DAY_S = 86400


def left_behind(world: World, uid: uuid.UUID, age_s: float, **changed: str) -> str:
    """A copy of an archived object under another attempt's name, so old."""
    source = min(name for name in world.objects() if not name.endswith("-index"))
    name = archived_data_name(int(source.rpartition("-")[2]), uid.bytes)
    for folder in (world.archive, world.archive / "~metadata"):
        shutil.copyfile(folder / source, folder / name)
    described = world.archive / "~metadata" / name
    text = described.read_text(encoding="utf-8")
    assert STORE_KEY in text
    for old, new in changed.items():
        text = text.replace(old.replace("_", "-"), new)
    described.write_text(text, encoding="utf-8")
    then = Runtime().clock.time_ms() / 1000 - age_s
    os.utime(world.archive / name, (then, then))
    return name


async def found_in(world: World) -> list[Finding]:
    settings = {"SEGMENTSTORE_ARCHIVE": world.archive.as_uri()}
    runtime = Runtime()
    async with await open_past(str(world.folder / "s"), settings, runtime) as past:
        return [each async for each in past.archive_orphans(runtime.clock.time_ms())]


def test_what_a_cut_off_owner_left_is_named_a_day_later(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            await fill(store)
            await all_archived(store)
        for name in world.objects():
            then = Runtime().clock.time_ms() / 1000 - 9 * DAY_S
            os.utime(world.archive / name, (then, then))
        assert await found_in(world) == []
        left_behind(world, uuid.UUID(int=1), DAY_S / 2)
        left_behind(world, uuid.UUID(int=2), 2 * DAY_S, segmentstore_store="another")
        name = left_behind(world, uuid.UUID(int=3), 2 * DAY_S)
        (orphan,) = await found_in(world)
        assert orphan[:3] == (Severity.NOTE, "archive-orphan", name)
        assert "of container 0 that no part names" in orphan.detail

    run(main())


def test_a_part_is_found_by_its_number(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            await fill(store)
            await all_archived(store, hot_deleted=True)
            before = archive_of(store).tail[2].last_sequence
            assert await archiver(store).remove_prefix(before) == 2
        settings = {"SEGMENTSTORE_ARCHIVE": world.archive.as_uri()}
        async with await open_past(str(world.folder / "s"), settings, Runtime()) as past:
            (parts,) = past.parts
            listed = [await parts.at(index) for index in parts.kept]
            assert len(listed) > 3
            assert [await parts.find_number(part.number) for part in listed] == listed
            for number in (0, listed[0].number - 1, listed[-1].number + 1):
                assert await parts.find_number(number) is None

    run(main())


def test_an_archive_that_does_not_answer_is_no_damage_and_no_bug() -> None:
    async def main() -> None:
        archive = MemoryObjectStorage(Runtime())
        archive.fail("list")
        with pytest.raises(TierUnavailableError, match="archive is not available"):
            [each async for each in archive_orphans(archive, str(uuid.uuid4()), set(), 0)]

    run(main())
