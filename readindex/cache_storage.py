"""CacheStorage: a throw-away home for full, immutable blocks of segment bytes.

What every implementation promises (proved by tests/contracts/cache_storage_contract.py):

- `get` gives back exactly the bytes that were inserted under the address, or None: a block that was
  evicted, deleted, truncated or corrupted in any way is simply not there;
- it never holds much more than its bound; what it drops to stay below it, it drops silently;
- it is empty after `open`, whatever the directory held: nothing in it is ever trusted across a
  start;
- no call raises because of the cache's own trouble (disk full, files missing): an insert then has
  no effect (returns False), a get gives None, and `healthy` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer


class CacheStatistics(NamedTuple):
    """A snapshot of a cache's numbers."""

    bytes_stored: int
    bytes_max: int
    blocks: int
    inserts: int
    hits: int
    misses: int
    """Gets of an address that was inserted, not deleted, and not there any more."""
    healthy: bool


class CacheStorage(ABC):
    """Blocks by address. Shared by all containers of a store. Calls come from one event loop."""

    @abstractmethod
    async def open(self) -> None:
        """Wipe what is there and start empty."""

    @abstractmethod
    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        """Store blocks under addresses never used before (64-bit, unsigned).

        False if it could not.
        """

    @abstractmethod
    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        """The blocks under the addresses, None for each that is not there whole."""

    @abstractmethod
    def holds(self, address: int) -> bool:
        """False if the block is known not to be there any more; True promises nothing.

        O(1), without waiting.
        """

    @abstractmethod
    def delete(self, addresses: Sequence[int]) -> None:
        """Forget blocks; does not wait for space to be reclaimed."""

    @abstractmethod
    async def close(self) -> None:
        """Release the files. Idempotent."""

    @abstractmethod
    def statistics(self) -> CacheStatistics:
        """Numbers as of now. O(1)."""
