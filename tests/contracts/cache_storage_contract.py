"""What every CacheStorage promises. Subclass, and give `make` and `damage`."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from pathlib import Path

from readindex.cache_storage import CacheStorage

BOUND = 256 * 1024


def block(address: int, length: int = 1000) -> bytes:
    return random.Random(address).randbytes(length)


class CacheStorageContract(ABC):
    """Each test gets a folder of its own."""

    @abstractmethod
    def make(self, folder: Path) -> CacheStorage:
        """A cache of BOUND bytes, not opened yet."""

    @abstractmethod
    async def damage(self, cache: CacheStorage, folder: Path) -> None:
        """Spoil stored bytes behind the cache's back."""

    def test_gives_back_what_was_inserted(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            assert await cache.insert(
                [(5, block(5)), (2**64 - 1, memoryview(block(6))[10:20]), (7, b"")]
            )
            assert await cache.get([2**64 - 1, 5, 99, 7]) == [block(6)[10:20], block(5), None, b""]
            numbers = cache.statistics()
            assert (numbers.blocks, numbers.inserts, numbers.hits, numbers.misses) == (3, 3, 3, 0)
            assert numbers.bytes_stored == 1010
            assert numbers.bytes_max == BOUND
            assert numbers.healthy
            await cache.close()

        asyncio.run(main())

    def test_forgets_what_is_deleted(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            await cache.insert([(n, block(n)) for n in range(4)])
            assert [cache.holds(n) for n in (0, 1, 77)] == [True, True, False]
            cache.delete([1, 2, 2, 77])
            assert [cache.holds(n) for n in range(4)] == [True, False, False, True]
            assert await cache.get([0, 1, 2, 3]) == [block(0), None, None, block(3)]
            assert cache.statistics().bytes_stored == 2000
            assert cache.statistics().misses == 0
            await cache.close()

        asyncio.run(main())

    def test_stays_within_its_bound_dropping_the_oldest(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            for start in range(0, 2000, 20):
                assert await cache.insert([(n, block(n)) for n in range(start, start + 20)])
                assert cache.statistics().bytes_stored <= BOUND
            found = await cache.get(range(2000))
            assert found[-200:] == [block(n) for n in range(1800, 2000)]
            assert found[:1000] == [None] * 1000
            await cache.close()

        asyncio.run(main())

    def test_refuses_what_can_never_fit(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            assert not await cache.insert([(1, bytes(BOUND + 1))])
            assert await cache.get([1]) == [None]
            await cache.close()

        asyncio.run(main())

    def test_is_empty_after_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            first = self.make(tmp_path)
            await first.open()
            await first.insert([(1, block(1))])
            await first.close()
            await first.close()
            second = self.make(tmp_path)
            await second.open()
            assert await second.get([1]) == [None]
            assert second.statistics().blocks == 0
            await second.close()

        asyncio.run(main())

    def test_closed_it_refuses_and_finds_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            await cache.insert([(1, block(1))])
            await cache.close()
            assert not await cache.insert([(2, block(2))])
            assert await cache.get([1, 2]) == [None, None]
            assert not cache.statistics().healthy

        asyncio.run(main())

    def test_damage_never_shows_as_a_wrong_byte(self, tmp_path: Path) -> None:
        async def main() -> None:
            cache = self.make(tmp_path)
            await cache.open()
            await cache.insert([(n, block(n)) for n in range(200)])
            await self.damage(cache, tmp_path)
            for n in range(200):
                assert (await cache.get([n]))[0] in {None, block(n)}
            await cache.insert([(n, block(n)) for n in range(200, 210)])
            for n, found in enumerate(await cache.get(range(200, 210)), start=200):
                assert found in {None, block(n)}
            await cache.close()

        asyncio.run(main())
