"""A store's folder: made or recognised, locked, its parts opened in order and released in reverse.

store.toml     what was fixed at creation; its presence makes the folder a store
lock           held by the process that has the store open
log/<id>/      Tier 1 of each container (tier1 = "file"; on BookKeeper it is elsewhere: segmentstore/tier1.py)
cache/         RocksDB, throw-away
tier2/         objects, unless tier2 names another place
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation, is_bookkeeper_url
from durablelog.bookkeeper.store_node import StoreIdentity
from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.rocksdb_cache import RocksDbCache
from recovery import scrub_state
from recovery.background_scrub import BackgroundScrub
from segmentstore.catalog_export import CatalogExporter
from segmentstore.config import ENVIRONMENT_PREFIX, StoreConfig, StoreFile, merge_settings
from segmentstore.container import ContainerState, SegmentContainer
from segmentstore.contracts.disk import DiskFile, make_directories
from segmentstore.contracts.errors import (
    ConfigError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import (
    LOCK_NAME,
    keep_store_file,
    log_directory,
    new_store_id,
    read_store_file,
    unmake_store_file,
    write_store_file,
)
from segmentstore.tier1 import BookKeeperClients, SharedTier1, open_clients
from segmentstore.tier2_start import Tier2Start
from tier2.locations import check_object_storage_url, open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.store_markers import StoreMarkers

__all__ = [
    "LOCK_NAME",
    "DefaultAdapters",
    "StoreAdapters",
    "StoreParts",
    "log_directory",
    "open_store",
    "tier2_url",
]

if TYPE_CHECKING:
    # Loaded only where there is one.
    from segmentstore.local_face import LocalFace
    from segmentstore.metrics_endpoint import MetricsEndpoint

_CONTAINER_STARTS_AT_ONCE = 2


class StoreAdapters(Protocol):
    """What a store's outside parts are made by: production's are `DefaultAdapters`, a simulated world has its own."""

    def log(self, location: str, container_id: int, config: StoreConfig, runtime: Runtime) -> DurableDataLog:
        """Tier 1 of one container, where it is not on BookKeeper."""

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        """What the store speaks to BookKeeper by, opened; the store closes it. Raises ConfigError, TierUnavailableError."""

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

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        return await open_clients(location, environment, runtime)

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
    runtime: Runtime
    storage: ObjectStorage
    cache: CacheStorage
    containers: list[SegmentContainer]
    """Those that are served here, ascending."""
    tier1: SharedTier1 | None = None
    """What their logs share, on BookKeeper."""
    markers: StoreMarkers | None = None
    """Of the stores whose objects are where ours are; None in the store's own folder."""
    tier2_start: Tier2Start | None = None
    scrub: BackgroundScrub | None = None
    exporter: CatalogExporter | None = None
    endpoint: MetricsEndpoint | None = None
    face: LocalFace | None = None
    closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop the containers, then release what they shared; goes on past a part that fails.

        Done once, whoever asks and whoever stops waiting: all who call wait for the same end.
        """
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self._close(), name="close store")
        await asyncio.shield(self.closing)

    async def _close(self) -> None:
        if self.face is not None:
            await self.face.close()
        if self.endpoint is not None:
            await self.endpoint.close()
        if self.scrub is not None:
            await self.scrub.stop()
        if self.exporter is not None:
            await self.exporter.stop()
        if self.tier2_start is not None:
            await self.tier2_start.stop()
        outcomes = await asyncio.gather(*(container.stop() for container in self.containers), return_exceptions=True)
        try:
            await self.cache.close()
            await self.storage.close()
        finally:
            try:
                if self.tier1 is not None:
                    await self.tier1.close()
            finally:
                self.lock.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def tier2_url(location: str, config: StoreConfig) -> str:
    """Where the objects are, as a URL."""
    return config.tier2 or _own_tier2(location)


def _own_tier2(location: str) -> str:
    return pathlib.Path(location, "tier2").absolute().as_uri()


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
        taken = await asyncio.shield(taking)
        logs = os.path.dirname(log_directory(location, 0))
        had_logs = not taken.config.tier2 or await loop.run_in_executor(files, runtime.disk.exists, logs)
    except asyncio.CancelledError:
        taking.add_done_callback(_let_go)
        raise
    except OSError as error:
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
    finally:
        files.shutdown(wait=False)
    parts: StoreParts | None = None
    tier1: SharedTier1 | None = None
    try:
        if is_bookkeeper_url(taken.config.tier1):
            where = BookKeeperLocation.parse(taken.config.tier1)
            tier1 = SharedTier1(where, await adapters.bookkeeper(where, environment, runtime), runtime)
            taken = await _join(taken, tier1, options, environment, runtime)
            had_logs = await tier1.has_logs()
        config, made = taken.config, taken.made
        assert taken.file is not None
        storage = adapters.storage(tier2_url(location, config), runtime)
        cache = adapters.cache(location, config, runtime)
        parts = StoreParts(
            location=location,
            store_id=taken.file.store_id,
            config=config,
            lock=taken.lock,
            runtime=runtime,
            storage=storage,
            cache=cache,
            containers=[],
            tier1=tier1,
        )
        if config.tier2:
            parts.markers = StoreMarkers(storage, parts.store_id)
            parts.tier2_start = Tier2Start(storage, parts.markers)
            if had_logs:
                parts.tier2_start.begin()
            else:
                await _insist(parts, taken)
        if tier1 is not None:
            await _pin(parts, tier1, taken)
        _add_containers(parts, runtime, adapters, made=made)
        parts.exporter = CatalogExporter(storage, parts.containers, runtime, parts.store_id, config)
        for container in parts.containers:
            container.writer.mailbox.export = parts.exporter.hook(container)
        await cache.open()
        await _start(parts.containers)
        if tier2_url(location, config) != _own_tier2(location):
            await _stay(parts)
        parts.exporter.start()
        if config.scrub_bytes_per_s:
            parts.scrub = _scrub(parts, runtime)
            parts.scrub.start()
    except BaseException:
        if parts is not None:
            await parts.close()
        else:
            try:
                if tier1 is not None:
                    await tier1.close()
            finally:
                taken.lock.close()
        raise
    return parts


class _Taken(NamedTuple):
    """A folder that is ours now."""

    location: str
    lock: DiskFile
    file: StoreFile | None
    """None of a folder that is to become a store's on BookKeeper: whose, its node says."""
    config: StoreConfig
    made: bool
    """The store was made by this very opening."""
    new: bool
    """The folder became a store's by this very opening, which made the store or joined it."""


def _let_go(taking: asyncio.Future[_Taken]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().lock.close()


def _take(location: str, options: Mapping[str, object], environment: Mapping[str, str], runtime: Runtime) -> _Taken:
    """Lock the folder and settle its settings; whether the folder became a store by it. Blocking."""
    disk = runtime.disk
    file = read_store_file(location, runtime)
    config = _merged(options, environment, file)
    if is_bookkeeper_url(config.tier1):
        BookKeeperLocation.parse(config.tier1)
    elif config.tier1 not in {"file", "memory"}:
        raise ConfigError("tier1", f'{config.tier1!r} is not "file", "memory" or a bookkeeper:// URL')
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
        made = file is None and not is_bookkeeper_url(config.tier1)
        if made:
            store_id = new_store_id(runtime)
            file = write_store_file(location, store_id, config, runtime, store_id)
            if file.store_id != store_id:
                made, config = False, _merged(options, environment, file)
        elif file is not None:
            config = _merged(options, environment, file)
            # Who made it may have died between giving it its name and making that durable.
            disk.sync_directory(location)
    except BaseException:
        lock.close()
        raise
    return _Taken(location, lock, file, config, made=made, new=made)


def _merged(options: Mapping[str, object], environment: Mapping[str, str], file: StoreFile | None) -> StoreConfig:
    """What is known before anybody but this folder was asked."""
    if file is None:
        # Which containers there are to serve, a store on BookKeeper may know better.
        known = merge_settings(*_without(options, environment, "serve"), {}, existing=False)
        return known if is_bookkeeper_url(known.tier1) else merge_settings(options, environment, {}, existing=False)
    if is_bookkeeper_url(str(file.settings["tier1"])):
        options, environment = _without_own_folder(options, environment)
    return merge_settings(options, environment, file.settings, existing=True)


def _without_own_folder(
    options: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Without a `tier2` that says "the default": of a store on BookKeeper it is where the store was made."""
    given = options.get("tier2", environment.get(ENVIRONMENT_PREFIX + "TIER2"))
    return _without(options, environment, "tier2") if given == "" else (options, environment)


def _without(
    options: Mapping[str, object], environment: Mapping[str, str], name: str
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    return (
        {key: value for key, value in options.items() if key != name},
        {key: value for key, value in environment.items() if key != ENVIRONMENT_PREFIX + name.upper()},
    )


async def _join(
    taken: _Taken, tier1: SharedTier1, options: Mapping[str, object], environment: Mapping[str, str], runtime: Runtime
) -> _Taken:
    """The settings a store on BookKeeper has by its node, which is made if this folder may make a store."""
    wished = StoreIdentity(new_store_id(runtime), taken.config.containers, tier2_url(taken.location, taken.config))
    identity, made = await tier1.agree(taken.file, wished)
    settings = dict(taken.file.settings) if taken.file is not None else {"tier1": taken.config.tier1}
    settings |= {"containers": identity.containers, "tier2": identity.tier2}
    config = merge_settings(*_without_own_folder(options, environment), settings, existing=True)
    check_object_storage_url(config.tier2)
    file = taken.file
    if file is None:
        executor = runtime.executor("open", 1)
        writing = asyncio.get_running_loop().run_in_executor(
            executor, write_store_file, taken.location, identity.store_id, config, runtime, wished.store_id
        )
        try:
            file = await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The lock is let go of by who is told: not before the file is written.
            await asyncio.wait((writing,))
            raise
        except OSError as error:
            raise TierUnavailableError("tier1", f"{taken.location}: {error}") from error
        finally:
            executor.shutdown(wait=False)
    return taken._replace(file=file, config=config, made=made, new=taken.file is None)


async def _insist(parts: StoreParts, taken: _Taken) -> None:
    assert parts.tier2_start is not None
    try:
        await parts.tier2_start.insist()
    except BaseException:
        if taken.new and parts.config.tier2 != _own_tier2(parts.location):
            # A store made with a Tier 2 that cannot be one could never be mended: its file names it for ever.
            await _leave(parts)
            if taken.made and parts.tier1 is not None:
                await parts.tier1.unmake(_identity(parts))
        raise


async def _pin(parts: StoreParts, tier1: SharedTier1, taken: _Taken) -> None:
    try:
        await tier1.pin(_identity(parts))
    except BaseException:
        if taken.new and not taken.made and parts.config.tier2 != _own_tier2(parts.location):
            # Who makes the store may take it back: then this folder would be of a store that is nowhere. The maker of a store
            # whose objects are in this very folder was of this folder, and takes nothing back.
            await _leave(parts)
        raise


def _identity(parts: StoreParts) -> StoreIdentity:
    return StoreIdentity(parts.store_id, parts.config.containers, parts.config.tier2)


async def _leave(parts: StoreParts) -> None:
    """Make the folder one that is no store's yet."""
    await _with_files(parts, unmake_store_file)


async def _stay(parts: StoreParts) -> None:
    """Who made the store may have taken it back, who had lost its lock without knowing: it is ours, and stays."""
    await _with_files(parts, keep_store_file)


async def _with_files(parts: StoreParts, work: Callable[[str, str, StoreConfig, Runtime], None]) -> None:
    files = parts.runtime.executor("open", 1)
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(files, work, parts.location, parts.store_id, parts.config, parts.runtime)
    except OSError as error:
        raise TierUnavailableError("tier1", f"{parts.location}: {error}") from error
    finally:
        files.shutdown(wait=False)


def _add_containers(parts: StoreParts, runtime: Runtime, adapters: StoreAdapters, *, made: bool) -> None:
    addresses = CacheAddresses()
    config, tier1 = parts.config, parts.tier1
    for container_id in config.served:
        log = (
            tier1.log(container_id, parts.store_id, config)
            if tier1 is not None
            else adapters.log(parts.location, container_id, config, runtime)
        )
        parts.containers.append(
            SegmentContainer(
                container_id,
                log=log,
                storage=parts.storage,
                cache=parts.cache,
                addresses=addresses,
                config=config,
                runtime=runtime,
                store_id=parts.store_id,
                made=made,
            )
        )
        if parts.markers is not None:
            parts.containers[-1].writer.orphan_sweeper.shared_with = parts.markers.shared_with
            parts.containers[-1].writer.upload_after(parts.markers.ensure)


def _scrub(parts: StoreParts, runtime: Runtime) -> BackgroundScrub:
    def live(container: SegmentContainer) -> Callable[[], ContainerMetadata | None]:
        return lambda: container.metadata if container.state is ContainerState.RUNNING else None

    return BackgroundScrub(
        parts.storage,
        {container.container_id: live(container) for container in parts.containers},
        runtime,
        bytes_per_s=parts.config.scrub_bytes_per_s,
        path=os.path.join(parts.location, scrub_state.FILE_NAME),
        store_id=parts.store_id,
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
