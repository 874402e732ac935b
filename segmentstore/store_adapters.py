"""What a store's outside parts are made by: its logs, Tier 2, the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.cache_storage import CacheStorage
from readindex.rocksdb_cache import RocksDbCache
from segmentstore.config import StoreConfig
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import catalog_directory
from segmentstore.tier1 import make_log_factory
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage

if TYPE_CHECKING:
    from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
    from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation


class StoreAdapters(Protocol):
    """What a store's outside parts are made by: production's are `DefaultAdapters`, a simulated
    world has its own.
    """

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        """Tier 1, not opened yet; the store opens and closes it. Raises ConfigError."""

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        """Tier 2. Raises ConfigError."""

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        """The cache of the store."""

    def key_store(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> KeyStore:
        """A store of keys for a container's metadata catalog, not opened yet."""


def make_catalog(
    location: str, store_id: str, adapters: StoreAdapters, runtime: Runtime, container_id: int
) -> MetadataCatalog:
    """The metadata catalog of a container, in the store's folder."""
    return MetadataCatalog(
        catalog_directory(location, container_id),
        KeyStoreIdentity(store_id, container_id),
        runtime,
        adapters.key_store,
    )


class DefaultAdapters:
    """Tier 1 and Tier 2 by their settings, RocksDB."""

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        return make_log_factory(tier1, location, environment, runtime, connect=self.bookkeeper)

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        """Connect to the services of a store on BookKeeper. Raises as `open_clients`."""
        from durablelog.bookkeeper.bookkeeper_clients import open_clients  # noqa: PLC0415

        return await open_clients(location, environment, runtime)

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return open_object_storage(url, runtime)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        return RocksDbCache(
            os.path.join(location, "cache"), runtime, config.read_index.cache_bytes_max
        )

    def key_store(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> KeyStore:
        return RocksDbKeyStore(directory, identity, runtime)
