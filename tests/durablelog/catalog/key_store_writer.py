"""A process that changes a store of keys until it is killed: `key_store_writer.py FOLDER SEED`.

It reports each step on its standard output, after it is done. The number of a batch says what is in
it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime

IDENTITY = KeyStoreIdentity("killed", 3)
KEYS = 500


def key_of(number: int) -> bytes:
    return b"key %06d" % number


def batch_of(number: int) -> KeyBatch:
    """The changes that lead from `number - 1` to `number`: up to 600 KB."""
    rng = random.Random(number)
    batch = KeyBatch()
    start = rng.randrange(KEYS)
    batch.delete_range(StoreKeyRange(key_of(start), key_of(start + 20)))
    for _ in range(rng.randrange(100)):
        batch.put(key_of(rng.randrange(KEYS)), b"%d " % number * rng.randrange(2000))
    for _ in range(rng.randrange(20)):
        batch.delete(key_of(rng.randrange(KEYS)))
    batch.put(b"number", b"%d" % number)
    return batch


def make(keys: dict[bytes, bytes], batch: KeyBatch) -> None:
    """Do to a dictionary what a store does."""
    for key, value, end in batch:
        if value is not None:
            keys[key] = value
        elif end:
            for found in [each for each in keys if key <= each < end]:
                del keys[found]
        else:
            keys.pop(key, None)


async def main(folder: str, seed: int) -> None:
    rng = random.Random(seed)
    store = RocksDbKeyStore(f"{folder}/keys", IDENTITY, Runtime())
    await store.open()
    say("opened", store.sequence_number)
    while True:
        await store.apply(batch_of(store.sequence_number + 1), store.sequence_number + 1)
        say("applied", store.sequence_number)
        chance = rng.random()
        if chance < 0.2:
            say("flushed", await store.flush())
        elif chance < 0.25:
            made = await store.checkpoint(f"{folder}/checkpoint")
            say("flushed", made.sequence_number)


def say(step: str, number: int) -> None:
    os.write(1, f"{step} {number}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
