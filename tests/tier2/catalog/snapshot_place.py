"""A place with a clock, and snapshots written into it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.tier2.catalog.metadata_maker import STORE_ID, make_metadata
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import (
    delete_old_snapshots,
    write_snapshot,
)
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_names import parse_manifest_name

T = TypeVar("T")


class SetClock:
    """Wall time as a test wants it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def time_ms(self) -> int:
        return self.now_ms


class Place:
    """An object storage in memory, a clock, and snapshots written into it."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.runtime = Runtime(clock=self.clock, random=random.Random(5))
        self.storage = MemoryObjectStorage(self.runtime, page_objects=7)

    async def write(
        self,
        metadata: ContainerMetadata,
        *,
        epoch: int = 1,
        store_id: str = STORE_ID,
        after_ms: int = 1000,
    ) -> Manifest:
        self.clock.now_ms += after_ms
        return await write_snapshot(
            self.storage,
            self.runtime,
            store_id=store_id,
            containers=4,
            container_id=metadata.container_id,
            epoch=epoch,
            time_ms=self.clock.now_ms,
            metadata=metadata,
        )

    async def delete_old(self, container_id: int = 0, epoch: int = 9, **options: Any) -> int:
        return await delete_old_snapshots(
            self.storage,
            container_id,
            epoch,
            self.clock.now_ms,
            **{"store_id": STORE_ID, **options},
        )

    @property
    def names(self) -> list[str]:
        return sorted(self.storage.bucket.objects)

    @property
    def manifests(self) -> list[str]:
        return [name for name in self.names if parse_manifest_name(name) is not None]

    def damage(self, name: str, data: bytes) -> None:
        there = self.storage.bucket.objects[name]
        self.storage.bucket.objects[name] = MemoryObject(data, there.unique_id, there.modified_ms)


def some_metadata(
    sequence_number: int = 1000, container_id: int = 0, seed: int = 1
) -> ContainerMetadata:
    metadata = make_metadata(
        random.Random(seed),
        segments=20,
        chunks_max=20,
        objects=60,
        garbage=3,
        container_id=container_id,
    )
    metadata.sequence_number = sequence_number
    return metadata


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)
