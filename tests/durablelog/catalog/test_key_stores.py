"""The stores of keys against their contract."""

from __future__ import annotations

from pathlib import Path

from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, KeyStoreContract
from tests.contracts.key_store_scans import KeyStoreScans


class TestMemoryKeyStore(KeyStoreContract, KeyStoreScans):
    def make(self, folder: Path, identity: KeyStoreIdentity = IDENTITY) -> MemoryKeyStore:
        return MemoryKeyStore(str(folder), identity, Runtime())

    def data_files(self, folder: Path) -> list[Path]:
        return [path for path in sorted(folder.iterdir()) if path.name != "lock"]


class TestRocksDbKeyStore(KeyStoreContract, KeyStoreScans):
    def make(self, folder: Path, identity: KeyStoreIdentity = IDENTITY) -> RocksDbKeyStore:
        return RocksDbKeyStore(str(folder), identity, Runtime())

    def data_files(self, folder: Path) -> list[Path]:
        names = ("CURRENT", "MANIFEST-*", "*.sst")
        return [path for name in names for path in sorted(folder.glob(name))]
