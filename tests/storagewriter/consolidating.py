"""What tests of consolidation share: the two ways it goes, and holding it back in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from tests.storagewriter.fake_container import FakeContainer, StorageWithoutCompose
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import parse_object_name
from tier2.object_storage import ObjectRange

WAYS = pytest.mark.parametrize(
    "storage_type",
    [MemoryObjectStorage, partial(StorageWithoutCompose, compose_bytes_min=None)],
    ids=["copy", "rewrite"],
)
"""By server-side copy, and by download and upload."""
LONG_S = 5.0
"""More than a pass is away."""


def kinds(c: FakeContainer) -> list[str]:
    """What work made the objects that are live, in the order the log named them."""
    return [
        parts.kind for name in c.metadata.objects if (parts := parse_object_name(name)) is not None
    ]


async def write(c: FakeContainer, segment_id: int, count: int, length: int = 100) -> None:
    """So many flushed objects of the segment's."""
    for _ in range(count):
        c.append(segment_id, length)
        await c.writer.flush(segment_id)


class GatedStorage(StorageWithoutCompose):
    """Holds consolidation back: its reads, its copies and its puts wait at `gate`."""

    gate: asyncio.Event | None = None

    async def _wait(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        await self._wait()
        await super().compose(name, ranges, unique_id)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        await self._wait()
        return await super().get_range(name, offset, length)


GATED = pytest.mark.parametrize(
    "storage_type",
    [partial(GatedStorage, compose_bytes_min=1), partial(GatedStorage, compose_bytes_min=None)],
    ids=["copy", "rewrite"],
)


async def held(c: FakeContainer) -> asyncio.Event:
    """A consolidation has begun and waits for this event."""
    assert isinstance(c.storage, GatedStorage)
    c.storage.gate = asyncio.Event()
    await asyncio.sleep(LONG_S)
    assert c.writer.statistics().consolidations == 0
    return c.storage.gate
