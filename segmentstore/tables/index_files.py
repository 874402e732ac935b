"""Where the indexes of large tables are in a store's folder."""

from __future__ import annotations

from collections.abc import Callable

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime


def index_directory(location: str) -> str:
    """The directory of them, in the folder of a store; it may be deleted while none is open."""
    return f"{location}/tables"


def make_index_store(location: str, store_id: str, runtime: Runtime) -> Callable[[], KeyStore]:
    """What TableService makes its store of keys by: a RocksDB in the store's folder.

    A restored store has another id, and builds its indexes anew.
    """
    identity = KeyStoreIdentity(store_id, 0)
    return lambda: RocksDbKeyStore(index_directory(location), identity, runtime)
