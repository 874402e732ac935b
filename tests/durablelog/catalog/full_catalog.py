"""A metadata catalog on a disk that is full: `full_catalog.py MOUNT`, an empty tmpfs of 10 MiB."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from durablelog.catalog.key_store import KeyStoreFullError
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from tests.contracts.key_store_contract import all_of
from tests.durablelog.catalog.full_key_store import fill, random_batch
from tests.durablelog.catalog.test_metadata_catalog import Kind, catalog, content, finished


async def check(mount: str, kind: Kind) -> None:
    folder = f"{mount}/{kind.__name__}"
    made = catalog(folder, kind)
    await made.begin_empty()
    await made.write([random_batch(1)], 1)
    state = await all_of(made.store)
    ballast = os.open(f"{mount}/ballast", os.O_CREAT | os.O_RDWR)
    fill(ballast)
    with pytest.raises(KeyStoreFullError):
        await made.write([random_batch(2)], 2)
    assert await made.has_checkpoint(1)
    await made.destroy_working()
    assert sorted(os.listdir(folder)) == [*finished(1), "lock"]
    fill(ballast)
    for _ in range(2):
        with pytest.raises(KeyStoreFullError):
            await made.begin_empty()
        with pytest.raises(KeyStoreFullError):
            await made.open_at(1)
    assert await made.has_checkpoint(1)
    checkpoint = await made.open_checkpoint(1)
    assert (checkpoint.sequence_number, await all_of(checkpoint)) == (1, state)
    await checkpoint.close()
    os.ftruncate(ballast, 0)
    await made.destroy_working()
    await made.begin_empty()
    await made.write([random_batch(3)], 3)
    later = await all_of(made.store)
    assert await content(made, 1) == state
    assert await content(made, 3) == later
    await made.destroy()
    os.close(ballast)


if __name__ == "__main__":
    for each in (MemoryKeyStore, RocksDbKeyStore):
        asyncio.run(check(sys.argv[1], each))
