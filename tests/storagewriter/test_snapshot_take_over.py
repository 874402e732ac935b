"""What an owner takes over of the metadata snapshots there are, and what it then deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.storagewriter.snapshot_owner import (
    LAG_S,
    MORE,
    OTHER,
    SOME,
    World,
    in_world,
)
from tier2.memory_object_storage import MemoryBucket
from tier2.object_names import parse_metadata_file_name
from tier2.object_storage import StorageUnavailableError


def predecessor(bucket: MemoryBucket, *snapshots: Mapping[str, bytes]) -> list[str]:
    """An owner of epoch 1 that put these, and truncated nothing."""
    made: list[str] = []

    async def case(world: World) -> None:
        world.truncates = False
        made.extend([await world.put(files) for files in snapshots])

    in_world(case, World(bucket))
    return made


def test_a_new_owner_puts_only_what_the_snapshot_it_takes_over_lacks() -> None:
    bucket = MemoryBucket()

    async def first(world: World) -> None:
        await world.put(SOME)

    async def second(world: World) -> None:
        (base,) = [name for name in bucket.objects if not parse_metadata_file_name(name)]
        await world.uploader.take_over(base)
        name = await world.put(MORE)
        assert world.read_names == ["3.sst"]
        assert world.named(name) == MORE
        last = await world.put(OTHER)
        await world.uploader.collect_now()
        await asyncio.sleep(LAG_S)
        await world.uploader.collect_now()
        assert world.files == [b"four", b"three", b"two"]
        assert (world.named(name), world.named(last)) == (MORE, OTHER)

    in_world(first, World(bucket))
    in_world(second, World(bucket, epoch=2))


def test_a_file_of_the_snapshot_taken_over_that_is_missing_is_put_again() -> None:
    bucket = MemoryBucket()

    async def first(world: World) -> None:
        await world.put(SOME)

    async def second(world: World) -> None:
        (base,) = [name for name in bucket.objects if not parse_metadata_file_name(name)]
        (lost,) = [name for name, there in bucket.objects.items() if there.data == b"one"]
        del bucket.objects[lost]
        await world.uploader.take_over(base)
        assert world.named(await world.put(SOME)) == SOME
        assert world.read_names == ["1.sst"]
        assert await world.uploader.collect_now() == 0

    in_world(first, World(bucket))
    in_world(second, World(bucket, epoch=2))


def test_the_one_that_the_log_begins_with_is_taken_over_as_well_and_stays_while_it_does() -> None:
    bucket = MemoryBucket()
    first, between, newest = predecessor(bucket, SOME, {"x": b"x"}, MORE)

    async def case(world: World) -> None:
        world.truncates = False
        world.uploader.keep_from(11)
        await world.uploader.take_over(newest, first)
        assert await world.uploader.collect_now() == 0, "none of its own yet"
        await world.put({**SOME, **MORE, **OTHER})
        assert world.read_names == ["4.sst"], "it has the files of both"
        *_, last = [await world.put({"y": b"%d" % number}) for number in range(3)]
        await world.collect()
        assert world.named(first) == SOME
        assert world.named(newest) == MORE
        assert between not in bucket.objects
        world.uploader.keep_from(world.number)
        await world.collect()
        assert world.files == [b"1", b"2"]
        assert world.named(last) == {"y": b"2"}
        assert world.uploader.damage.describe() is None

    in_world(case, World(bucket, epoch=2))


def test_two_snapshots_of_a_predecessor_are_no_reason_to_delete() -> None:
    bucket = MemoryBucket()
    _, first, newest = predecessor(bucket, SOME, MORE, OTHER)

    async def case(world: World) -> None:
        await world.uploader.take_over(newest, first)
        world.uploader.keep_from(12)
        assert await world.uploader.collect_now() == 0
        await world.put({"y": b"y"})
        assert await world.uploader.collect_now() > 0

    in_world(case, World(bucket, epoch=2))


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_nothing_is_deleted_while_the_log_begins_with_a_snapshot_that_cannot_be_read(
    how: str,
) -> None:
    bucket = MemoryBucket()
    first, newest = predecessor(bucket, SOME, MORE)
    manifest = bucket.objects.pop(first)
    if how == "damaged":
        bucket.objects[first] = manifest._replace(data=manifest.data[:-1] + b"?")
    there = dict(bucket.objects)

    async def case(world: World) -> None:
        world.truncates = False
        await world.uploader.take_over(newest, first)
        world.uploader.keep_from(11)
        health = world.uploader.damage.describe()
        assert health is not None
        assert first in health
        *_, last = [await world.put({**MORE, "y": b"%d" % number}) for number in range(4)]
        assert world.read_names == ["y"] * 4
        await world.collect()
        assert there.items() <= bucket.objects.items()
        # A restore, or an operator, may bring the manifest back: all that it names is there.
        bucket.objects[first] = manifest
        assert world.named(first) == SOME
        assert world.uploader.damage.describe() == health
        world.uploader.keep_from(world.number)
        assert world.uploader.damage.describe() is None
        await world.collect()
        assert first not in bucket.objects
        assert world.files == [b"2", b"3", b"three", b"two"]
        assert world.named(last) == {**MORE, "y": b"3"}

    in_world(case, World(bucket, epoch=2))


def test_of_a_snapshot_that_the_log_begins_with_what_is_left_stays() -> None:
    bucket = MemoryBucket()
    first, newest = predecessor(bucket, SOME, OTHER)
    (lost,) = [name for name, there in bucket.objects.items() if there.data == b"one"]
    del bucket.objects[lost]

    async def case(world: World) -> None:
        world.truncates = False
        await world.uploader.take_over(newest, first)
        world.uploader.keep_from(11)
        assert "1 of its 2 files are not there" in (world.uploader.damage.describe() or "")
        for number in range(3):
            await world.put({"y": b"%d" % number})
        await world.collect()
        assert first in bucket.objects
        assert world.files == [b"0", b"1", b"2", b"four", b"two"]
        world.uploader.keep_from(world.number)
        await world.collect()
        assert world.files == [b"1", b"2"]
        assert world.uploader.damage.describe() is None

    in_world(case, World(bucket, epoch=2))


def test_a_newest_snapshot_that_cannot_be_read_is_done_without() -> None:
    bucket = MemoryBucket()
    first, newest = predecessor(bucket, SOME, MORE)
    del bucket.objects[newest]

    async def case(world: World) -> None:
        await world.uploader.take_over(newest, first)
        assert world.uploader.damage.describe() is not None
        made = await world.put({**SOME, **MORE})
        assert world.read_names == ["3.sst"]
        assert world.uploader.damage.describe() is None
        await world.collect()
        # The two of SOME stay with the snapshot that has them.
        assert (world.named(first), world.named(made)) == (SOME, {**SOME, **MORE})

    in_world(case, World(bucket, epoch=2))


def test_a_take_over_is_tried_again_if_tier_2_does_not_answer() -> None:
    bucket = MemoryBucket()
    first, newest = predecessor(bucket, SOME, MORE)

    async def case(world: World) -> None:
        for _ in range(2):
            world.storage.fail("head", 1)
            with pytest.raises(StorageUnavailableError):
                await world.uploader.take_over(newest, first)
        assert world.uploader.damage.describe() is None
        await world.uploader.take_over(newest, first)
        await world.put({**SOME, **MORE})
        assert not world.read_names
        with pytest.raises(ValueError, match="no predecessor's in epoch 2"):
            await world.uploader.take_over(newest.replace(f"{1:016x}", f"{2:016x}"))

    in_world(case, World(bucket, epoch=2))


def test_the_newest_that_is_there_is_found_from_the_end_with_a_request_each() -> None:
    bucket = MemoryBucket()
    names = predecessor(bucket, SOME, MORE, OTHER)

    async def case(world: World) -> None:
        for there, requests in ((3, 1), (2, 2), (1, 3), (0, 3)):
            before = world.storage.heads
            expected = names[there - 1] if there else None
            assert await world.uploader.find_newest(names) == expected
            assert world.storage.heads - before == requests
            if expected is not None:
                del bucket.objects[expected]
        assert await world.uploader.find_newest([]) is None
        world.storage.fail("head", 1)
        with pytest.raises(StorageUnavailableError):
            await world.uploader.find_newest(names)

    in_world(case, World(bucket, epoch=2))
