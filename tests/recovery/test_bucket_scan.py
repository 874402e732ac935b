"""Reading through a bucket: every block is found with few requests, and an outage is never taken
for absence.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.restore_report import CheckpointUsed, Damage, FoundBlock
from recovery.tier2_scan import Bucket, list_bucket, newest_metadata, scan, unknown_objects
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.object_states import GarbageObject, LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import ObjectKind, checkpoint_name, object_name
from tier2.object_storage import StoredObject
from tier2.unique_ids import new_unique_id

RNG = random.Random(5)


async def _no_snapshot(name: str) -> CheckpointUsed:
    raise AssertionError(name)


def in_bucket(case: Callable[[MemoryObjectStorage], Awaitable[None]]) -> None:
    async def whole() -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        await case(MemoryObjectStorage(runtime, page_objects=3))

    run_virtual(whole())


async def put(
    storage: MemoryObjectStorage,
    blocks: Sequence[tuple[int, int, int, str]],
    *,
    container_id: int = 2,
    epoch: int = 4,
) -> StoredObject:
    """An object of blocks (segment id, start offset, length, name)."""
    builder = ObjectBuilder(container_id, epoch, 64)
    for segment_id, start, length, name in blocks:
        builder.add(segment_id, start, [bytes(length)], segment_name=name)
    unique_id = new_unique_id(RNG)
    name = object_name(2, 4, "flush", unique_id)
    await storage.put(name, builder.parts, unique_id)
    stored = await storage.head(name)
    assert stored is not None
    return stored


async def walked(
    storage: MemoryObjectStorage, *objects: StoredObject
) -> tuple[list[FoundBlock], list[Damage]]:
    seen: list[int] = []
    found = await scan(storage, 2, list(objects), seen.append)
    assert sum(seen) == len(objects)
    return found


def gets(storage: MemoryObjectStorage) -> int:
    return storage.statistics().requests("get")


def plain(blocks: Sequence[FoundBlock]) -> list[tuple[int, int, int, str]]:
    return [
        (block.segment_id, block.start_offset, block.length, block.segment_name) for block in blocks
    ]


def test_every_block_is_found_whatever_the_sizes() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        for _ in range(10):
            blocks = [
                (
                    number,
                    RNG.randrange(1 << 40),
                    RNG.choice((1, 70, 5_000, 400_000)),
                    "n" * RNG.randrange(1025),
                )
                for number in range(1, RNG.randrange(2, 40))
            ]
            found, damaged = await walked(storage, await put(storage, blocks))
            assert (plain(found), damaged) == (blocks, [])

    in_bucket(case)


def test_a_large_block_costs_one_request_and_many_small_ones_few() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        await walked(storage, await put(storage, [(1, 0, 900_000, "a")]))
        assert gets(storage) == 1
        small = [(number, 7, 20, f"segment {number}") for number in range(1, 5_001)]
        stored = await put(storage, small)
        found, _ = await walked(storage, stored)
        assert plain(found) == small
        assert gets(storage) - 1 <= stored.size // (256 * 1024) + 3

    in_bucket(case)


def test_what_lies_before_damage_counts_and_the_place_is_said() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        blocks = [(1, 0, 100, "a"), (2, 0, 100, "b"), (3, 0, 100, "c")]
        stored = await put(storage, blocks)
        found, _ = await walked(storage, stored)
        held = storage.bucket.objects[stored.name]
        spoiled = bytearray(held.data)
        spoiled[found[1].block_offset + 20] ^= 1
        storage.bucket.objects[stored.name] = held._replace(data=bytes(spoiled))
        found, (damage,) = await walked(storage, stored)
        assert plain(found) == blocks[:1]
        assert stored.name in str(damage)
        assert "checksum" in str(damage)

    in_bucket(case)


def test_a_block_whose_end_is_missing_is_reported_by_its_header() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        blocks = [(1, 0, 100, "a"), (2, 7, 300, "b"), (3, 0, 100, "c")]
        stored = await put(storage, blocks)
        found, _ = await walked(storage, stored)
        held = storage.bucket.objects[stored.name]
        short = held.data[: found[2].block_offset - 1]
        storage.bucket.objects[stored.name] = held._replace(data=short)
        kept, (damage,) = await walked(storage, stored._replace(size=len(short)))
        assert plain(kept) == blocks[:1]
        assert damage.cut is not None
        assert plain([damage.cut]) == blocks[1:2]
        assert damage.position == found[1].block_offset

    in_bucket(case)


def test_blocks_that_cannot_be_in_their_object_are_not_believed() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        for other in (
            await put(storage, [(1, 0, 9, "a")], container_id=3),
            await put(storage, [(1, 0, 9, "a")], epoch=5),
        ):
            found, damaged = await walked(storage, other)
            assert (found, len(damaged)) == ([], 1)

    in_bucket(case)


def test_a_passing_outage_is_waited_for_and_a_lasting_one_ends_the_scan() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        stored, *_ = [await put(storage, [(1, 0, 9, "a")]) for _ in range(8)]
        storage.fail("list", 2)
        bucket = await list_bucket(storage)
        assert (len(bucket.objects[2]), bucket.epoch, bucket.foreign) == (8, 4, 0)
        storage.fail("get_range", 2)
        assert len((await walked(storage, stored))[0]) == 1
        storage.fail("get_range", 100)
        with pytest.raises(TierUnavailableError):
            await walked(storage, stored)
        storage.heal()
        storage.fail("list", 100)
        with pytest.raises(TierUnavailableError):
            await list_bucket(storage)

    in_bucket(case)


def test_a_checkpoint_that_cannot_be_had_is_not_taken_for_a_damaged_one() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        unique_id = new_unique_id(RNG)
        await storage.put(checkpoint_name(2, 1, 1, unique_id), [b"no checkpoint"], unique_id)
        checkpoints = (await list_bucket(storage)).checkpoints[2]
        used, damaged = await newest_metadata(storage, checkpoints, (), _no_snapshot)
        assert (used, len(damaged)) == (None, 1)
        storage.fail("get_range", 100)
        with pytest.raises(TierUnavailableError):
            await newest_metadata(storage, checkpoints, (), _no_snapshot)

    in_bucket(case)


def test_an_object_of_a_job_may_be_committed_in_any_later_epoch() -> None:
    def named(epoch: int, kind: ObjectKind) -> str:
        job_id = "00000000feedbeef" if kind == "compaction" else None
        return object_name(2, epoch, kind, new_unique_id(RNG), job_id=job_id)

    metadata = ContainerMetadata(2)
    checkpoint = CheckpointUsed(
        name="c",
        store_id="s",
        containers=1,
        epoch=5,
        sequence_number=9,
        time_ms=10**9,
        metadata=metadata,
    )
    kinds: tuple[ObjectKind, ...] = ("flush", "consolidation", "compaction")
    older, newer = [named(4, kind) for kind in kinds], [named(5, kind) for kind in kinds]
    young, settled, garbage = (named(4, "compaction") for _ in range(3))
    metadata.objects[young] = LiveObject(ObjectRecord(young, 1, checkpoint.time_ms), 1, 1)
    metadata.objects[settled] = LiveObject(ObjectRecord(settled, 1, 0), 1, 1)
    metadata.garbage[garbage] = GarbageObject(ObjectRecord(garbage, 1, 0), 0)
    objects = {name: StoredObject(name, 1, 0) for name in (*older, *newer, young, settled, garbage)}
    unknown, orphans = unknown_objects(objects, checkpoint)
    assert [stored.name for stored in unknown] == [older[2], *newer, young]
    assert orphans == 2


def test_where_an_object_is_missing_garbage_and_orphans_are_checked_too() -> None:
    """They may hold the same bytes: an object that was consolidated stays for the deletion lag."""

    def named(epoch: int) -> str:
        return object_name(2, epoch, "flush", new_unique_id(RNG))

    metadata = ContainerMetadata(2)
    checkpoint = CheckpointUsed(
        name="c",
        store_id="s",
        containers=1,
        epoch=5,
        sequence_number=9,
        time_ms=10**9,
        metadata=metadata,
    )
    live, garbage, orphan = named(4), named(4), named(4)
    metadata.objects[live] = LiveObject(ObjectRecord(live, 7, 0), 1, 1)
    metadata.garbage[garbage] = GarbageObject(ObjectRecord(garbage, 1, 0), 0)
    spare = {name: StoredObject(name, 1, 0) for name in (garbage, orphan)}
    assert unknown_objects({live: StoredObject(live, 7, 0), **spare}, checkpoint) == ([], 1)
    assert unknown_objects(spare, checkpoint) == (list(spare.values()), 0)
    short = StoredObject(live, 6, 0)
    assert unknown_objects({live: short, **spare}, checkpoint) == ([short, *spare.values()], 0)


def test_messages_of_jobs_are_not_foreign() -> None:
    bucket = Bucket()
    message = "mailbox/00000000/00000000feedbeef/group-1"
    for name in (f"{message}.json", f"{message}.answer.json", "mailbox/else", "x/y"):
        bucket.add(StoredObject(name, 1, 0))
    assert (bucket.foreign, bucket.is_empty) == (2, True)
