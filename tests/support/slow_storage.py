"""Tier 2 behind a link of a certain speed, on the clock of the running loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.slow_link import SlowLink
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_adapters import DefaultAdapters
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import NO_METADATA, ObjectStorage


class LinkedStorage(MemoryObjectStorage):
    """An object is there when all its bytes are over."""

    def __init__(self, runtime: Runtime, link: SlowLink) -> None:
        super().__init__(runtime)
        self._link = link

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        await self._link.carry(sum(map(len, parts)))
        await super().put(name, parts, unique_id, metadata)


class LinkedTier2(DefaultAdapters):
    """As production's, with Tier 2 behind the link."""

    def __init__(self, link: SlowLink) -> None:
        super().__init__()
        self._link = link

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return LinkedStorage(runtime, self._link)
