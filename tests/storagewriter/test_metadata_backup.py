"""The copies of the metadata in Tier 2: when they are written, how many stay, and that nothing
waits for them.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from durablelog.checkpoint_codec import decode_checkpoint
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.metadata_backup import INTERVAL_S, KEPT, MetadataBackup
from tests.support.loop_clock import LoopClock
from tier2.checkpoint_object import CheckpointHeader, parse_checkpoint_object
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_names import checkpoint_name, checkpoint_prefix
from tier2.unique_ids import new_copy_id

STORE = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
CONTAINER = 7


class World:
    """One container's metadata and a bucket; everything in virtual time."""

    def __init__(self, bucket: MemoryBucket | None = None, epoch: int = 1) -> None:
        self.runtime = Runtime(
            clock=LoopClock(), random=random.Random(epoch), executor=inline_executor
        )
        self.storage = MemoryObjectStorage(self.runtime, bucket)
        self.metadata = ContainerMetadata(CONTAINER)
        self.metadata.sequence_number = 10 * epoch
        source = SimpleNamespace(metadata=self.metadata, epoch=epoch)
        self.backup = MetadataBackup(source, self.storage, STORE, 9, self.runtime)

    def change(self) -> None:
        self.metadata.sequence_number += 1

    @property
    def names(self) -> list[str]:
        return sorted(self.storage.bucket.objects)

    def read(self, name: str) -> tuple[CheckpointHeader, ContainerMetadata]:
        header, blob = parse_checkpoint_object(self.storage.bucket.objects[name].data, name)
        return header, decode_checkpoint(blob)

    @property
    def puts(self) -> int:
        return self.storage.statistics().requests("put")


def in_world(
    case: Callable[[World], Awaitable[None]], bucket: MemoryBucket | None = None, epoch: int = 1
) -> World:
    worlds: list[World] = []

    async def whole() -> None:
        world = World(bucket, epoch)
        worlds.append(world)
        try:
            await case(world)
        finally:
            await world.backup.stop()

    run_virtual(whole())
    return worlds[0]


def test_the_first_copy_is_written_at_the_start_and_says_what_it_is() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1)
        (name,) = world.names
        header, metadata = world.read(name)
        assert (str(header.store_id), header.containers, header.container_id) == (
            STORE,
            9,
            CONTAINER,
        )
        assert (header.epoch, header.sequence_number, metadata.sequence_number) == (1, 10, 10)

    in_world(case)


def test_requests_that_come_soon_become_one_copy_of_what_is_newest_then() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1)
        for _ in range(20):
            world.change()
            world.backup.request()
            await asyncio.sleep(1)
        assert world.puts == 1
        await asyncio.sleep(INTERVAL_S)
        assert world.puts == 2
        assert world.read(world.names[-1])[1].sequence_number == 30

    in_world(case)


def test_metadata_without_their_idle_segments_are_no_copy() -> None:
    """Asked for before any segment was idle, and due afterwards."""

    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1)
        world.change()
        world.backup.request()
        await asyncio.sleep(1)
        world.metadata.idle = 1
        await asyncio.sleep(INTERVAL_S)
        await world.backup.finish(5.0)
        assert world.puts == 1
        assert world.backup.health.describe() is None
        world.metadata.idle = 0
        await world.backup.finish(5.0)
        assert world.puts == 2

    in_world(case)


def test_what_is_asked_for_now_does_not_wait_and_what_is_unchanged_is_not_written_again() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1)
        world.backup.request(now=True)
        await asyncio.sleep(1)
        assert world.puts == 1
        world.change()
        world.backup.request(now=True)
        await asyncio.sleep(1)
        assert world.puts == 2

    in_world(case)


def test_the_newest_few_are_kept() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        for _ in range(3 * KEPT):
            world.change()
            world.backup.request(now=True)
            await asyncio.sleep(1)
        kept = [world.read(name)[1].sequence_number for name in world.names]
        assert kept == list(range(20 - KEPT, 20))

    in_world(case)


def test_the_copies_of_owners_before_are_trimmed_and_those_of_an_owner_after_us_are_not() -> None:
    source, store = random.Random(3), uuid.UUID(STORE)
    bucket = MemoryBucket()

    async def put(world: World) -> None:
        for epoch in (1, 2, 3, 8, 9, 10, 11):
            id_ = new_copy_id(store, source)
            await world.storage.put(checkpoint_name(CONTAINER, epoch, 1, id_), [b"x"], id_)
        for name in (
            checkpoint_prefix(CONTAINER) + "foreign",
            checkpoint_name(CONTAINER, 1, 1, bytes(16)),
        ):
            await world.storage.put(name, [b"x"], new_copy_id(store, source))

    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1)

    in_world(put, bucket)
    epochs = [name.split("/")[2][:16] for name in in_world(case, bucket, epoch=5).names]
    assert [int(epoch, 16) for epoch in epochs if epoch != "foreign"] == [1, 2, 3, 5, 8, 9, 10, 11]
    assert "foreign" in epochs


def test_a_failing_tier_2_shows_in_health_is_tried_again_and_nothing_is_deleted_meanwhile() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        for _ in range(KEPT):
            world.change()
            world.backup.request(now=True)
            await asyncio.sleep(1)
        before = world.names
        world.storage.fail("put", 3)
        world.change()
        world.backup.request(now=True)
        await asyncio.sleep(0.1)
        assert "metadata copy" in (world.backup.health.describe() or "")
        assert world.names == before
        await asyncio.sleep(300)
        assert world.backup.health.describe() is None
        assert world.read(world.names[-1])[1].sequence_number == world.metadata.sequence_number
        assert len(world.names) == KEPT

    in_world(case)


def test_a_copy_whose_reply_was_lost_is_not_left_behind() -> None:
    async def case(world: World) -> None:
        world.storage.fail("put", 5, after_effect=True)
        world.backup.start()
        await asyncio.sleep(600)
        assert len(world.names) == 1

    in_world(case)


def test_a_close_writes_what_is_new_and_does_not_wait_for_a_tier_2_that_fails() -> None:
    async def case(world: World) -> None:
        loop = asyncio.get_running_loop()
        world.backup.start()
        await asyncio.sleep(1)
        world.change()
        begun = loop.time()
        await world.backup.finish(5.0)
        assert world.read(world.names[-1])[1].sequence_number == 11
        world.change()
        world.storage.fail("put", 1000)
        await world.backup.finish(5.0)
        await world.backup.finish(5.0)
        assert loop.time() - begun < 1.0

    in_world(case)


def test_a_close_that_waits_for_a_hanging_tier_2_has_a_timeout() -> None:
    class Hanging(MemoryObjectStorage):
        async def put(self, *_: object) -> None:
            await asyncio.sleep(10_000)

    async def case(world: World) -> None:
        loop = asyncio.get_running_loop()
        world.backup = MetadataBackup(
            SimpleNamespace(metadata=world.metadata, epoch=1),
            Hanging(world.runtime),
            STORE,
            9,
            world.runtime,
        )
        world.backup.start()
        await asyncio.sleep(1)
        begun = loop.time()
        await world.backup.finish(5.0)
        assert 5.0 <= loop.time() - begun < 6.0

    in_world(case)


def test_a_close_does_not_wait_for_what_is_asked_for_meanwhile_without_haste() -> None:
    async def case(world: World) -> None:
        world.backup.start()
        await asyncio.sleep(1.0)
        world.change()
        finishing = asyncio.ensure_future(world.backup.finish(5.0))
        for _ in range(4):
            await asyncio.sleep(0)
        assert world.puts == 2
        world.backup.request()
        begun = asyncio.get_running_loop().time()
        await finishing
        assert asyncio.get_running_loop().time() - begun < 1.0

    in_world(case)


def test_before_the_start_and_after_the_stop_nothing_happens() -> None:
    async def case(world: World) -> None:
        world.backup.request(now=True)
        await world.backup.finish(5.0)
        world.backup.start()
        await world.backup.stop()
        world.backup.request(now=True)
        await world.backup.finish(5.0)
        assert world.names == []

    in_world(case)
