"""Block sinks: where the bytes of segments go that a restore found: objects of the new store, or,
of a dry run, nowhere.
"""

from __future__ import annotations

import uuid
from typing import Final, Protocol

from recovery.restore_report import FoundBlock
from recovery.tier2_scan import retried
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.object_storage import ObjectStorage, StoredObject
from tier2.unique_ids import new_tagged_id, store_tag

OBJECT_BYTES: Final = 32 * 1024 * 1024
"""About the size of an object, and what is held in memory for it."""
FIRST_EPOCH: Final = 1
"""In the names of a new store's objects; its first owner has a later one."""
_PLANNED: Final = "planned"


class BlockSink(Protocol):
    """Receives bytes of one container's segments, in any order, each byte once."""

    blocks: list[FoundBlock]
    """After `finish`: where all of it is."""
    objects: dict[str, StoredObject]

    async def add(self, segment_id: int, name: str, offset: int, data: Buffer) -> None:
        """Take bytes; the buffer must not change. Raises TierUnavailableError."""

    def plan(self, segment_id: int, name: str, offset: int, length: int) -> bool:
        """Bytes are there. True: to know that suffices, and they need not be added."""

    async def finish(self) -> None:
        """Nothing more comes. Raises TierUnavailableError."""


class PlannedBlocks:
    """Of a dry run: nothing is written."""

    def __init__(self) -> None:
        self.blocks: list[FoundBlock] = []
        self.objects: dict[str, StoredObject] = {}

    async def add(self, segment_id: int, name: str, offset: int, data: Buffer) -> None:
        """As `plan`."""
        self.plan(segment_id, name, offset, len(data))

    def plan(self, segment_id: int, name: str, offset: int, length: int) -> bool:
        """They would be written."""
        self.objects[_PLANNED] = StoredObject(_PLANNED, 0, 0)
        last = self.blocks[-1] if self.blocks else None
        if last is not None and (last.segment_id, last.end_offset) == (segment_id, offset):
            self.blocks[-1] = last._replace(length=last.length + length)
        else:
            self.blocks.append(FoundBlock(_PLANNED, 0, segment_id, offset, length, name))
        return True

    async def finish(self) -> None:
        """There is nothing to be done."""


class WrittenBlocks:
    """Puts objects of about OBJECT_BYTES; neighbours that come one behind another share a block."""

    def __init__(
        self, storage: ObjectStorage, container_id: int, store_id: str, codec: int, runtime: Runtime
    ) -> None:
        self.blocks: list[FoundBlock] = []
        self.objects: dict[str, StoredObject] = {}
        self._storage = storage
        self._container_id = container_id
        self._tag = store_tag(uuid.UUID(store_id))
        self._codec = codec
        self._runtime = runtime
        self._waiting: dict[int, list[tuple[int, list[Buffer]]]] = {}
        """By segment: stretches without a gap, by the offset of the first byte."""
        self._ends: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._size = 0

    def plan(self, segment_id: int, name: str, offset: int, length: int) -> bool:
        """They are wanted."""
        del segment_id, name, offset, length
        return False

    async def add(self, segment_id: int, name: str, offset: int, data: Buffer) -> None:
        """Take bytes, and put an object when there are enough."""
        stretches = self._waiting.setdefault(segment_id, [])
        if stretches and self._ends[segment_id] == offset:
            stretches[-1][1].append(data)
        else:
            stretches.append((offset, [data]))
        self._ends[segment_id] = offset + len(data)
        self._names[segment_id] = name
        self._size += len(data)
        if self._size >= OBJECT_BYTES:
            await self._put()

    async def finish(self) -> None:
        """Put what waits."""
        if self._waiting:
            await self._put()

    async def _put(self) -> None:
        builder = ObjectBuilder(self._container_id, FIRST_EPOCH, codec=self._codec)
        for segment_id, stretches in self._waiting.items():
            for offset, parts in stretches:
                builder.add(segment_id, offset, parts, segment_name=self._names[segment_id])
        unique_id = new_tagged_id(self._tag, self._runtime.random)
        name = object_name(self._container_id, FIRST_EPOCH, "flush", unique_id)
        await retried(lambda: self._storage.put(name, builder.parts, unique_id))
        self.objects[name] = StoredObject(name, builder.size, self._runtime.clock.time_ms())
        self.blocks += [
            FoundBlock(
                name,
                placed.block_offset,
                placed.segment_id,
                placed.start_offset,
                placed.length,
                self._names[placed.segment_id],
            )
            for placed in builder.placements
        ]
        self._waiting, self._size = {}, 0
        self._ends.clear()
