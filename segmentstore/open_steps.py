"""Opening a store in five steps: lock the folder, agree on the identity, open the tiers, start the
containers, start the background work.

Each step pushes what undoes it on one stack: an opening that fails undoes all of it in reverse, and
so does the close of a store that was opened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from readindex.cache_addresses import CacheAddresses
from segmentstore.cancellation_watch import CancellationWatch
from segmentstore.catalog_export import CatalogExporter
from segmentstore.config import StoreConfig
from segmentstore.container import ContainerResources, SegmentContainer
from segmentstore.contracts.errors import (
    ConfigError,
    InvalidArgumentError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.contracts.waiting import open_or_release, outlast
from segmentstore.locked_folder import LockedFolder, Requested, lock_store_folder, on_disk
from segmentstore.store_adapters import DefaultAdapters, StoreAdapters, make_catalog
from segmentstore.store_folder import (
    keep_store_file,
    kept_secrets,
    own_tier2_url,
    tier2_url,
    unmake_store_file,
)
from segmentstore.store_identity import AgreedStore, agree_on_identity
from segmentstore.store_parts import StoreParts, registry_of
from segmentstore.tier1 import log_options
from segmentstore.tier2_start import Tier2Start
from segmentstore.tier2_watch import has_objects, losses_of, scrub_of, watch_reads
from storagewriter.consolidator import rewrite_gate
from storagewriter.data_source import OtherStores
from storagewriter.mailbox_pace import MailboxGroup
from tier2.locations import check_archive_url
from tier2.store_markers import StoreMarkers

if TYPE_CHECKING:
    from tier2.archive.archive_place import ArchivePlace

_log = logging.getLogger(__name__)


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
    requested = Requested(
        os.path.abspath(location), options, environment, runtime, adapters or DefaultAdapters()
    )
    return await open_or_release(_open_store(requested), StoreParts.close, "open store")


async def _open_store(requested: Requested) -> StoreParts:
    undo = UndoStack()
    try:
        folder = await _lock_folder(requested, undo)
        store = await _agree_on_identity(folder, requested, undo)
        parts = await _open_tiers(folder, store, requested, undo)
        await _start_containers(parts, store)
        await _start_background_work(parts)
    except GeneratorExit:
        # The event loop was closed during the opening: nothing can be awaited any more.
        undo.abandon()
        raise
    except BaseException:
        undoing = own_task(undo.unwind(), name="undo opening")
        await outlast(undoing)
        if not undoing.cancelled() and (failure := undoing.exception()) is not None:
            _log.error(
                "what an opening of %s had opened was not all released",
                requested.location,
                exc_info=failure,
            )
        raise
    folder.is_store = True
    return parts


# --- 1 and 2: whose the folder is ---------------------------------------------------------------


async def _lock_folder(requested: Requested, undo: UndoStack) -> LockedFolder:
    def locked(folder: LockedFolder) -> None:
        undo.push(folder.release, abandon=folder.lock.close)

    return await on_disk(
        requested.runtime, requested.location, lock_store_folder, requested, on_result=locked
    )


async def _agree_on_identity(
    folder: LockedFolder, requested: Requested, undo: UndoStack
) -> AgreedStore:
    await folder.logs.open()
    undo.push(folder.logs.close, abandon=folder.logs.abandon)
    return await agree_on_identity(folder, requested)


# --- 3: the tiers -------------------------------------------------------------------------------


async def _open_tiers(
    folder: LockedFolder, store: AgreedStore, requested: Requested, undo: UndoStack
) -> StoreParts:
    config, logs, runtime = store.config, folder.logs, requested.runtime
    has_logs = not config.tier2 or await logs.has_logs()
    storage = requested.adapters.storage(tier2_url(folder.location, config), runtime)
    undo.push(storage.close)
    archive = _open_archive(requested, tier2_url(folder.location, config), config)
    if archive is not None:
        undo.push(archive.close)
    cache = requested.adapters.cache(folder.location, config, runtime)
    undo.push(cache.close)
    markers = StoreMarkers(storage, store.file.store_id, is_meant=config.shared_tier2)
    parts = StoreParts(
        location=folder.location,
        store_id=store.file.store_id,
        config=config,
        runtime=runtime,
        logs=logs,
        storage=storage,
        archive=archive,
        cache=cache,
        make_catalog=partial(
            make_catalog, folder.location, store.file.store_id, requested.adapters, runtime
        ),
        markers=markers,
        tier2_start=Tier2Start(storage, markers, is_own_folder=not config.tier2),
        undo=undo,
        findings=kept_secrets(store.file, store.identity.tier2 if logs.is_shared else None),
    )
    undo.push(parts.tier2_start.stop)
    if has_logs:
        parts.tier2_start.begin()
    else:
        await _check_tier2(parts, store)
    await _confirm_store(parts, store)
    # In a cluster the map says who owns a container, and hosts wait for one another by it.
    take_over = config.take_over or config.joins_cluster
    await logs.check_owners(config.served, folder.location, folder.identity, take_over=take_over)
    return parts


def _open_archive(requested: Requested, tier2: str, config: StoreConfig) -> ArchivePlace | None:
    settings = config.archiving
    if not settings.place:
        return None
    # Not at the top: only a store with an archive pays for it.
    from tier2.archive.archive_place import ArchivePlace  # noqa: PLC0415
    from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader  # noqa: PLC0415

    # Again: a store on BookKeeper says itself where its Tier 2 is.
    check_archive_url(settings.place, tier2)
    storage = requested.adapters.storage(settings.place, requested.runtime)
    try:
        offloader = ObjectLedgerOffloader(
            storage,
            block_bytes=settings.block_bytes(config.tier1, config.file_bytes),
            read_bytes=settings.archive_read_bytes,
        )
    except InvalidArgumentError as error:
        raise ConfigError(f"archive_{error.argument}", str(error)) from error
    return ArchivePlace(storage, offloader, RateLimiter(settings.archive_bytes_per_s))


async def _check_tier2(parts: StoreParts, store: AgreedStore) -> None:
    """Refuse a Tier 2 that fails its check, and withdraw a store that was just made with it: its
    store.toml could never be changed.
    """
    try:
        await parts.tier2_start.require_answer()
    except GeneratorExit:
        raise
    except BaseException:
        if store.new and _is_tier2_elsewhere(parts):
            # Where the folder's file alone makes the store, the store is deleted with it.
            gone = await _unmake_store_file(parts) or parts.logs.is_shared
            if store.created and await parts.logs.withdraw_store(store.identity) and gone:
                await parts.markers.withdraw()
        raise


async def _confirm_store(parts: StoreParts, store: AgreedStore) -> None:
    """Prevent a withdrawal of the store, which may have been made by another folder."""
    gone = False
    try:
        gone = not await parts.logs.confirm_store(store.identity)
        if gone:
            detail = (
                "the process that was creating the store withdrew it, for its tier2 failed the "
                "check: open it again"
            )
            raise TierUnavailableError("tier1", f"{parts.logs.url}: {detail}")
    except GeneratorExit:
        raise
    except BaseException:
        if store.new and not store.created and _is_tier2_elsewhere(parts):
            # The store's maker may withdraw it: then this folder would belong to a store that does
            # not exist. A store whose objects are in this folder was made by this folder, which
            # withdraws nothing.
            await _unmake_store_file(parts)
            if gone:
                # No folder belongs to the store any more. Unless that is certain, others may rely
                # on the marker.
                await parts.markers.withdraw()
        raise


# --- 4: the containers --------------------------------------------------------------------------


async def _start_containers(parts: StoreParts, store: AgreedStore) -> None:
    parts.exporter = exporter = CatalogExporter(
        parts.storage, lambda: parts.containers, parts.runtime, parts.store_id, parts.config
    )
    maker = _ContainerMaker(parts, exporter, created=store.created)
    config, registry = parts.config, registry_of(parts, maker.make, SegmentContainer.start)
    parts.undo.push(parts.stop_containers, abandon=registry.release_logs)
    parts.undo.push(exporter.stop)
    await parts.cache.open()
    await registry.start_all(config.served)
    if any(each.is_kept_for_archive for each in parts.containers):
        _log.warning(
            "%s: `archive` is not set: the log keeps what its archive has not", parts.location
        )
    # From here on an empty log may be a lost one.
    maker.created = False
    await parts.tier2_start.checked(partial(has_objects, parts), created=store.created)


class _ContainerMaker:
    """Makes the containers of an open store, each time one is to be started."""

    def __init__(self, parts: StoreParts, exporter: CatalogExporter, *, created: bool) -> None:
        """`created`: the store was made in this very opening."""
        self.created = created
        self._parts = parts
        self._exporter = exporter
        self._addresses = CacheAddresses()
        self._mailboxes = MailboxGroup()
        self._rewrites = rewrite_gate(parts.config.writer.consolidation_bytes)
        markers = parts.markers
        self._other_stores = OtherStores(
            mark=markers.ensure, shared_with=markers.shared_with, is_meant=markers.is_meant
        )

    def make(
        self,
        container_id: int,
        cache_bytes: int,
        on_failure: Callable[[SegmentContainer], None],
    ) -> SegmentContainer:
        """As `container_registry.MakeContainer`."""
        parts = self._parts
        return SegmentContainer(
            container_id,
            ContainerResources(
                log=parts.logs.make_log(container_id, parts.store_id, log_options(parts.config)),
                storage=parts.storage,
                cache=parts.cache,
                addresses=self._addresses,
                cache_bytes=cache_bytes,
                config=parts.config,
                runtime=parts.runtime,
                store_id=parts.store_id,
                created=self.created,
                other_stores=self._other_stores,
                export=self._exporter.export_manifest,
                mailboxes=self._mailboxes,
                rewrites=self._rewrites,
                catalog=parts.make_catalog(container_id),
                archive=parts.archive,
            ),
            on_failure,
        )


# --- 5: the background work ---------------------------------------------------------------------


async def _start_background_work(parts: StoreParts) -> None:
    parts.losses = losses_of(parts)
    await parts.losses.start()
    parts.registry.watch(partial(watch_reads, parts.losses), parts.losses.detach)
    if _is_tier2_elsewhere(parts):
        await _keep_store_file(parts)
    assert parts.exporter is not None
    parts.exporter.start()
    if parts.config.scrub_bytes_per_s:
        parts.scrub = scrub_of(parts)
        parts.undo.push(parts.scrub.stop)
        parts.scrub.start()
    parts.watch = CancellationWatch(parts.location, lambda: parts.containers, parts.begin_close)


# --- helpers ------------------------------------------------------------------------------------


def _is_tier2_elsewhere(parts: StoreParts) -> bool:
    return tier2_url(parts.location, parts.config) != own_tier2_url(parts.location)


async def _unmake_store_file(parts: StoreParts) -> bool:
    """Remove store.toml, unless the folder is in use; whether the folder is no store now."""
    location, runtime = parts.location, parts.runtime
    return await on_disk(
        runtime, location, unmake_store_file, location, parts.store_id, parts.config, runtime
    )


async def _keep_store_file(parts: StoreParts) -> None:
    """Write store.toml again if the store's maker removed it: that process had lost the lock
    without noticing, and the store is open here.
    """
    location, runtime = parts.location, parts.runtime
    if await on_disk(
        runtime, location, keep_store_file, location, parts.store_id, parts.config, runtime
    ):
        parts.markers.doubt()
