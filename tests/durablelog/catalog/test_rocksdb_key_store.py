"""How the store of keys uses RocksDB: its bounds, and whose options count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from durablelog.catalog.key_store import KeyStoreCorruptError
from durablelog.catalog.rocksdb_key_store import (
    CACHE_BYTES,
    RUNS_MAX,
    WRITE_BUFFER_BYTES,
    RocksDbKeyStore,
)
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of, batch, numbered


def number_of(store: RocksDbKeyStore, name: str) -> int:
    value = store._open_database.property_int_value(f"rocksdb.{name}")
    assert value is not None
    return value


def test_what_is_not_flushed_has_a_bound(tmp_path: Path) -> None:
    async def main() -> None:
        store = RocksDbKeyStore(str(tmp_path), IDENTITY, Runtime())
        await store.open()
        largest = 0
        for number in range(1, 40):
            await store.apply(batch(numbered(range(100), b"%06d" % number * 1500)), number)
            largest = max(largest, number_of(store, "cur-size-all-mem-tables"))
        batch_bytes = 100 * 9010
        assert batch_bytes < largest <= WRITE_BUFFER_BYTES + 2 * batch_bytes
        # RocksDB has flushed nothing by itself, and let no writer wait.
        assert number_of(store, "num-immutable-mem-table") == 0
        assert number_of(store, "is-write-stopped") == 0
        await store.close()

    asyncio.run(main())


def test_runs_have_a_bound_and_slow_no_write_down(tmp_path: Path) -> None:
    async def main() -> None:
        store = RocksDbKeyStore(str(tmp_path), IDENTITY, Runtime())
        await store.open()
        store._open_database.set_options({"disable_auto_compactions": "true"})
        for number in range(1, 2 * RUNS_MAX):
            await store.apply(batch(numbered([number])), number)
            await store.flush()
            assert number_of(store, "num-files-at-level0") <= RUNS_MAX
            assert number_of(store, "actual-delayed-write-rate") == 0
        assert await all_of(store) == numbered(range(1, 2 * RUNS_MAX))
        await store.close()

    asyncio.run(main())


def test_options_are_those_of_today_not_of_its_making(tmp_path: Path) -> None:
    async def main() -> None:
        for cache_bytes in (CACHE_BYTES, 2 * CACHE_BYTES, CACHE_BYTES):
            store = RocksDbKeyStore(str(tmp_path), IDENTITY, Runtime(), cache_bytes)
            await store.open()
            assert number_of(store, "block-cache-capacity") == cache_bytes
            await store.close()

    asyncio.run(main())


class LinkDisk(OsDisk):
    """Calls `before` before each link."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None
        self.links = 0

    def link(self, source: str, target: str) -> None:
        self.before()
        super().link(source, target)
        self.links += 1


def test_a_checkpoint_is_right_while_files_change(tmp_path: Path) -> None:
    """It is linked file by file if none does, and RocksDB's else."""

    async def main() -> None:
        disk = LinkDisk()
        store = RocksDbKeyStore(str(tmp_path / "s"), IDENTITY, Runtime(disk=disk))
        await store.open()
        database = store._open_database
        database.set_options({"disable_auto_compactions": "true"})

        async def checked(number: int) -> int:
            """Files that were linked here."""
            await store.apply(batch(numbered(range(number))), number)
            links = disk.links
            made = await store.checkpoint(str(tmp_path / f"c{number}"))
            copy = RocksDbKeyStore(str(tmp_path / f"c{number}"), IDENTITY, Runtime())
            await copy.open()
            assert copy.sequence_number == made.sequence_number == number
            assert await all_of(copy) == numbered(range(number))
            await copy.close()
            return disk.links - links

        assert [await checked(number) for number in (1, 2, 3)] == [2, 3, 4]
        # Files that are linked are replaced meanwhile.
        disk.before = lambda: database.compact_range(None, None)
        assert await checked(4) < 5
        disk.before = lambda: None
        # Files are kept for a snapshot that are the store's no more.
        snapshot = await store.snapshot()
        database.compact_range(None, None)
        await store.apply(batch(numbered(range(5))), 5)
        await store.flush()
        database.compact_range(None, None)
        assert await checked(6) == 0
        await snapshot.close()
        await store.close()

    asyncio.run(main())


def test_a_directory_whose_name_is_not_utf8(tmp_path: Path) -> None:
    directory, kept = tmp_path / "st\udcff" / "s", tmp_path / "st\udcff" / "c"
    directory.mkdir(parents=True)

    async def main() -> None:
        for number in (1, 2):
            store = RocksDbKeyStore(str(directory), IDENTITY, Runtime())
            await store.open()
            await store.apply(batch(numbered([number])), number)
            await store.checkpoint(str(kept))
            await store.close()
        copy = RocksDbKeyStore(str(kept), IDENTITY, Runtime())
        await copy.open()
        assert await all_of(copy) == numbered([1, 2])
        await copy.close()

    asyncio.run(main())
    assert sorted(path.name for path in directory.parent.iterdir()) == ["c", "s"]


def test_a_file_that_another_wrote_over_is_in_no_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store = RocksDbKeyStore(str(tmp_path / "s"), IDENTITY, Runtime())
        await store.open()
        await store.apply(batch(numbered(range(100))), 1)
        await store.flush()
        table = max((tmp_path / "s").glob("*.sst"))
        table.write_bytes(table.read_bytes() + b"more")
        with pytest.raises(KeyStoreCorruptError, match="were written"):
            await store.checkpoint(str(tmp_path / "c"))
        await store.close()

    asyncio.run(main())
