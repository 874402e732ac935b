"""A store of keys on a disk that is full: `full_key_store.py MOUNT`, an empty tmpfs of some MiB."""

from __future__ import annotations

import asyncio
import os
import random
import sys

import pytest

from durablelog.catalog.key_store import KeyBatch, KeyStore, KeyStoreFullError
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of


def fill(ballast: int) -> None:
    os.lseek(ballast, 0, os.SEEK_END)
    try:
        while True:
            os.write(ballast, bytes(4096))
    except OSError:
        pass


def random_batch(number: int) -> KeyBatch:
    batch, rng = KeyBatch(), random.Random(number)
    for key in range(100):
        batch.put(b"%d" % key, rng.randbytes(1000))
    return batch


async def check(mount: str, kind: type[MemoryKeyStore | RocksDbKeyStore]) -> None:
    folder = f"{mount}/{kind.__name__}"
    store: KeyStore = kind(folder, IDENTITY, Runtime())
    await store.open()
    await store.apply(random_batch(1), 1)
    await store.flush()
    flushed = await all_of(store)
    ballast = os.open(f"{mount}/ballast", os.O_CREAT | os.O_RDWR)
    fill(ballast)
    await store.apply(random_batch(2), 2)
    applied = await all_of(store)
    for call in (store.flush(), store.apply(random_batch(3), 3), store.checkpoint(mount + "/c")):
        with pytest.raises(KeyStoreFullError, match=folder):
            await call
    assert (store.sequence_number, await all_of(store)) == (2, applied)
    await store.close()
    fresh = kind(f"{mount}/fresh", IDENTITY, Runtime())
    with pytest.raises(KeyStoreFullError):
        await fresh.open()
    os.ftruncate(ballast, 0)
    await fresh.destroy()
    store = kind(folder, IDENTITY, Runtime())
    await store.open()
    there = await all_of(store)
    assert (store.sequence_number, there) in ((1, flushed), (2, applied))
    await store.apply(random_batch(4), 4)
    assert await store.flush() == 4
    await store.destroy()
    os.close(ballast)


if __name__ == "__main__":
    for each in (MemoryKeyStore, RocksDbKeyStore):
        asyncio.run(check(sys.argv[1], each))
