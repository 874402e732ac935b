"""A restore from the Tier 2 of a store that runs. Its owner deletes copies of the metadata that
were listed: no younger one is passed over for that.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.restore import restore_store
from recovery.restore_report import CheckpointUsed
from recovery.tier2_scan import (
    LISTINGS_MAX,
    MetadataRemovedError,
    list_bucket,
    newest_metadata,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.past_store import open_lost
from tests.recovery.test_restore import Place, fill, settled
from tests.store.harness import WorldDisk, run
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.metadata_snapshots import SnapshotObjectMissingError
from tier2.object_names import checkpoint_name, metadata_manifest_name
from tier2.object_storage import ObjectNotFoundError
from tier2.unique_ids import new_unique_id


def with_copies(place: Place) -> list[Path]:
    """A closed store with three copies of its metadata, of which the last two know of a seal."""

    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a")
            await settled(store, place)
            await store.seal("a")
            for name in "bc":
                await store.create_segment(name)
                await settled(store, place)

    run(use())
    return place.copies()[:3]


def beside_an_owner(place: Place, copies: list[Path], times: int) -> Runtime:
    """Only the first copy is there. So often the one that is there, and is about to be read, is
    deleted, and the next one is put.
    """
    contents = [copy.read_bytes() for copy in copies]
    place.forget_copies(lambda copy: copy == copies[0])
    disk = WorldDisk()
    left, turn = times, 0

    def trap(call: str, path: str) -> None:
        nonlocal left, turn
        if left and call == "open" and path == str(copies[turn]):
            left, old, turn = left - 1, copies[turn], (turn + 1) % len(copies)
            copies[turn].write_bytes(contents[turn])
            old.unlink()

    disk.trap = trap
    return Runtime(disk=disk)


def test_a_copy_that_was_deleted_since_the_listing_is_no_damaged_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    runtime = beside_an_owner(place, with_copies(place), LISTINGS_MAX - 1)
    report = run(restore_store(place.url, str(place.new), runtime))
    (container,) = report.containers
    assert container.checkpoint is not None
    assert container.damaged == []
    assert {segment.name for segment in container.segments} == {"a", "b", "c"}


def test_an_owner_that_deletes_each_copy_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    runtime = beside_an_owner(place, with_copies(place), LISTINGS_MAX)
    with pytest.raises(MetadataRemovedError, match="so a store runs there: try again"):
        run(restore_store(place.url, str(place.new), runtime))
    assert not place.new.exists()


def test_the_past_of_a_lost_store_is_found_in_a_copy_that_came_since(tmp_path: Path) -> None:
    place = Place(tmp_path)
    runtime = beside_an_owner(place, with_copies(place), LISTINGS_MAX - 1)

    async def main() -> None:
        archive = (tmp_path / "archive").as_uri()
        async with await open_lost(place.url, archive, runtime) as past:
            now = past.source.containers[0].now
            assert now is not None
            assert {segment.name for segment in now.all_records()} == {"a", "b", "c"}

    run(main())


def test_metadata_that_a_listing_shows_still_are_damaged() -> None:
    async def main() -> None:
        source = random.Random(1)
        storage = MemoryObjectStorage(
            Runtime(clock=LoopClock(), random=source, executor=inline_executor)
        )

        async def no_manifest(name: str) -> CheckpointUsed:
            raise SnapshotObjectMissingError(name, "there is no such manifest")

        unique_id = new_unique_id(source)
        await storage.put(checkpoint_name(2, 1, 1, unique_id), [b"copy"], unique_id)
        await storage.put(metadata_manifest_name(2, 1, 1, unique_id), [b"x"], unique_id)
        bucket = await list_bucket(storage)
        there = (bucket.checkpoints[2], bucket.snapshots[2])
        storage.fail("get_range", 1, lambda name: ObjectNotFoundError(name, "no such object"))
        used, damaged = await newest_metadata(storage, *there, no_manifest)
        assert (used, len(damaged)) == (None, 2)
        await storage.delete(there[1][0].name)
        with pytest.raises(MetadataRemovedError, match=there[1][0].name):
            await newest_metadata(storage, (), there[1], no_manifest)

    run_virtual(main())
