"""MemoryCache: a complete CacheStorage in a dictionary, for tests and demos (adapter without a
library).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from readindex.cache_storage import CacheStatistics, CacheStorage
from segmentstore.contracts.checksum import Buffer, crc32c


class MemoryCache(CacheStorage):
    """Holds at most `bytes_max` bytes; the oldest blocks go first.

    `wipe`, `corrupt` and `broken` do to it what a bad disk does to a real one.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self._known: OrderedDict[int, None] = OrderedDict()
        self._bytes = 0
        self._inserts = 0
        self._hits = 0
        self._misses = 0
        self._opened = False
        self.broken = False
        """While True inserts are refused and gets find nothing."""

    async def open(self) -> None:
        self._blocks.clear()
        self._known.clear()
        self._bytes = 0
        self._opened = True

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        if (
            self.broken
            or not self._opened
            or sum(len(data) for _, data in blocks) > self._bytes_max
        ):
            return False
        for address, data in blocks:
            assert address not in self._known, f"address {address} is used twice"
            assert 0 <= address < 2**64, address
            self._blocks[address] = (bytes(data), crc32c(data))
            self._known[address] = None
            self._bytes += len(data)
            self._inserts += 1
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._blocks.popitem(last=False)[1][0])
        return True

    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        return [self._get_one(address) for address in addresses]

    def holds(self, address: int) -> bool:
        return not self.broken and address in self._blocks

    def delete(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self._known.pop(address, None)
            block = self._blocks.pop(address, None)
            if block is not None:
                self._bytes -= len(block[0])

    async def close(self) -> None:
        await self.open()
        self._opened = False

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            bytes_stored=self._bytes,
            bytes_max=self._bytes_max,
            blocks=len(self._blocks),
            inserts=self._inserts,
            hits=self._hits,
            misses=self._misses,
            healthy=self._opened and not self.broken,
        )

    def wipe(self) -> None:
        """Lose every block, silently."""
        self._blocks.clear()
        self._bytes = 0

    def corrupt(self, address: int) -> None:
        """Flip a bit of the block under `address`."""
        data, checksum = self._blocks[address]
        self._blocks[address] = (bytes((data[0] ^ 1,)) + data[1:], checksum)

    def addresses(self) -> list[int]:
        """Addresses of the blocks that are there, oldest first."""
        return list(self._blocks)

    def _get_one(self, address: int) -> bytes | None:
        block = None if self.broken else self._blocks.get(address)
        if block is not None and crc32c(block[0]) == block[1]:
            self._hits += 1
            return block[0]
        if address in self._known:
            self._misses += 1
        return None
