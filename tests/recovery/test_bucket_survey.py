"""Looking through a bucket: every block is found with few requests, and an outage is never taken for absence."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from recovery.bucket_survey import list_bucket, newest_checkpoint, survey
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.restore_report import FoundBlock
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.checkpoint_object import checkpoint_name
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import new_unique_id, object_name
from tier2.object_storage import StoredObject

CHANCE = random.Random(5)


def in_bucket(case: Callable[[MemoryObjectStorage], Awaitable[None]]) -> None:
    async def whole() -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        await case(MemoryObjectStorage(runtime, page_objects=3))

    run_virtual(whole())


async def put(
    storage: MemoryObjectStorage, blocks: Sequence[tuple[int, int, int, str]], *, container_id: int = 2, epoch: int = 4
) -> StoredObject:
    """An object of blocks (segment id, start offset, length, name)."""
    builder = ObjectBuilder(container_id, epoch, 64)
    for segment_id, start, length, name in blocks:
        builder.add(segment_id, start, [bytes(length)], segment_name=name)
    unique_id = new_unique_id(CHANCE)
    name = object_name(2, 4, "flush", unique_id)
    await storage.put(name, builder.parts, unique_id)
    stored = await storage.head(name)
    assert stored is not None
    return stored


async def walked(storage: MemoryObjectStorage, *objects: StoredObject) -> tuple[list[FoundBlock], list[str]]:
    seen: list[int] = []
    found = await survey(storage, 2, list(objects), seen.append)
    assert sum(seen) == len(objects)
    return found


def gets(storage: MemoryObjectStorage) -> int:
    return storage.statistics().requests("get")


def plain(blocks: Sequence[FoundBlock]) -> list[tuple[int, int, int, str]]:
    return [(block.segment_id, block.start_offset, block.length, block.segment_name) for block in blocks]


def test_every_block_is_found_whatever_the_sizes() -> None:
    async def case(storage: MemoryObjectStorage) -> None:
        for _ in range(10):
            blocks = [
                (
                    number,
                    CHANCE.randrange(1 << 40),
                    CHANCE.choice((1, 70, 5_000, 400_000)),
                    "n" * CHANCE.randrange(1025),
                )
                for number in range(1, CHANCE.randrange(2, 40))
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
        assert stored.name in damage
        assert "checksum" in damage

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


def test_a_passing_outage_is_waited_for_and_a_lasting_one_ends_the_survey() -> None:
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
        unique_id = new_unique_id(CHANCE)
        await storage.put(checkpoint_name(2, 1, 1, unique_id), [b"no checkpoint"], unique_id)
        checkpoints = (await list_bucket(storage)).checkpoints[2]
        used, damaged = await newest_checkpoint(storage, checkpoints)
        assert (used, len(damaged)) == (None, 1)
        storage.fail("get_range", 100)
        with pytest.raises(TierUnavailableError):
            await newest_checkpoint(storage, checkpoints)

    in_bucket(case)
