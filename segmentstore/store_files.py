"""A store's folder: made or recognised, locked, its parts opened in order and released in reverse.

store.toml what was fixed at creation; its presence makes the folder a store lock held by the
process that has the store open log/<id>/ Tier 1 of each container (tier1 = "file"; on BookKeeper it
is elsewhere: segmentstore/tier1.py) cache/ RocksDB, throw-away tier2/ objects, unless tier2 names
another place
"""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation, is_bookkeeper_url
from durablelog.bookkeeper.log_owner import folder_name
from durablelog.bookkeeper.store_node import StoreIdentity
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from recovery.background_scrub import BackgroundScrub
from recovery.loss_keeper import LossKeeper
from segmentstore.cancellation_watch import CancellationWatch
from segmentstore.catalog_export import CatalogExporter
from segmentstore.config import ENVIRONMENT_PREFIX, StoreConfig, StoreFile, merge_settings
from segmentstore.container import SegmentContainer
from segmentstore.contracts.disk import DiskFile, is_read_only
from segmentstore.contracts.errors import (
    ConfigError,
    ReadOnlyFileSystemError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.contracts.waiting import open_or_release, outlast
from segmentstore.store_adapters import DefaultAdapters, StoreAdapters
from segmentstore.store_folder import (
    LOCK_NAME,
    change_tier1,
    check_tier2_is_not_misplaced,
    keep_store_file,
    keep_to_ourselves,
    kept_secrets,
    leave_nothing,
    lock_folder,
    log_directory,
    new_store_id,
    read_store_file,
    unmake_store_file,
    write_store_file,
)
from segmentstore.tier1 import SharedTier1
from segmentstore.tier2_start import Tier2Start
from segmentstore.tier2_watch import has_objects, losses_of, scrub_of
from storagewriter.mailbox_pace import wake_together
from tier2.locations import check_object_storage_url
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
    from segmentstore.local_server import LocalServer
    from segmentstore.metrics_endpoint import MetricsEndpoint
    from segmentstore.open_stores import OpenStore

_log = logging.getLogger(__name__)

_CONTAINER_STARTS_AT_ONCE = 2


@dataclass(slots=True, kw_only=True, eq=False)
class StoreParts:
    """Everything an open store is made of."""

    location: str
    store_id: str
    config: StoreConfig
    lock: DiskFile | None
    """None of a view, which owns nothing."""
    runtime: Runtime
    storage: ObjectStorage
    cache: CacheStorage
    containers: list[SegmentContainer]
    """Those that are served here, ascending."""
    tier1: SharedTier1 | None = None
    """What their logs share, on BookKeeper."""
    markers: StoreMarkers
    """Of the stores whose objects are where ours are."""
    tier2_start: Tier2Start
    scrub: BackgroundScrub | None = None
    losses: LossKeeper | None = None
    exporter: CatalogExporter | None = None
    endpoint: MetricsEndpoint | None = None
    face: LocalServer | None = None
    findings: Sequence[str] = ()
    """What is wrong with how the store is kept, a sentence each, for its health."""
    closing: asyncio.Task[None] | None = None
    watch: CancellationWatch | None = None
    registered: OpenStore | None = None
    """What the process knows it by, if it was opened for a program."""

    async def close(self) -> None:
        """Stop the containers, then release what they shared; goes on past a part that fails.

        Done once, whoever asks and whoever stops waiting: all who call wait for the same end.
        """
        await asyncio.shield(self.begin_close())

    def begin_close(self) -> asyncio.Task[None]:
        """The task that closes."""
        if self.closing is None:
            self.closing = own_task(self._close(), name="close store")
            if self.watch is not None:
                self.closing.add_done_callback(self.watch.end)
        return self.closing

    async def _close(self) -> None:
        if self.face is not None:
            await self.face.close()
        if self.endpoint is not None:
            await self.endpoint.close()
        if self.scrub is not None:
            await self.scrub.stop()
        if self.exporter is not None:
            await self.exporter.stop()
        await self.tier2_start.stop()
        outcomes = await gather_outcomes(
            *(container.stop() for container in self.containers), name="stop container"
        )
        if self.losses is not None:
            await self.losses.stop()
        try:
            await self.cache.close()
            await self.storage.close()
        finally:
            try:
                if self.tier1 is not None:
                    await self.tier1.close()
            finally:
                if self.lock is not None:
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
    """Open the store in a folder, making what is not there.

    Failed or cancelled, it ends when everything is released.
    """
    opening = _open_store(
        os.path.abspath(location), options, environment, runtime, adapters or DefaultAdapters()
    )
    return await open_or_release(opening, StoreParts.close, "open store")


async def _open_store(
    location: str,
    options: Mapping[str, object],
    environment: Mapping[str, str],
    runtime: Runtime,
    adapters: StoreAdapters,
) -> StoreParts:
    files = runtime.executor("open", 1)
    loop = asyncio.get_running_loop()
    taking = loop.run_in_executor(files, _take, location, options, environment, runtime)
    cancelled = await outlast(taking)
    files.shutdown(wait=False)
    try:
        taken = taking.result()
    except OSError as error:
        if is_read_only(error):
            raise ReadOnlyFileSystemError(location) from error
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
    parts: StoreParts | None = None
    tier1: SharedTier1 | None = None
    storage: ObjectStorage | None = None
    try:
        if cancelled:
            raise asyncio.CancelledError
        had_logs = taken.had_logs
        if is_bookkeeper_url(taken.config.tier1):
            where = BookKeeperLocation.parse(taken.config.tier1)
            tier1 = SharedTier1(
                where, await adapters.bookkeeper(where, environment, runtime), runtime
            )
            taken = await _join(taken, tier1, options, environment, runtime)
            had_logs = await tier1.has_logs()
        config, made = taken.config, taken.made
        assert taken.file is not None
        storage = adapters.storage(tier2_url(location, config), runtime)
        cache = adapters.cache(location, config, runtime)
        markers = StoreMarkers(storage, taken.file.store_id, is_meant=config.shared_tier2)
        parts = StoreParts(
            location=location,
            store_id=taken.file.store_id,
            config=config,
            lock=taken.lock,
            runtime=runtime,
            storage=storage,
            cache=cache,
            containers=[],
            markers=markers,
            tier2_start=Tier2Start(storage, markers, is_own_folder=not config.tier2),
            tier1=tier1,
            findings=kept_secrets(taken.file, taken.node.tier2 if taken.node is not None else None),
        )
        if had_logs:
            parts.tier2_start.begin()
        else:
            await _insist(parts, taken)
        if tier1 is not None:
            await _pin(parts, tier1, taken)
            folder = folder_name(location, *taken.identity)
            await tier1.ask_owners(config.served, folder, take_over=config.take_over)
        _add_containers(parts, runtime, adapters, made=made)
        parts.exporter = CatalogExporter(storage, parts.containers, runtime, parts.store_id, config)
        for container in parts.containers:
            container.writer.mailbox.export = parts.exporter.hook(container)
        wake_together([container.writer.mailbox for container in parts.containers])
        await cache.open()
        await _start(parts.containers)
        await parts.tier2_start.looked(partial(has_objects, parts), made=made)
        parts.losses = losses_of(parts)
        await parts.losses.start()
        if tier2_url(location, config) != _own_tier2(location):
            await _stay(parts)
        parts.exporter.start()
        if config.scrub_bytes_per_s:
            parts.scrub = scrub_of(parts)
            parts.scrub.start()
        parts.watch = CancellationWatch(parts.location, parts.containers, parts.begin_close)
    except BaseException:
        releasing = own_task(_release(taken, tier1, storage, parts, runtime), name="release store")
        await outlast(releasing)
        if not releasing.cancelled() and (failure := releasing.exception()) is not None:
            _log.error(
                "what an opening of %s had opened was not all released", location, exc_info=failure
            )
        raise
    return parts


async def _release(
    taken: _Taken,
    tier1: SharedTier1 | None,
    storage: ObjectStorage | None,
    parts: StoreParts | None,
    runtime: Runtime,
) -> None:
    if taken.new or taken.file is None:
        files = runtime.executor("open", 1)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            files, leave_nothing, taken.location, taken.lock, taken.made_folders, runtime
        )
        files.shutdown(wait=False)
    if parts is not None:
        await parts.close()
        return
    try:
        if storage is not None:
            await storage.close()
        if tier1 is not None:
            await tier1.close()
    finally:
        taken.lock.close()


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
    had_logs: bool
    """A container was opened before, as far as this folder can tell."""
    identity: tuple[int, int]
    """Of the folder, whatever its path is called."""
    node: StoreIdentity | None = None
    """What the store's root node says, on BookKeeper."""
    made_folders: Sequence[str] = ()
    """Those that were made for it, the lowest first."""


def _take(
    location: str, options: Mapping[str, object], environment: Mapping[str, str], runtime: Runtime
) -> _Taken:
    """Lock the folder and settle its settings; whether the folder became a store by it.

    Blocking.
    """
    disk = runtime.disk
    file = read_store_file(location, runtime)
    config = _merged(options, environment, file)
    if is_bookkeeper_url(config.tier1):
        BookKeeperLocation.parse(config.tier1)
    elif config.tier1 not in {"file", "memory"}:
        raise ConfigError(
            "tier1", f'{redacted(config.tier1)!r} is not "file", "memory" or a bookkeeper:// URL'
        )
    # Before store.toml keeps it for ever: a store made with a tier2 nobody can open could never be
    # mended.
    check_object_storage_url(tier2_url(location, config), new=file is None)
    if file is not None and not config.tier2:
        check_tier2_is_not_misplaced(location, runtime)
    made_folders, lock = lock_folder(location, runtime)
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
            keep_to_ourselves(location, file, runtime)
            # Who made it may have died between giving it its name and making that durable.
            disk.sync_directory(location)
        had_logs = not config.tier2 or disk.exists(os.path.dirname(log_directory(location, 0)))
        identity = disk.identity(location)
    except BaseException:
        leave_nothing(location, lock, made_folders, runtime)
        lock.close()
        raise
    return _Taken(
        location,
        lock,
        file,
        config,
        made=made,
        new=made,
        had_logs=had_logs,
        identity=identity,
        made_folders=made_folders,
    )


def _merged(
    options: Mapping[str, object], environment: Mapping[str, str], file: StoreFile | None
) -> StoreConfig:
    """What is known before anybody but this folder was asked."""
    if file is None:
        # Which containers there are to serve, a store on BookKeeper may know better.
        known = merge_settings(*_without(options, environment, "serve"), {}, existing=False)
        return (
            known
            if is_bookkeeper_url(known.tier1)
            else merge_settings(options, environment, {}, existing=False)
        )
    if is_bookkeeper_url(str(file.settings["tier1"])):
        options, environment = _without_own_folder(options, environment)
    return merge_settings(options, environment, file.settings, existing=True)


def _without_own_folder(
    options: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Without a `tier2` that says "the default": of a store on BookKeeper it is where the store was
    made.
    """
    given = options.get("tier2", environment.get(ENVIRONMENT_PREFIX + "TIER2"))
    return _without(options, environment, "tier2") if given == "" else (options, environment)


def _without(
    options: Mapping[str, object], environment: Mapping[str, str], name: str
) -> tuple[Mapping[str, object], Mapping[str, str]]:
    return (
        {key: value for key, value in options.items() if key != name},
        {
            key: value
            for key, value in environment.items()
            if key != ENVIRONMENT_PREFIX + name.upper()
        },
    )


async def _join(
    taken: _Taken,
    tier1: SharedTier1,
    options: Mapping[str, object],
    environment: Mapping[str, str],
    runtime: Runtime,
) -> _Taken:
    """The settings a store on BookKeeper has by its node, which is made if this folder may make a
    store.
    """
    wished = StoreIdentity(
        new_store_id(runtime),
        taken.config.containers,
        tier2_url(taken.location, taken.config),
        taken.config.shared_tier2,
    )
    identity, made = await tier1.agree(taken.file, wished)
    settings: dict[str, object] = (
        {"tier1": taken.config.tier1} if taken.file is None else dict(taken.file.settings)
    )
    settings["containers"] = identity.containers
    if taken.file is None:
        settings["tier2"] = identity.tier2
        settings["shared_tier2"] = identity.shared_tier2
    config = merge_settings(*_without_own_folder(options, environment), settings, existing=True)
    check_object_storage_url(config.tier2)
    file = taken.file
    writes: Callable[[], StoreFile] | None = None
    if file is None:
        writes = partial(
            write_store_file, taken.location, identity.store_id, config, runtime, wished.store_id
        )
    elif file.settings["tier1"] != config.tier1:
        # Its servers have this very store: `agree` has seen its id there.
        writes = partial(change_tier1, taken.location, file, config.tier1, runtime)
    if writes is not None:
        executor = runtime.executor("open", 1)
        writing = asyncio.get_running_loop().run_in_executor(executor, writes)
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
    return taken._replace(
        file=file, config=config, made=made, new=taken.file is None, node=identity
    )


async def _insist(parts: StoreParts, taken: _Taken) -> None:
    try:
        await parts.tier2_start.insist()
    except BaseException:
        if taken.new and parts.config.tier2 != _own_tier2(parts.location):
            # A store made with a Tier 2 that cannot be one could never be mended: its file names it
            # for ever.
            gone = await _leave(parts) and taken.made
            if taken.made and parts.tier1 is not None:
                gone = await parts.tier1.unmake(_identity(parts))
            if gone:
                await parts.markers.withdraw()
        raise


async def _pin(parts: StoreParts, tier1: SharedTier1, taken: _Taken) -> None:
    gone = False
    try:
        gone = not await tier1.pin(_identity(parts))
        if gone:
            raise tier1.taken_back()
    except BaseException:
        if taken.new and not taken.made and parts.config.tier2 != _own_tier2(parts.location):
            # Who makes the store may take it back: then this folder would be of a store that is
            # nowhere. The maker of a store whose objects are in this very folder was of this
            # folder, and takes nothing back.
            await _leave(parts)
            if gone:
                # Nobody is of this store. As long as that is not certain, others may have seen the
                # marker, and go by it.
                await parts.markers.withdraw()
        raise


def _identity(parts: StoreParts) -> StoreIdentity:
    config = parts.config
    return StoreIdentity(parts.store_id, config.containers, config.tier2, config.shared_tier2)


async def _leave(parts: StoreParts) -> bool:
    """Make the folder one that is no store's yet; whether it is none now."""
    return await _with_files(parts, unmake_store_file)


async def _stay(parts: StoreParts) -> None:
    """Who made the store may have taken it back, who had lost its lock without knowing: it is ours,
    and stays.
    """
    if await _with_files(parts, keep_store_file):
        parts.markers.doubt()


async def _with_files(
    parts: StoreParts, work: Callable[[str, str, StoreConfig, Runtime], bool]
) -> bool:
    files = parts.runtime.executor("open", 1)
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(
            files, work, parts.location, parts.store_id, parts.config, parts.runtime
        )
    except OSError as error:
        raise TierUnavailableError("tier1", f"{parts.location}: {error}") from error
    finally:
        files.shutdown(wait=False)


def _add_containers(
    parts: StoreParts, runtime: Runtime, adapters: StoreAdapters, *, made: bool
) -> None:
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
        markers = parts.markers
        parts.containers[-1].writer.beside(
            markers.ensure, markers.shared_with, is_meant=markers.is_meant
        )


async def _start(containers: list[SegmentContainer]) -> None:
    turns = asyncio.Semaphore(_CONTAINER_STARTS_AT_ONCE)

    async def start(container: SegmentContainer) -> None:
        async with turns:
            await container.start()

    results = await gather_outcomes(*map(start, containers), name="start container")
    for result in results:
        if isinstance(result, BaseException):
            raise result
