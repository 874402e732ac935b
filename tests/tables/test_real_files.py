"""Tables on real files, with RocksDB: opened again, with its index and without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from segmentstore.contracts.runtime import Runtime
from segmentstore.tables.index_files import index_directory, make_index_store
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.stored_index import StoredIndex
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS, TableEntry
from tests.store.harness import open_lazy, read_store_id, run

LIMITS = TableLimits(memory_index_bytes_max=10_000)
KEYS = [b"key %04d" % number for number in range(300)]


def damaged(location: str, how: str) -> None:
    directory = Path(index_directory(location))
    if how == "deleted":
        shutil.rmtree(directory)
    elif how == "flipped":
        tables = list(directory.glob("*.sst"))
        assert tables
        for path in tables:
            content = bytearray(path.read_bytes())
            content[len(content) // 3] ^= 1
            path.write_bytes(content)
    elif how == "cut":
        for path in directory.glob("MANIFEST-*"):
            path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("how", ["whole", "deleted", "flipped", "cut"])
def test_a_large_table_is_opened_again(tmp_path: Path, how: str) -> None:
    location = str(tmp_path / "s")

    def service(store: object) -> TableService:
        make = make_index_store(location, read_store_id(location), Runtime())
        return TableService(store, make, LIMITS)  # type: ignore[arg-type]

    async def main() -> None:
        entries = {}
        async with open_lazy(location, append_bytes_max=16384) as store:
            tables = service(store)
            await tables.create("t", 8)
            versions = await tables.update("t", [(key, NOT_EXISTS, key[4:]) for key in KEYS])
            entries = {
                key: TableEntry(key, version, key[4:])
                for key, version in zip(KEYS, versions, strict=True)
            }
            await tables.remove("t", [(KEYS[5], NO_VERSION)])
            del entries[KEYS[5]]
            index = tables._tables._tables["t"].index
            assert isinstance(index, StoredIndex)
            await index.settle()
            await tables.close()
        damaged(location, how)
        async with open_lazy(location, append_bytes_max=16384) as store:
            tables = service(store)
            for _ in range(2):
                found = await tables.get("t", KEYS)
                assert {entry.key: entry for entry in found if entry is not None} == entries
                page = await tables.keys("t", 1000)
                assert [key for key, _ in page.keys] == sorted(entries)
                assert (await tables.info("t")).entry_count == len(entries)
                (version,) = await tables.update("t", [(KEYS[7], entries[KEYS[7]].version, b"")])
                entries[KEYS[7]] = TableEntry(KEYS[7], version, b"")
            await tables.close()

    run(main())
