"""The two caches against their contract, and RocksDB's special troubles."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from readindex.cache_storage import CacheStorage
from readindex.memory_cache import MemoryCache
from readindex.rocksdb_cache import RocksDbCache
from segmentstore.contracts.runtime import Runtime
from tests.contracts.cache_storage_contract import BOUND, CacheStorageContract, block
from tests.store.harness import run, until
from tests.support.folders import files_below


class TestMemoryCache(CacheStorageContract):
    def make(self, folder: Path) -> MemoryCache:
        return MemoryCache(BOUND)

    async def damage(self, cache: CacheStorage, folder: Path) -> None:
        assert isinstance(cache, MemoryCache)
        for address in cache.addresses()[::2]:
            cache.corrupt(address)


class TestRocksDbCache(CacheStorageContract):
    def make(self, folder: Path) -> RocksDbCache:
        return RocksDbCache(str(folder / "cache"), Runtime(), BOUND)

    async def damage(self, cache: CacheStorage, folder: Path) -> None:
        files = table_files(cache)
        assert files
        for path in files:
            data = path.read_bytes()
            path.write_bytes(bytes(byte ^ 0x5A for byte in data))


def table_files(cache: CacheStorage) -> list[Path]:
    """The SST files, written out first."""
    assert isinstance(cache, RocksDbCache)
    assert cache._database is not None
    cache._database.flush()
    return sorted(Path(cache._path).glob("*.sst"))


def remove_cache(folder: Path) -> None:
    """In one step: the cache's own threads go on making files."""
    (folder / "cache").rename(folder / "gone")
    shutil.rmtree(folder / "gone")


def opened(folder: Path, bytes_max: int = BOUND) -> RocksDbCache:
    return RocksDbCache(str(folder / "cache"), Runtime(), bytes_max)


@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_truncated_files_give_no_wrong_byte(tmp_path: Path, keep: int) -> None:
    async def main() -> None:
        cache = opened(tmp_path)
        await cache.open()
        await cache.insert([(n, block(n)) for n in range(200)])
        for path in table_files(cache):
            with path.open("r+b") as file:
                file.truncate(keep)
        for n in range(200):
            assert (await cache.get([n]))[0] in {None, block(n)}
        await cache.close()

    asyncio.run(main())


def test_deleted_directory_is_noticed_and_begun_afresh(tmp_path: Path) -> None:
    async def main() -> None:
        cache = opened(tmp_path)
        await cache.open()
        await cache.insert([(n, block(n)) for n in range(100)])
        remove_cache(tmp_path)
        for n in range(100):
            assert (await cache.get([n]))[0] in {None, block(n)}
        assert not await cache.insert([(100, block(100))])
        assert not cache.statistics().healthy
        assert await cache.get([5, 100]) == [None, None]
        cache._reopen_at = 0.0
        assert await cache.insert([(101, block(101))])
        assert cache.statistics().healthy
        assert await cache.get([5, 101]) == [None, block(101)]
        await cache.close()

    asyncio.run(main())


def test_reopening_is_not_tried_at_every_insert(tmp_path: Path) -> None:
    async def main() -> None:
        cache = opened(tmp_path)
        await cache.open()
        remove_cache(tmp_path)
        generation = cache._generation
        cache._reopen_at = asyncio.get_running_loop().time() + 3600
        for n in range(5):
            assert not await cache.insert([(n, block(n))])
        assert cache._generation == generation
        await cache.close()

    asyncio.run(main())


def test_a_place_that_cannot_be_written_makes_an_unhealthy_cache_and_no_error(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        (tmp_path / "cache").write_bytes(b"a file where a folder should be")
        cache = opened(tmp_path)
        await cache.open()
        assert not cache.statistics().healthy
        assert not await cache.insert([(1, block(1))])
        await cache.close()

    asyncio.run(main())


def test_disk_stays_within_a_small_multiple_of_the_bound_under_churn(tmp_path: Path) -> None:
    async def main() -> None:
        bound = 4 * 1024 * 1024
        cache = opened(tmp_path, bound)
        await cache.open()
        for start in range(0, 1000, 10):
            assert await cache.insert([(n, block(n, 64 * 1024)) for n in range(start, start + 10)])
            cache.delete(range(start, start + 5))
        table_files(cache)
        # Its own threads delete files, and come to it when they can.
        await until(lambda: bytes_in(tmp_path / "cache") < 3 * bound)
        await cache.close()

    run(main())


def bytes_in(folder: Path) -> int:
    """Of all files, but for those that vanish meanwhile."""
    found = 0
    for path in files_below(folder):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found
