"""A store that is read without being owned: on a read-only file system, and wherever its log is on
BookKeeper.

The engine is the ordinary one, over parts that cannot change anything: logs that are only viewed
(durablelog/file/file_log_view.py, durablelog/bookkeeper/bookkeeper_log_view.py), a Tier 2 of which
nothing but reads passes, a cache in memory, containers without processor and storage writer. Rules
of this file:

- nothing is locked or written, here or in Tier 2, which may be writable: a view that uploaded,
  deleted, marked or answered anything would be a second owner. On BookKeeper nothing is claimed or
  fenced;
- none of the store's background work is begun: scrub, copies of the metadata, catalog, mailbox,
  sweeps, metrics;
- an owner elsewhere (another mount of the same folder, another process on BookKeeper) goes on
  undisturbed: the view is as of its opening. What that owner deletes from Tier 2 later is missed by
  it;
- on BookKeeper all containers are shown, whatever `serve` says: that is what an owner takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation, is_bookkeeper_url
from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log_view import FileLogView
from readindex.cache_addresses import CacheAddresses
from readindex.memory_cache import MemoryCache
from segmentstore.config import (
    ENVIRONMENT_PREFIX,
    FILE_NAME,
    StoreConfig,
    StoreFile,
    merge_settings,
)
from segmentstore.container import SegmentContainer
from segmentstore.contracts.errors import (
    ConfigError,
    NotAStoreError,
    ReadOnlyFileSystemError,
    ReadOnlyViewError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import open_or_release, outlast
from segmentstore.service import SegmentStore
from segmentstore.store_files import StoreParts, tier2_url
from segmentstore.store_folder import check_tier2_is_not_misplaced, log_directory, read_store_file
from segmentstore.tier1 import BookKeeperClients, SharedTier1, open_clients
from segmentstore.tier2_start import Tier2Start
from tier2.locations import check_object_storage_url, open_object_storage
from tier2.read_only_object_storage import ReadOnlyObjectStorage
from tier2.store_markers import StoreMarkers

_CACHE_BYTES_MAX: Final = 256 * 1024 * 1024
"""In memory; un-flushed bytes that find no place there are read from the log again."""

_SERVE: Final = ENVIRONMENT_PREFIX + "SERVE"
_TIER2: Final = ENVIRONMENT_PREFIX + "TIER2"
"""Empty, it says "the default", which on BookKeeper is where the store was made."""

OpenClients = Callable[
    [BookKeeperLocation, Mapping[str, str], Runtime], Coroutine[Any, Any, BookKeeperClients]
]


class _Viewed(NamedTuple):
    """What is known before a log is opened."""

    store_id: str
    config: StoreConfig
    reason: SegmentStoreError
    """Why a call that would change something is refused."""
    tier1: SharedTier1 | None = None


async def open_view(
    location: str,
    environment: Mapping[str, str],
    runtime: Runtime,
    *,
    clients: OpenClients = open_clients,
) -> SegmentStore:
    """A view of a store, as of now; reads are served, all else is refused (ContainerStoppedError
    names why).

    `location` is the store's folder. Of a store on BookKeeper it need not be there, if
    SEGMENTSTORE_TIER1 says which. Raises NotAStoreError, ConfigError (the log is in memory),
    DataCorruptionError, TierUnavailableError (an owner elsewhere changed the log meanwhile: try
    again). Costs the replay of the logs, and in files looking through them before.
    """
    return await open_or_release(
        _open_view(location, environment, runtime, clients), SegmentStore.close, "open view"
    )


async def _open_view(
    location: str, environment: Mapping[str, str], runtime: Runtime, clients: OpenClients
) -> SegmentStore:
    executor = runtime.executor("open", 1)
    try:
        file = await asyncio.get_running_loop().run_in_executor(
            executor, read_store_file, location, runtime
        )
    except OSError as error:
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
    finally:
        executor.shutdown(wait=False)
    tier1 = (
        str(file.settings["tier1"])
        if file is not None
        else environment.get(ENVIRONMENT_PREFIX + "TIER1", "")
    )
    if is_bookkeeper_url(tier1):
        viewed = await _on_bookkeeper(location, file, tier1, environment, runtime, clients)
    else:
        viewed = _in_files(location, file, environment, runtime)
    try:
        parts = _make_parts(location, viewed, runtime)
    except BaseException:
        if viewed.tier1 is not None:
            await outlast(own_task(viewed.tier1.close(), name="close clients"))
        raise
    try:
        await parts.cache.open()
        for container in parts.containers:
            await container.start(view=viewed.reason)
    except BaseException:
        await parts.close()
        raise
    return SegmentStore(parts)


def _in_files(
    location: str, file: StoreFile | None, environment: Mapping[str, str], runtime: Runtime
) -> _Viewed:
    if file is None:
        raise NotAStoreError(location, f"it has no {FILE_NAME}")
    if file.settings["tier1"] != "file":
        detail = (
            "a store on a read-only file system is read only where its log is in files, or "
            "on BookKeeper; this one's"
        )
        raise ConfigError("tier1", f"{detail} is in memory: mount it writable")
    config = merge_settings({}, environment, file.settings, existing=True)
    if not config.tier2:
        check_tier2_is_not_misplaced(location, runtime)
    return _Viewed(file.store_id, config, ReadOnlyFileSystemError(location))


async def _on_bookkeeper(
    location: str,
    file: StoreFile | None,
    url: str,
    environment: Mapping[str, str],
    runtime: Runtime,
    clients: OpenClients,
) -> _Viewed:
    where = BookKeeperLocation.parse(url)
    tier1 = SharedTier1(where, await clients(where, environment, runtime), runtime)
    try:
        identity = await tier1.identity(file)
        fixed: dict[str, object] = {
            "tier1": url,
            "containers": identity.containers,
            "tier2": identity.tier2,
        }
        settings = {**fixed, **file.settings} if file is not None else fixed
        mine = {
            key: value
            for key, value in environment.items()
            if key != _SERVE and (value or key != _TIER2)
        }
        config = merge_settings({}, mine, {**settings, "serve": "all"}, existing=True)
    except BaseException:
        await outlast(own_task(tier1.close(), name="close clients"))
        raise
    return _Viewed(identity.store_id, config, ReadOnlyViewError(location), tier1)


def _make_parts(location: str, viewed: _Viewed, runtime: Runtime) -> StoreParts:
    config = dataclasses.replace(
        viewed.config, cache_bytes_max=min(viewed.config.cache_bytes_max, _CACHE_BYTES_MAX)
    )
    url = tier2_url(location, config)
    check_object_storage_url(url)
    storage = ReadOnlyObjectStorage(open_object_storage(url, runtime))
    cache = MemoryCache(config.cache_bytes_max)
    addresses = CacheAddresses()
    markers = StoreMarkers(storage, viewed.store_id)
    return StoreParts(
        location=location,
        store_id=viewed.store_id,
        config=config,
        lock=None,
        runtime=runtime,
        storage=storage,
        cache=cache,
        containers=[
            SegmentContainer(
                container_id,
                log=_log(location, container_id, viewed, runtime),
                storage=storage,
                cache=cache,
                addresses=addresses,
                config=config,
                runtime=runtime,
                store_id=viewed.store_id,
            )
            for container_id in config.served
        ],
        markers=markers,
        tier2_start=Tier2Start(storage, markers),
        tier1=viewed.tier1,
    )


def _log(location: str, container_id: int, viewed: _Viewed, runtime: Runtime) -> DurableDataLog:
    if viewed.tier1 is not None:
        return viewed.tier1.log_view(container_id, viewed.store_id)
    return FileLogView(log_directory(location, container_id), container_id, runtime)
