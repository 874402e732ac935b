"""A store whose catalog an earlier program wrote: it opens, and the catalog is made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog import key_store_records
from durablelog.catalog.catalog_keys import TOTALS, UNFLUSHED
from durablelog.catalog.catalog_loading import load_totals
from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.key_store import KeyBatch
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import open_lazy, read_all, read_store_id, run, until

SEGMENTS = 20
SETTINGS: dict[str, Any] = {"inline_checkpoint_bytes_max": 0, "active_segments_max": 4}


async def fill(store: SegmentStore, text: bytes) -> None:
    for number in range(SEGMENTS):
        if text == b"old":
            await store.create_segment(f"s{number}")
        await store.append(f"s{number}", text)


async def check(store: SegmentStore, content: bytes) -> None:
    for number in range(SEGMENTS):
        assert await read_all(store, f"s{number}") == content
    assert store.stats()["health"] == []


async def checkpoint(store: SegmentStore) -> None:
    before = store.stats()["containers"][0]["snapshots"]["completed"]
    await store.flush()
    await store.checkpoint()
    await until(lambda: store.stats()["containers"][0]["snapshots"]["completed"] > before)


def as_version_1(patched: pytest.MonkeyPatch) -> None:
    """Write catalogs as the program before did: without two tables."""
    write = RocksDbKeyStore._write

    def write_old(store: RocksDbKeyStore, batch: KeyBatch, own: dict[bytes, bytes]) -> None:
        old = KeyBatch()
        for key, value, end in batch:
            if key[:1] in (UNFLUSHED, TOTALS):
                continue
            assert not end
            if value is None:
                old.delete(key)
            else:
                old.put(key, value)
        write(store, old, own)

    patched.setattr(key_store_records, "VERSION", 1)
    patched.setattr(RocksDbKeyStore, "_write", write_old)


async def totals_of(folder: Path, store_id: str) -> CatalogTotals | None:
    """Of the newest checkpoint of the catalog on local disk."""
    newest = max(path for path in (folder / "catalog" / "0").glob("0*") if path.is_dir())
    catalog = RocksDbKeyStore(str(newest), KeyStoreIdentity(store_id, 0), Runtime())
    await catalog.open_read_only()
    try:
        return await load_totals(catalog)
    finally:
        await catalog.close()


def test_a_store_with_a_catalog_of_version_1_opens_and_writes_it_anew(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patched:
            as_version_1(patched)
            settings = SETTINGS | {"active_segments_max": 100}
            async with open_lazy(tmp_path, **settings) as store:
                await fill(store, b"old")
                await checkpoint(store)
        store_id = read_store_id(tmp_path)
        assert await totals_of(tmp_path, store_id) is None
        async with open_lazy(tmp_path, **SETTINGS) as store:
            stats = store.stats()["containers"][0]
            assert stats["snapshots"]["downloaded"] is False
            # All are in memory, whatever the bound says: the old catalog is of no more use.
            assert stats["active_segments"]["count"] == SEGMENTS
            await check(store, b"old")
            await fill(store, b"-new")
            await checkpoint(store)
        assert await totals_of(tmp_path, store_id) == CatalogTotals(SEGMENTS)
        async with open_lazy(tmp_path, **SETTINGS) as store:
            await check(store, b"old-new")
            assert store.stats()["containers"][0]["active_segments"]["count"] <= 4

    run(main())
