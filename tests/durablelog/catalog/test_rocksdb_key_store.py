"""How the store of keys uses RocksDB: its bounds, and whose options count."""

from __future__ import annotations

import asyncio
from pathlib import Path

from durablelog.catalog.rocksdb_key_store import (
    CACHE_BYTES,
    RUNS_MAX,
    WRITE_BUFFER_BYTES,
    RocksDbKeyStore,
)
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
        # RocksDB has flushed nothing by itself, and had nobody wait.
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
