"""RangeReads: the bytes of an object from one offset to another, by ranged GETs in order.

The first is alone: a reader of one entry needs no more. From the second on some are asked for
ahead.
Each reading has its own, so that readers of one object do not disturb each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from segmentstore.contracts.owned_tasks import own_task
from tier2.object_storage import ObjectStorage

RANGES_MAX: Final = 4
"""Of one reading: what is awaited, and what is asked for ahead."""


class RangeReads:
    """Bytes [offset, end) of an object, in ranges of `read_bytes`, RANGES_MAX of them under way."""

    def __init__(
        self, storage: ObjectStorage, name: str, offset: int, end: int, read_bytes: int
    ) -> None:
        self._storage = storage
        self._name = name
        self._next = offset
        self._end = end
        self._read_bytes = read_bytes
        self._begun = False
        self._coming: deque[asyncio.Task[bytes]] = deque()

    async def next(self) -> bytes:
        """The next range; nothing at the end. Raises as ObjectStorage.get_range."""
        self._ask(RANGES_MAX if self._begun else 1)
        self._begun = True
        if not self._coming:
            return b""
        # Stays in the queue while it is awaited, so that `close` ends it if this is cancelled.
        data = await asyncio.shield(self._coming[0])
        del self._coming[0]
        return data

    async def close(self) -> None:
        """Give up what was asked for. Idempotent."""
        coming, self._coming = self._coming, deque()
        self._next = self._end
        for task in coming:
            task.cancel()
        if coming:
            await asyncio.wait(coming)
        for task in coming:
            if not task.cancelled():
                task.exception()  # Taken note of.

    def _ask(self, count: int) -> None:
        while len(self._coming) < count and self._next < self._end:
            length = min(self._read_bytes, self._end - self._next)
            work = self._storage.get_range(self._name, self._next, length)
            self._coming.append(own_task(work, name="tier2 archive read"))
            self._next += length
