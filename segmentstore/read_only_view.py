"""A store that is read without being owned: on a read-only file system, and wherever its log is on
BookKeeper.

The engine is the ordinary one, over parts that cannot change anything. These are logs that are only
viewed (durablelog/file/file_log_view.py, durablelog/bookkeeper/bookkeeper_log_view.py), a Tier 2 of
which nothing but reads passes, a cache in memory, containers without processor and storage writer.
Rules of this file:

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

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from durablelog.bookkeeper.bookkeeper_clients import OpenClients, open_clients
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.cache_addresses import CacheAddresses
from readindex.memory_cache import MemoryCache
from recovery.stopped_catalogs import StoppedCatalogs
from segmentstore.config import StoreConfig
from segmentstore.container import ContainerResources, SegmentContainer
from segmentstore.contracts.errors import (
    ReadOnlyFileSystemError,
    ReadOnlyViewError,
    SegmentStoreError,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.contracts.waiting import open_or_release, outlast
from segmentstore.locked_folder import on_disk
from segmentstore.service import SegmentStore
from segmentstore.settings_sources import ENVIRONMENT_PREFIX, merge_settings
from segmentstore.store_file import StoreFile
from segmentstore.store_folder import (
    catalog_directory,
    check_tier2_is_not_misplaced,
    read_store_file,
    tier2_url,
)
from segmentstore.store_identity import check_identity
from segmentstore.store_parts import StoreParts, registry_of
from segmentstore.tier1 import make_log_factory
from segmentstore.tier2_start import Tier2Start
from tier2.locations import check_object_storage_url, open_object_storage
from tier2.read_only_object_storage import ReadOnlyObjectStorage
from tier2.store_markers import StoreMarkers

_CACHE_BYTES_MAX: Final = 256 * 1024 * 1024
"""In memory; un-flushed bytes that find no place there are read from the log again."""

_SERVE: Final = ENVIRONMENT_PREFIX + "SERVE"
_TIER2: Final = ENVIRONMENT_PREFIX + "TIER2"
"""Empty, it says "the default", which on BookKeeper is where the store was made."""


class _Viewed(NamedTuple):
    """What is known before a log is opened."""

    store_id: str
    config: StoreConfig
    reason: SegmentStoreError
    """Why a call that would change something is refused."""


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
    again). Costs the replay of the logs, and in files reading through them before.
    """
    return await open_or_release(
        _open_view(location, environment, runtime, clients), SegmentStore.close, "open view"
    )


async def _open_view(
    location: str, environment: Mapping[str, str], runtime: Runtime, clients: OpenClients
) -> SegmentStore:
    undo = UndoStack()
    try:
        file = await on_disk(runtime, location, read_store_file, location, runtime)
        tier1 = environment.get(ENVIRONMENT_PREFIX + "TIER1", "") or "file"
        if file is not None:
            tier1 = str(file.settings["tier1"])
        logs = make_log_factory(tier1, location, environment, runtime, connect=clients)
        await logs.open()
        undo.push(logs.close, abandon=logs.abandon)
        viewed = await _viewed(location, file, logs, environment, runtime)
        parts = _make_parts(location, viewed, logs, runtime, undo)
        await parts.cache.open()
        await parts.registry.start_all(viewed.config.viewed)
    except GeneratorExit:
        undo.abandon()  # the event loop was closed
        raise
    except BaseException:
        await outlast(own_task(undo.unwind(), name="undo opening"))
        raise
    return SegmentStore(parts)


async def _viewed(
    location: str,
    file: StoreFile | None,
    logs: DurableDataLogFactory,
    environment: Mapping[str, str],
    runtime: Runtime,
) -> _Viewed:
    identity = await check_identity(logs, file, location)
    if not logs.is_shared:
        assert file is not None, "without an identity elsewhere only a store.toml makes a store"
        config = merge_settings({}, environment, file.settings, existing=True)
        if not config.tier2:
            check_tier2_is_not_misplaced(location, runtime)
        return _Viewed(file.store_id, config, ReadOnlyFileSystemError(location))
    fixed: dict[str, object] = {
        "tier1": logs.tier1,
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
    return _Viewed(identity.store_id, config, ReadOnlyViewError(location))


def _make_parts(
    location: str,
    viewed: _Viewed,
    logs: DurableDataLogFactory,
    runtime: Runtime,
    undo: UndoStack,
) -> StoreParts:
    reading = viewed.config.read_index
    config = dataclasses.replace(
        viewed.config,
        read_index=dataclasses.replace(
            reading, cache_bytes_max=min(reading.cache_bytes_max, _CACHE_BYTES_MAX)
        ),
    )
    url = tier2_url(location, config)
    check_object_storage_url(url)
    storage = ReadOnlyObjectStorage(open_object_storage(url, runtime))
    undo.push(storage.close)
    cache = MemoryCache(config.read_index.cache_bytes_max)
    undo.push(cache.close)
    addresses = CacheAddresses()
    markers = StoreMarkers(storage, viewed.store_id)

    catalogs = StoppedCatalogs(
        partial(catalog_directory, location), viewed.store_id, runtime, RocksDbKeyStore
    )

    parts = StoreParts(
        location=location,
        store_id=viewed.store_id,
        config=config,
        runtime=runtime,
        logs=logs,
        storage=storage,
        cache=cache,
        make_catalog=catalogs.scratch,
        markers=markers,
        tier2_start=Tier2Start(storage, markers),
        undo=undo,
    )

    def make(
        container_id: int, cache_bytes: int, on_failure: Callable[[SegmentContainer], None]
    ) -> SegmentContainer:
        return SegmentContainer(
            container_id,
            ContainerResources(
                log=logs.make_view(container_id, viewed.store_id),
                storage=storage,
                cache=cache,
                addresses=addresses,
                cache_bytes=cache_bytes,
                config=config,
                runtime=runtime,
                store_id=viewed.store_id,
                catalog=catalogs.scratch(container_id),
            ),
            on_failure,
        )

    registry_of(parts, make, partial(SegmentContainer.start, view=viewed.reason))
    undo.push(parts.stop_containers)
    return parts
