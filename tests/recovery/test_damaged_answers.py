"""A scan of a bucket whose server gives a wrong bit: what is whole there is not called damaged."""

from __future__ import annotations

import random
import uuid

import pytest

from durablelog.checkpoint_codec import encode_checkpoint
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from recovery.restore_report import CheckpointUsed
from recovery.tier2_scan import list_bucket, newest_metadata, scan
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.block_reader import FETCHES_MAX
from tier2.checkpoint_object import encode_checkpoint_object
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import checkpoint_name, object_name
from tier2.unique_ids import new_copy_id, new_unique_id

RNG = random.Random(11)
STORE = uuid.UUID(int=7)


class WrongBits(MemoryObjectStorage):
    """From the answer `first` on, `count` of them have a wrong bit at `place`."""

    first = count = place = answers = 0

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = bytearray(await super().get_range(name, offset, length))
        if self.first <= self.answers < self.first + self.count:
            data[min(self.place, len(data) - 1)] ^= 4
        self.answers += 1
        return bytes(data)

    def give_wrong(self, count: int, place: int, first: int = 0) -> None:
        self.count, self.place, self.first, self.answers = count, place, first, 0


def storage_of() -> WrongBits:
    return WrongBits(Runtime(clock=LoopClock(), random=RNG, executor=inline_executor))


@pytest.mark.parametrize("place", [0, 5, 20, 60, 4000])
def test_blocks_behind_a_damaged_answer_are_found(place: int) -> None:
    async def main() -> None:
        storage = storage_of()
        builder = ObjectBuilder(2, 4, 64)
        for number in range(1, 7):
            builder.add(number, 0, [bytes(9000 * (number % 3) + 50)], segment_name=f"s{number}")
        unique_id = new_unique_id(RNG)
        name = object_name(2, 4, "flush", unique_id)
        await storage.put(name, builder.parts, unique_id)
        stored = await storage.head(name)
        assert stored is not None
        whole = await scan(storage, 2, [stored], lambda _: None)
        assert (len(whole[0]), whole[1]) == (6, [])
        for first in range(storage.answers):
            storage.give_wrong(FETCHES_MAX - 1, place, first)
            assert await scan(storage, 2, [stored], lambda _: None) == whole
        storage.give_wrong(FETCHES_MAX, 0)
        found, (damage,) = await scan(storage, 2, [stored], lambda _: None)
        assert (found, damage.object_name) == ([], name)

    run_virtual(main())


@pytest.mark.parametrize("place", [0, 20, 60, 1 << 20])
def test_the_newest_copy_of_the_metadata_is_used_behind_a_damaged_answer(place: int) -> None:
    async def main() -> None:
        storage = storage_of()
        for number in (5, 9):
            unique_id = new_copy_id(STORE, RNG)
            metadata = ContainerMetadata(2)
            metadata.sequence_number = number
            copy = encode_checkpoint_object(
                store_id=STORE,
                containers=3,
                container_id=2,
                epoch=1,
                sequence_number=number,
                time_ms=number,
                blob=encode_checkpoint(metadata),
            )
            await storage.put(checkpoint_name(2, 1, number, unique_id), copy, unique_id)
        copies = (await list_bucket(storage)).checkpoints[2]
        for count, expected in ((FETCHES_MAX - 1, 9), (FETCHES_MAX, 5)):
            storage.give_wrong(count, place)
            used, damaged = await newest_metadata(storage, copies, (), _no_snapshot)
            assert used is not None
            assert (used.sequence_number, len(damaged)) == (expected, expected == 5)

    run_virtual(main())


async def _no_snapshot(name: str) -> CheckpointUsed:
    raise AssertionError(name)
