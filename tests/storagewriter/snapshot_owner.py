"""One owner that puts metadata snapshots into a bucket in memory, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.snapshot_uploader import (
    SnapshotUploader,
)
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.metadata_manifest import FileContent, decode_metadata_manifest
from tier2.object_names import parse_metadata_file_name
from tier2.object_storage import NO_METADATA, StoredObject

STORE = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"
CONTAINER = 3
LAG_S = 100.0
SOME = {"1.sst": b"one", "2.sst": b"two", "EMPTY": b""}
MORE = {"2.sst": b"two", "3.sst": b"three"}
OTHER = {"4.sst": b"four"}


class HookedStorage(MemoryObjectStorage):
    """`before_put` may hold a put back, or end it, before its effect."""

    before_put: Callable[[str, int], Awaitable[None]] | None = None
    heads = 0

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        if self.before_put is not None:
            await self.before_put(name, sum(map(len, parts)))
        await super().put(name, parts, unique_id, metadata)

    async def head(self, name: str) -> StoredObject | None:
        self.heads += 1
        return await super().head(name)


class World:
    """One owner, in virtual time."""

    def __init__(self, bucket: MemoryBucket | None = None, epoch: int = 1) -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(epoch), executor=inline_executor)
        self.storage = HookedStorage(runtime, bucket)
        self.metadata = ContainerMetadata(CONTAINER)
        self.store_id = STORE
        self.epoch = epoch
        self.asked: Callable[[], Awaitable[None]] | None = None
        self.uploader = SnapshotUploader(self, self.storage, 9, runtime, LAG_S)
        self.number = 10 * epoch
        self.truncates = True
        self.read_names: list[str] = []

    async def check_primary(self) -> None:
        if self.asked is not None:
            await self.asked()

    async def put(self, files: Mapping[str, bytes], unique_id: bytes = b"") -> str:
        self.number += not unique_id

        async def read(name: str, offset: int, length: int) -> bytes:
            self.read_names.append(name)
            return files[name][offset : offset + length]

        contents = [FileContent(name, len(data), crc32c(data)) for name, data in files.items()]
        name = await self.uploader.put(
            contents, self.number, unique_id or self.uploader.new_id(), read
        )
        if self.truncates:
            self.uploader.keep_from(self.number)
        return name

    async def collect(self) -> None:
        """Delete what is unwanted, files as well."""
        await self.uploader.collect_now()
        await asyncio.sleep(LAG_S)
        await self.uploader.collect_now()

    def named(self, manifest: str) -> dict[str, bytes]:
        """The files of a snapshot, as a reader finds them. KeyError for a missing one."""
        objects = self.storage.bucket.objects
        decoded = decode_metadata_manifest(objects[manifest].data, manifest)
        names = {file.content.local_name: file.object_name(CONTAINER) for file in decoded.files}
        return {local: objects[name].data if name else b"" for local, name in names.items()}

    @property
    def files(self) -> list[bytes]:
        objects = self.storage.bucket.objects
        return sorted(objects[name].data for name in objects if parse_metadata_file_name(name))


def in_world(case: Callable[[World], Awaitable[None]], world: World | None = None) -> None:
    async def whole() -> None:
        await case(world if world is not None else World())

    run_virtual(whole())
