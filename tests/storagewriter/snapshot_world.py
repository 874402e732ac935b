"""Owners of one container that put metadata snapshots into one bucket, with every fault on the way,
and what must hold of the bucket after each change. The log is a list of checkpoints; it accepts
those of its primary alone, and is truncated by it alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from recovery.harness.simulation.object_storage import (
    SimulatedBucket,
    SimulatedObjectStorage,
)
from recovery.harness.simulation.virtual_loop import MICROSECONDS, inline_executor
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import NotPrimaryError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.snapshot_uploader import KEPT, SnapshotUploader
from tests.harness.fake_process import DiedError, FakeProcess, FakeWorld
from tests.support.loop_clock import LoopClock
from tier2.metadata_manifest import FileContent, MetadataManifest, decode_metadata_manifest
from tier2.object_names import metadata_manifest_name, parse_metadata_manifest_name
from tier2.object_storage import StorageUnavailableError

STORE: Final = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
CONTAINER: Final = 3
CONTAINERS: Final = 4
LAG_S: Final = 20.0
FAULTS: Final = (
    "object.slow",
    "object.put.failed",
    "object.put.late",
    "object.put.lost-reply",
    "object.put.twice",
    "object.delete.failed",
    "object.delete.late",
    "object.delete.lost-reply",
    "object.head.failed",
    "object.get.failed",
    "object.get.truncated",
    "object.list.failed",
    "object.list.lags",
)


class FaultyWorld(FakeWorld):
    """Each fault strikes with the probability `fault_rate`, until it is healed."""

    fault_rate = 0.0

    def strikes(self, point: str) -> bool:
        if super().strikes(point):
            return True
        return point in FAULTS and self.fault_rate > 0 and self.rng.random() < self.fault_rate

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rng = random.Random(seed)


class WatchedBucket(SimulatedBucket):
    """After each change the newest snapshot is whole, and so are KEPT, once there were as many, and
    the one that the log begins with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.beginning: str | None = None

    def manifests(self) -> list[MetadataManifest]:
        """Those that are there, oldest first."""
        names = sorted(filter(parse_metadata_manifest_name, self.objects))
        return [decode_metadata_manifest(self.objects[name].data, name) for name in names]

    def is_whole(self, manifest: MetadataManifest) -> bool:
        for file in manifest.files:
            name = file.object_name(manifest.container_id)
            if name is None:
                continue
            there = self.objects.get(name)
            if there is None or crc32c(there.data) != file.content.crc32c:
                return False
        return True

    def _apply(self, change: object) -> None:
        super()._apply(change)  # type: ignore[arg-type]
        there = self.manifests()
        self.seen.update(manifest.name for manifest in there)
        if there:
            whole = [manifest.name for manifest in there if self.is_whole(manifest)]
            assert there[-1].name in whole, (there[-1].name, whole)
            assert len(whole) >= min(KEPT, len(self.seen)), (whole, self.seen)
            assert self.beginning is None or self.beginning in whole, (self.beginning, whole)

    def left(self) -> set[str]:
        """Objects that the newest KEPT do not account for."""
        kept = self.manifests()[-KEPT:]
        wanted = {manifest.name for manifest in kept}.union(*(each.objects for each in kept))
        return self.objects.keys() ^ wanted


class LoggedCheckpoint(NamedTuple):
    """In the log: `name` is the manifest to come, None for a checkpoint that needs none."""

    sequence_number: int
    name: str | None


class SpoilingStorage(SimulatedObjectStorage):
    """While `spoils`, what is read is not what is there."""

    spoils = False

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = await super().get_range(name, offset, length)
        return bytes(len(data)) if self.spoils else data


class Owner:
    """A process that has opened the log: it has a catalog whose files change, and puts them."""

    def __init__(self, world: SnapshotWorld, process: FakeProcess, epoch: int) -> None:
        self.world = world
        self.process = process
        self.epoch = epoch
        self.metadata = ContainerMetadata(CONTAINER)
        self.store_id = STORE
        self.storage = SpoilingStorage(world.bucket, process, page_objects=3)
        runtime = Runtime(clock=LoopClock(), random=process.random, executor=inline_executor)
        self.uploader = SnapshotUploader(self, self.storage, CONTAINERS, runtime, LAG_S)
        self.found = tuple(world.log)
        self.truncation_points = list(world.log[:1])
        self.sequence_number = world.log[-1].sequence_number
        self.files = dict(world.files)
        self.rng = process.random
        self.tasks: list[asyncio.Task[None]] = []
        self.storage.spoils = self.rng.random() < world.fakes.fault_rate

    async def check_primary(self) -> None:
        await asyncio.sleep(self.rng.random())
        epoch = self.world.epoch
        await asyncio.sleep(self.rng.random() * 5)
        if epoch != self.epoch:
            raise NotPrimaryError(CONTAINER)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        await asyncio.sleep(0)
        return self.files[name][offset : offset + length]

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else, until the process dies."""
        self.tasks.append(self.process.start(work))

    def contents(self) -> list[FileContent]:
        return [FileContent(name, len(data), crc32c(data)) for name, data in self.files.items()]

    def change(self) -> None:
        """A compaction: some files go, some come; `CURRENT` has one of few contents."""
        for name in [name for name in self.files if self.rng.random() < 0.3]:
            del self.files[name]
        for _ in range(self.rng.randint(1, 3)):
            data = self.rng.randbytes(self.rng.randint(0, 40))
            self.files[f"{self.rng.getrandbits(40):012x}.sst"] = data
        self.files["CURRENT"] = b"MANIFEST-%d" % self.rng.randint(1, 3)
        self.sequence_number += self.rng.randint(1, 9)

    async def take_over(self) -> None:
        first = self.found[0]
        self.uploader.keep_from(first.sequence_number)
        names = [each.name for each in self.found[1:] if each.name is not None]
        while True:
            try:
                newest = await self.uploader.find_newest(names) or first.name
                if newest is not None:
                    await self.uploader.take_over(newest, first.name)
                return
            except StorageUnavailableError:
                await asyncio.sleep(1)

    async def log(self, unique_id: bytes | None) -> LoggedCheckpoint:
        """Append a checkpoint, by reference if it has an id. Raises NotPrimaryError."""
        await asyncio.sleep(self.rng.random())
        checkpoint = LoggedCheckpoint(
            self.sequence_number,
            None
            if unique_id is None
            else metadata_manifest_name(CONTAINER, self.epoch, self.sequence_number, unique_id),
        )
        if self.world.epoch == self.epoch:
            self.world.log.append(checkpoint)
        else:
            self.stop_if_wise()
        return checkpoint

    def stop_if_wise(self) -> None:
        """The log has refused it. Mostly it goes on: worse than any owner that obeys its log."""
        if self.rng.random() < 0.2:
            raise NotPrimaryError(CONTAINER)

    async def begin_snapshot(self) -> tuple[LoggedCheckpoint, bytes]:
        self.change()
        unique_id = self.uploader.new_id()
        return await self.log(unique_id), unique_id

    async def snapshot(self) -> str:
        """One more, tried until it is durable. Raises NotPrimaryError."""
        checkpoint, unique_id = await self.begin_snapshot()
        while True:
            try:
                name = await self.uploader.put(
                    self.contents(), self.sequence_number, unique_id, self.read
                )
            except StorageUnavailableError:
                await asyncio.sleep(self.rng.random() * 3)
                if self.rng.random() < 0.3:
                    checkpoint, unique_id = await self.begin_snapshot()
            else:
                assert name == checkpoint.name
                self.truncation_points.append(checkpoint)
                return name

    async def truncate(self, checkpoint: LoggedCheckpoint) -> None:
        """Let the log begin with this truncation point. Raises NotPrimaryError."""
        await asyncio.sleep(self.rng.random())
        if self.world.epoch == self.epoch:
            self.world.truncate(checkpoint)
        else:
            self.stop_if_wise()
        await asyncio.sleep(self.rng.random() * 5)
        del self.truncation_points[: self.truncation_points.index(checkpoint)]
        self.uploader.keep_from(checkpoint.sequence_number)

    async def collect(self) -> None:
        try:
            await self.uploader.run()
        except NotPrimaryError:
            assert self.world.epoch != self.epoch

    async def live(self) -> None:
        """Go on for ever, also as a stale owner for a while."""
        await self.take_over()
        self.begin(self.collect())
        with suppress(NotPrimaryError):
            while True:
                if self.rng.random() < 0.1:
                    self.change()
                    self.truncation_points.append(await self.log(None))
                await self.snapshot()
                self.world.publish(self)
                if self.rng.random() < 0.5:
                    await self.truncate(self.rng.choice(self.truncation_points))
                await asyncio.sleep(self.rng.random() * 40)


class SnapshotWorld:
    """One log, one bucket, owners one after another."""

    def __init__(self, seed: int) -> None:
        self.fakes = FaultyWorld(seed)
        self.bucket = WatchedBucket()
        self.epoch = 0
        self.log = [LoggedCheckpoint(0, None)]
        self.owners: list[Owner] = []
        self.files: dict[str, bytes] = {}

    def truncate(self, checkpoint: LoggedCheckpoint) -> None:
        """The log begins with it now."""
        del self.log[: self.log.index(checkpoint)]
        self.bucket.settle(self.fakes.time.now_us)
        self.bucket.beginning = checkpoint.name
        whole = [each.name for each in self.bucket.manifests() if self.bucket.is_whole(each)]
        assert checkpoint.name is None or checkpoint.name in whole, (checkpoint, whole)

    def publish(self, owner: Owner) -> None:
        """What a later owner's catalog begins with."""
        if owner.epoch == self.epoch:
            self.files = dict(owner.files)

    def open(self, process: FakeProcess | None = None) -> Owner:
        self.epoch += 1
        if process is None:
            process = self.fakes.process(f"owner {self.epoch}")
        self.owners.append(Owner(self, process, self.epoch))
        return self.owners[-1]

    def run_for(self, seconds: float) -> None:
        end = self.fakes.time.now_us + round(seconds * MICROSECONDS)
        self.fakes.run(lambda: self.fakes.time.now_us >= end)
        self.bucket.settle(self.fakes.time.now_us)
        for task in (task for owner in self.owners for task in owner.tasks):
            if task.done() and not task.cancelled():
                task.result()

    def quiet(self) -> None:
        """All owners end, all is calm: a last one makes what is kept, and waits."""
        self.fakes.close()
        self.fakes.fault_rate = 0
        self.bucket.heal()
        owner = self.open()

        async def last() -> None:
            await owner.take_over()
            owner.begin(owner.collect())
            for _ in range(KEPT):
                await owner.snapshot()
            await owner.truncate(owner.truncation_points[-1])
            await asyncio.sleep(4 * LAG_S)

        owner.process.run(last())
        self.bucket.settle_all()
        assert self.bucket.left() == set()
        assert len(self.bucket.manifests()) == KEPT


@contextmanager
def snapshot_world(seed: int) -> Iterator[SnapshotWorld]:
    world = SnapshotWorld(seed)
    try:
        yield world
    finally:
        world.fakes.close()


__all__ = ["DiedError", "Owner", "SnapshotWorld", "snapshot_world"]
