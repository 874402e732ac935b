"""Cache of a simulated process: a cache in memory that takes time and loses what it holds.

Nothing of it outlives its process, as nothing in a cache is trusted across a start. Rules of this
file:

- what it gives back is right: faults make blocks disappear, as the contract allows, and never
  change them;
- a loss is silent, and counted as a miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from readindex.cache_storage import CacheStatistics, CacheStorage
from readindex.memory_cache import MemoryCache
from recovery.harness.simulation.storage_process import StorageProcess
from segmentstore.contracts.checksum import Buffer

LATENCY_S: Final = (0.000_020, 0.000_200)


class SimulatedCache(CacheStorage):
    """Holds at most `bytes_max` bytes; the oldest blocks go first.

    A call takes LATENCY_S of virtual time.
    """

    def __init__(self, process: StorageProcess, bytes_max: int) -> None:
        self._world = process.world
        self._random = process.random
        self._memory = MemoryCache(bytes_max)
        self._taken = 0
        """Blocks that were found, and taken away before they were handed out."""

    async def open(self) -> None:
        await self._wait()
        await self._memory.open()

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        await self._wait()
        if self._world.strikes("cache.insert.refused"):
            return False
        return await self._memory.insert(blocks)

    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        await self._wait()
        if self._world.strikes("cache.wiped"):
            self._memory.wipe()
        found = await self._memory.get(addresses)
        there = [place for place, block in enumerate(found) if block]
        if there and self._world.strikes("cache.block.lost"):
            place = self._random.choice(there)
            # A changed bit is what its own checksum notices, now and whenever it is asked for
            # again.
            self._memory.corrupt(addresses[place])
            found[place] = None
            self._taken += 1
        return found

    def holds(self, address: int) -> bool:
        return self._memory.holds(address)

    def delete(self, addresses: Sequence[int]) -> None:
        self._memory.delete(addresses)

    async def close(self) -> None:
        await self._memory.close()

    def statistics(self) -> CacheStatistics:
        numbers = self._memory.statistics()
        return numbers._replace(
            hits=numbers.hits - self._taken, misses=numbers.misses + self._taken
        )

    async def _wait(self) -> None:
        least, most = LATENCY_S
        await asyncio.sleep(least + (most - least) * self._random.random())
