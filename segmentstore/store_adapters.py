"""What a store's outside parts are made by: logs, BookKeeper's clients, Tier 2, the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from readindex.cache_storage import CacheStorage
from readindex.rocksdb_cache import RocksDbCache
from segmentstore.config import StoreConfig
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import (
    log_directory,
)
from segmentstore.tier1 import BookKeeperClients, open_clients
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage


class StoreAdapters(Protocol):
    """What a store's outside parts are made by: production's are `DefaultAdapters`, a simulated
    world has its own.
    """

    def log(
        self, location: str, container_id: int, config: StoreConfig, runtime: Runtime
    ) -> DurableDataLog:
        """Tier 1 of one container, where it is not on BookKeeper."""

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        """What the store speaks to BookKeeper by, opened; the store closes it.

        Raises ConfigError, TierUnavailableError.
        """

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        """Tier 2. Raises ConfigError."""

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        """The cache of the store."""


class DefaultAdapters:
    """File log (or memory), Tier 2 by its URL, RocksDB."""

    def __init__(self) -> None:
        self._memory = MemoryLogStore()

    def log(
        self, location: str, container_id: int, config: StoreConfig, runtime: Runtime
    ) -> DurableDataLog:
        if config.tier1 == "memory":
            return MemoryDataLog(
                self._memory, container_id, payload_bytes_max=config.frame_bytes_max
            )
        return FileLog(
            log_directory(location, container_id),
            container_id,
            runtime,
            file_bytes=config.log_file_bytes,
            payload_bytes_max=config.frame_bytes_max,
        )

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        return await open_clients(location, environment, runtime)

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return open_object_storage(url, runtime)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        return RocksDbCache(os.path.join(location, "cache"), runtime, config.cache_bytes_max)
