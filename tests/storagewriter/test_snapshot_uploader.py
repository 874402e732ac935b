"""What one owner puts of its metadata snapshots, what it puts again, and what it deletes."""

from __future__ import annotations

import asyncio
import random

import pytest

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import NotPrimaryError
from storagewriter.snapshot_uploader import (
    BYTES_IN_FLIGHT,
    FILES_AT_ONCE,
    SnapshotFileChangedError,
)
from tests.storagewriter.snapshot_owner import (
    CONTAINER,
    LAG_S,
    MORE,
    OTHER,
    SOME,
    STORE,
    World,
    in_world,
)
from tier2.metadata_manifest import FileContent
from tier2.object_names import metadata_file_name, metadata_manifest_name, parse_metadata_file_name
from tier2.object_storage import ObjectExistsError, StorageUnavailableError
from tier2.unique_ids import new_copy_id


def test_a_file_is_put_once_and_each_snapshot_names_all_of_its_own() -> None:
    async def case(world: World) -> None:
        first, second = await world.put(SOME), await world.put(MORE)
        assert (world.named(first), world.named(second)) == (SOME, MORE)
        assert world.files == [b"one", b"three", b"two"]
        assert world.read_names == ["1.sst", "2.sst", "3.sst"]
        assert first < second

    in_world(case)


def test_a_file_with_other_bytes_is_another_file_though_it_has_the_same_name() -> None:
    async def case(world: World) -> None:
        first, second = await world.put({"CURRENT": b"1"}), await world.put({"CURRENT": b"2"})
        assert (world.named(first), world.named(second)) == ({"CURRENT": b"1"}, {"CURRENT": b"2"})

    in_world(case)


def test_old_manifests_go_at_once_and_files_that_none_names_after_the_lag() -> None:
    async def case(world: World) -> None:
        first = await world.put(SOME)
        second = await world.put(MORE)
        assert await world.uploader.collect_now() == 0
        third = await world.put(OTHER)
        assert await world.uploader.collect_now() == 2
        assert first not in world.storage.bucket.objects
        assert b"one" in world.files
        await asyncio.sleep(LAG_S - 1)
        await world.uploader.collect_now()
        assert b"one" in world.files
        await asyncio.sleep(1)
        await world.uploader.collect_now()
        assert world.files == [b"four", b"three", b"two"]
        assert (world.named(second), world.named(third)) == (MORE, OTHER)

    in_world(case)


def test_nothing_is_deleted_before_two_snapshots_are_kept() -> None:
    async def case(world: World) -> None:
        stray = metadata_file_name(CONTAINER, 1, new_copy_id(STORE, random.Random(5)))
        await world.storage.put(stray, [b"stray"], bytes(16))
        await world.put(SOME)
        assert await world.uploader.collect_now() == 0
        await world.put(MORE)
        assert await world.uploader.collect_now() == 1
        await asyncio.sleep(LAG_S)
        await world.uploader.collect_now()
        assert stray not in world.storage.bucket.objects

    in_world(case)


def test_what_is_of_other_stores_or_later_owners_or_foreign_stays() -> None:
    async def case(world: World) -> None:
        source, other = random.Random(5), "00000000-0000-0000-0000-000000000001"
        strangers = [
            metadata_file_name(CONTAINER, 1, new_copy_id(other, source)),
            metadata_manifest_name(CONTAINER, 1, 1, new_copy_id(other, source)),
            metadata_file_name(CONTAINER, 2, new_copy_id(STORE, source)),
            metadata_manifest_name(CONTAINER, 2, 1, new_copy_id(STORE, source)),
            metadata_file_name(CONTAINER + 1, 1, new_copy_id(STORE, source)),
            metadata_manifest_name(CONTAINER, 1, 1, bytes(16)) + "0",
        ]
        for name in strangers:
            await world.storage.put(name, [b"x"], new_copy_id(other, source))
        for _ in range(2):
            await world.put(SOME)
        assert await world.uploader.collect_now() == 0
        assert set(strangers) <= world.storage.bucket.objects.keys()

    in_world(case)


@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("failures", [1, 2, 3, 5])
def test_a_put_of_unknown_outcome_is_done_again_under_the_same_name(
    failures: int, after_effect: bool
) -> None:
    async def case(world: World) -> None:
        unique_id = world.uploader.new_id()
        world.number += 1
        world.storage.fail("put", failures, after_effect=after_effect)
        name = ""
        for _ in range(failures + 1):
            try:
                name = await world.put(SOME, unique_id)
            except StorageUnavailableError:
                continue
        assert world.named(name) == SOME
        assert len(world.storage.bucket.objects) == 3
        assert await world.put(SOME, unique_id) == name

    in_world(case)


def test_a_snapshot_in_doubt_is_resolved_before_the_next() -> None:
    async def case(world: World) -> None:
        await world.put(SOME)
        await world.put(MORE)
        world.storage.fail("put", after_effect=True)
        with pytest.raises(StorageUnavailableError):
            await world.put(SOME)
        doubted = f"{world.number:016x}-"
        await world.uploader.collect_now()
        # It is there, and may be what a successor takes over.
        (in_doubt,) = [name for name in world.storage.bucket.objects if doubted in name]
        assert world.named(in_doubt) == SOME
        last = await world.put(OTHER)
        assert [name for name in world.storage.bucket.objects if doubted in name] == [in_doubt]
        assert (world.named(in_doubt), world.named(last)) == (SOME, OTHER)

    in_world(case)


def test_the_files_of_a_snapshot_in_doubt_and_of_a_put_under_way_are_spared() -> None:
    async def case(world: World) -> None:
        for files in ({"a": b"a"}, {"b": b"b"}):
            await world.put(files)
        late = {"5.sst": b"five"}
        world.number += 1
        unique_id = world.uploader.new_id()
        # The file is there, the manifest in doubt: it may land at any time.

        async def lose_manifests(name: str, _size: int) -> None:
            if parse_metadata_file_name(name) is None:
                raise StorageUnavailableError(name, "no answer")

        world.storage.before_put = lose_manifests
        with pytest.raises(StorageUnavailableError):
            await world.put(late, unique_id)
        for _ in range(2):
            await world.uploader.collect_now()
            await asyncio.sleep(LAG_S)
        world.storage.before_put = None
        assert world.named(await world.put(late, unique_id)) == late

    in_world(case)


def test_a_pass_beside_a_put_spares_what_the_put_has_put() -> None:
    async def case(world: World) -> None:
        for files in ({"a": b"a"}, {"b": b"b"}):
            await world.put(files)
        files = {"6.sst": b"six", "7.sst": b"seven"}
        contents = [FileContent(name, len(data), crc32c(data)) for name, data in files.items()]
        passed = asyncio.Event()

        async def read(name: str, offset: int, length: int) -> bytes:
            if name == "7.sst":
                await passed.wait()
            return files[name][offset : offset + length]

        async def put() -> str:
            return await world.uploader.put(contents, 99, world.uploader.new_id(), read)

        putting = asyncio.get_running_loop().create_task(put())
        await asyncio.sleep(1)
        assert b"six" in world.files
        for _ in range(2):
            await world.uploader.collect_now()
            await asyncio.sleep(LAG_S)
        passed.set()
        assert world.named(await putting) == files

    in_world(case)


def test_what_was_kept_when_the_log_was_asked_stays_though_newer_ones_come_meanwhile() -> None:
    async def case(world: World) -> None:
        await world.put({"a": b"a"})
        newest = await world.put({"b": b"b"})

        async def more() -> None:
            # A successor that opens the log now takes over what is newest now.
            for number in range(3):
                await world.put({"c": b"%d" % number})

        world.asked = more
        await world.uploader.collect_now()
        world.asked = None
        assert world.named(newest) == {"b": b"b"}

    in_world(case)


def test_a_stale_owner_finds_nothing_unwanted_and_its_run_ends() -> None:
    async def case(world: World) -> None:
        async def stale() -> None:
            raise NotPrimaryError(CONTAINER)

        for files in (SOME, MORE, OTHER):
            await world.put(files)
        world.asked = stale
        with pytest.raises(NotPrimaryError):
            await world.uploader.run()
        assert len(world.storage.bucket.objects) == 7

    in_world(case)


def test_snapshots_that_the_log_may_begin_with_stay_however_many_there_are() -> None:
    async def case(world: World) -> None:
        world.truncates = False
        made, numbers = [], []
        for number in range(5):
            made.append(await world.put({"x": b"%d" % number, "same": b"same"}))
            numbers.append(world.number)
        await world.collect()
        assert [world.named(name)["x"] for name in made] == [b"0", b"1", b"2", b"3", b"4"]
        # The log begins with the second of them.
        world.uploader.keep_from(numbers[1])
        await world.collect()
        assert world.files == [b"1", b"2", b"3", b"4", b"same"]
        assert [world.named(name)["x"] for name in made[1:]] == [b"1", b"2", b"3", b"4"]
        # Of those before its beginning as many stay that there are KEPT.
        world.uploader.keep_from(numbers[4])
        await world.collect()
        assert world.files == [b"3", b"4", b"same"]
        with pytest.raises(ValueError, match="never begins before"):
            world.uploader.keep_from(numbers[3])

    in_world(case)


def test_a_local_file_that_is_not_what_was_said_is_not_put() -> None:
    async def case(world: World) -> None:
        for said in (FileContent("x", 3, 1), FileContent("x", 4, crc32c(b"abc"))):

            async def read(_name: str, offset: int, length: int) -> bytes:
                return b"abc"[offset : offset + length]

            world.number += 1
            with pytest.raises(SnapshotFileChangedError):
                await world.uploader.put([said], world.number, world.uploader.new_id(), read)
        assert not world.storage.bucket.objects

    in_world(case)


def test_an_older_state_is_refused_and_a_name_that_is_taken_is_given_up() -> None:
    async def case(world: World) -> None:
        name = await world.put(SOME)
        world.number -= 1
        with pytest.raises(ValueError, match="would not be behind"):
            await world.put(SOME)
        unique_id = world.uploader.new_id()
        world.number += 1
        taken = metadata_manifest_name(CONTAINER, 1, world.number, unique_id)
        await world.storage.put(taken, [b"x"], bytes(16))
        with pytest.raises(ObjectExistsError):
            await world.put(MORE, unique_id)
        assert world.named(await world.put(MORE)) == MORE
        assert world.named(name) == SOME

    in_world(case)


def test_few_files_and_bounded_bytes_are_in_flight() -> None:
    async def case(world: World) -> None:
        now, most = [0], 0

        async def counted(_name: str, size: int) -> None:
            nonlocal most
            now.append(size)
            most = max(most, sum(now))
            assert len(now) - 1 <= FILES_AT_ONCE
            await asyncio.sleep(1)
            now.remove(size)

        world.storage.before_put = counted
        size = BYTES_IN_FLIGHT // 3
        await world.put({f"{number}.sst": b"%d" % number * size for number in range(7)})
        assert size * 2 <= most <= BYTES_IN_FLIGHT

    in_world(case)
