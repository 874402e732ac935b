"""NameLocks: one lock for each name that is in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class NameLocks:
    """Locks made when they are asked for, and dropped with their last user."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, name: Hashable) -> AsyncIterator[None]:
        """Wait for the lock of a name and hold it; first come, first served. Not reentrant."""
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = lock, users - 1
