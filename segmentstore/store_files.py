"""A store's folder: made or recognised, locked, its parts opened in order and released in reverse.

store.toml     what was fixed at creation; its presence makes the folder a store
lock           held by the process that has the store open
log/<id>/      Tier 1 of each container (tier1 = "file")
cache/         RocksDB, throw-away
tier2/         objects, unless tier2 names another place
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.rocksdb_cache import RocksDbCache
from segmentstore.config import FILE_NAME, StoreConfig, StoreFile, merge_settings, parse_store_file, render_store_file
from segmentstore.container import SegmentContainer
from segmentstore.contracts.disk import DiskFile, make_directories
from segmentstore.contracts.errors import ConfigError, NotAStoreError, StoreInUseError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tier2.locations import check_object_storage_url, open_object_storage
from tier2.object_storage import ObjectStorage

LOCK_NAME = "lock"
_CONTAINER_STARTS_AT_ONCE = 2


class StoreAdapters(Protocol):
    """What a store's outside parts are made by: production's are `DefaultAdapters`, a simulated world has its own."""

    def log(self, location: str, container_id: int, config: StoreConfig, runtime: Runtime) -> DurableDataLog:
        """Tier 1 of one container."""

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        """Tier 2. Raises ConfigError."""

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        """The cache of the store."""


class DefaultAdapters:
    """File log (or memory), Tier 2 by its URL, RocksDB."""

    def __init__(self) -> None:
        self._memory = MemoryLogStore()

    def log(self, location: str, container_id: int, config: StoreConfig, runtime: Runtime) -> DurableDataLog:
        if config.tier1 == "memory":
            return MemoryDataLog(self._memory, container_id, payload_bytes_max=config.frame_bytes_max)
        return FileLog(
            log_directory(location, container_id),
            container_id,
            runtime,
            file_bytes=config.log_file_bytes,
            payload_bytes_max=config.frame_bytes_max,
        )

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return open_object_storage(url, runtime)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        return RocksDbCache(os.path.join(location, "cache"), runtime, config.cache_bytes_max)


@dataclass(slots=True, kw_only=True)
class StoreParts:
    """Everything an open store is made of."""

    location: str
    store_id: str
    config: StoreConfig
    lock: DiskFile
    storage: ObjectStorage
    cache: CacheStorage
    containers: list[SegmentContainer]
    closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop the containers, then release what they shared; goes on past a part that fails.

        Done once, whoever asks and whoever stops waiting: all who call wait for the same end.
        """
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self._close(), name="close store")
        await asyncio.shield(self.closing)

    async def _close(self) -> None:
        outcomes = await asyncio.gather(*(container.stop() for container in self.containers), return_exceptions=True)
        try:
            await self.cache.close()
            await self.storage.close()
        finally:
            self.lock.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def log_directory(location: str, container_id: int) -> str:
    """Where the file log of a container is."""
    return os.path.join(location, "log", str(container_id))


def tier2_url(location: str, config: StoreConfig) -> str:
    """Where the objects are, as a URL."""
    return config.tier2 or pathlib.Path(location, "tier2").absolute().as_uri()


def read_store_file(location: str, runtime: Runtime) -> StoreFile | None:
    """What `store.toml` says; None if the folder is empty or absent. Raises NotAStoreError, ConfigError.

    A folder that holds nothing but our own lock (a creation that was interrupted) counts as empty.
    """
    disk = runtime.disk
    path = os.path.join(location, FILE_NAME)
    if not disk.exists(path):
        if disk.exists(location):
            if not disk.is_directory(location):
                raise NotAStoreError(location, "it is not a folder")
            left_over = {LOCK_NAME, FILE_NAME + ".new"}
            foreign = [name for name in disk.list_directory(location) if name not in left_over]
            if foreign:
                raise NotAStoreError(location, f"the folder has no {FILE_NAME} and is not empty ({foreign[0]})")
        return None
    file = disk.open(path)
    try:
        return parse_store_file(file.pread(0, file.size()).decode())
    except UnicodeDecodeError:
        raise ConfigError(FILE_NAME, "not UTF-8 text") from None
    finally:
        file.close()


async def open_store(
    location: str,
    options: Mapping[str, object],
    environment: Mapping[str, str],
    runtime: Runtime,
    adapters: StoreAdapters | None = None,
) -> StoreParts:
    """Open the store in a folder, making what is not there. On any failure everything is released again."""
    adapters = adapters if adapters is not None else DefaultAdapters()
    location = os.path.abspath(location)
    files = runtime.executor("open", 1)
    loop = asyncio.get_running_loop()
    taking = loop.run_in_executor(files, _take, location, options, environment, runtime)
    try:
        # Shielded: a caller who gives up must not leave behind a lock that nobody knows of.
        lock, file, config = await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_let_go)
        raise
    except OSError as error:
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
    finally:
        files.shutdown(wait=False)
    parts: StoreParts | None = None
    try:
        storage = adapters.storage(tier2_url(location, config), runtime)
        cache = adapters.cache(location, config, runtime)
        parts = StoreParts(
            location=location,
            store_id=file.store_id,
            config=config,
            lock=lock,
            storage=storage,
            cache=cache,
            containers=[],
        )
        await cache.open()
        _add_containers(parts, runtime, adapters)
        await _start(parts.containers)
    except BaseException:
        if parts is None:
            lock.close()
        else:
            await parts.close()
        raise
    return parts


def _let_go(taking: asyncio.Future[tuple[DiskFile, StoreFile, StoreConfig]]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result()[0].close()


def _take(
    location: str, options: Mapping[str, object], environment: Mapping[str, str], runtime: Runtime
) -> tuple[DiskFile, StoreFile, StoreConfig]:
    """Lock the folder and settle its settings. Blocking."""
    disk = runtime.disk
    file = read_store_file(location, runtime)
    config = merge_settings(options, environment, file.settings if file else {}, existing=file is not None)
    if config.tier1 not in {"file", "memory"}:
        raise ConfigError("tier1", f'{config.tier1!r} is not "file" or "memory"')
    # Before store.toml keeps it for ever: a store made with a tier2 nobody can open could never be mended.
    check_object_storage_url(tier2_url(location, config))
    make_directories(disk, location)
    try:
        lock = disk.lock(os.path.join(location, LOCK_NAME))
    except BlockingIOError:
        raise StoreInUseError(location, "another process has it open") from None
    try:
        # Looked at again under the lock: two processes may be making the same store.
        file = read_store_file(location, runtime)
        if file is None:
            file = _write_store_file(location, config, runtime)
        else:
            config = merge_settings(options, environment, file.settings, existing=True)
    except BaseException:
        lock.close()
        raise
    return lock, file, config


def _write_store_file(location: str, config: StoreConfig, runtime: Runtime) -> StoreFile:
    disk = runtime.disk
    store_id = str(uuid.UUID(int=runtime.random.getrandbits(128), version=4))
    text = render_store_file(store_id, config)
    path = os.path.join(location, FILE_NAME)
    file = disk.open(path + ".new", write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode()], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(path + ".new", path)
    disk.sync_directory(location)
    return parse_store_file(text)


def _add_containers(parts: StoreParts, runtime: Runtime, adapters: StoreAdapters) -> None:
    addresses = CacheAddresses()
    for container_id in range(parts.config.containers):
        parts.containers.append(
            SegmentContainer(
                container_id,
                log=adapters.log(parts.location, container_id, parts.config, runtime),
                storage=parts.storage,
                cache=parts.cache,
                addresses=addresses,
                config=parts.config,
                runtime=runtime,
            )
        )


async def _start(containers: list[SegmentContainer]) -> None:
    turns = asyncio.Semaphore(_CONTAINER_STARTS_AT_ONCE)

    async def start(container: SegmentContainer) -> None:
        async with turns:
            await container.start()

    results = await asyncio.gather(*(start(container) for container in containers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
