"""Processes that are killed while they change a store of keys on RocksDB: a prefix of their batches
is there, whole, with its sequence number.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import all_of
from tests.durablelog.catalog.key_store_writer import IDENTITY, batch_of, make
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[3]
WRITER = "tests.durablelog.catalog.key_store_writer"


def killed(folder: Path, seed: int, steps: int) -> int:
    """Have a writer killed behind so many of its steps, in whatever it does then; what it is known
    to have flushed.
    """
    command = [sys.executable, "-m", WRITER, str(folder), str(seed)]
    flushed = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(steps):
            step, number = writer.stdout.readline().split()
            if step != "applied":
                flushed = int(number)
        writer.kill()
        for line in writer.stdout:
            if line.startswith("flushed") and line.endswith("\n"):
                flushed = int(line.split()[1])
    return flushed


async def check(folder: Path, keys: dict[bytes, bytes], number: int, flushed: int) -> int:
    """Check what is there, and bring `keys` from `number` to it; its number."""
    store = RocksDbKeyStore(str(folder / "keys"), IDENTITY, Runtime())
    await store.open()
    there = store.sequence_number
    assert there >= flushed
    for each in range(number + 1, there + 1):
        make(keys, batch_of(each))
    assert await all_of(store) == sorted(keys.items())
    await store.close()
    return there


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=slow(60))])
def test_a_killed_writer_leaves_a_prefix_of_its_batches(tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    keys: dict[bytes, bytes] = {}
    number = 0
    for seed in range(kills):
        flushed = killed(tmp_path, seed, rng.choice([1, 2, 5, 10, 40]))
        number = asyncio.run(check(tmp_path, keys, number, flushed))
    assert number > kills
