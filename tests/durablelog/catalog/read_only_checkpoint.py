"""What test_checkpoint_reading.py runs in a mount namespace of its own:
`read_only_checkpoint.py MOUNT`, an empty tmpfs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.catalog.checkpoint_reading import open_checkpoint_read_only
from durablelog.catalog.memory_key_store import MemoryCheckpointReader, MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbCheckpointReader, RocksDbKeyStore
from segmentstore.contracts.disk import OsDisk
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY
from tests.durablelog.catalog.test_metadata_catalog import Kind, built, everything


def main(mount: str) -> None:
    kinds: dict[str, Kind] = {"memory": MemoryKeyStore, "rocksdb": RocksDbKeyStore}
    readers = {"memory": MemoryCheckpointReader, "rocksdb": RocksDbCheckpointReader}
    states = {
        name: asyncio.run(built(Path(mount, name), kind, (5, 7, 9))) for name, kind in kinds.items()
    }
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    with pytest.raises(OSError, match="Read-only"):
        os.mkdir(f"{mount}/more")
    before = everything(Path(mount))
    for name, expected in states.items():
        for number, state in expected.items():
            folder = f"{mount}/{name}"
            with open_checkpoint_read_only(
                folder, IDENTITY, number, OsDisk(), readers[name]
            ) as reader:
                assert list(reader.pairs(EVERYTHING)) == state
    assert everything(Path(mount)) == before
    print("read")


if __name__ == "__main__":
    main(sys.argv[1])
