"""PastStore: a store's past, opened to be read: its archive, its logs as they stand, its Tier 2.

Rules of this file:

- nothing is locked, claimed or written, anywhere: the store may run on, or be stopped;
- logs are views. An owner that truncates its log makes one useless: the log is viewed again, for
  some time, and the rest is found in the archive (`FollowedHistory`);
- what an owner has removed from its archive since the opening is no damage (`KeptParts`);
- of a store whose folder is lost the newest copies of the metadata in Tier 2 say what the archive
  has. Its logs are missing then, and with them what was never archived.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Self

from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import DurableDataLogFactory
from durablelog.operations import SnapshotCheckpointOperation
from recovery.archive_orphans import archive_orphans
from recovery.archived_history import ArchivedHistory, ReadableLog
from recovery.followed_history import FollowedHistory, followed
from recovery.lost_catalogs import LostCatalogs
from recovery.moments import AtTime
from recovery.recovery_processor import SnapshotLoad
from recovery.restore import CATALOG_READING
from recovery.restore_past import PastContainer, PastSource
from recovery.stopped_catalogs import StoppedCatalogs
from recovery.tier2_scan import list_bucket, listed_again, newest_metadata
from segmentstore.contracts.archive_metadata import ArchiveMetadata
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import (
    InvalidArgumentError,
    NotAStoreError,
)
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.kept_parts import KeptParts, ReadAgain
from segmentstore.locked_folder import on_disk
from segmentstore.settings_sources import merge_settings
from segmentstore.store_folder import catalog_directory, read_store_file, tier2_url
from segmentstore.store_identity import check_identity
from segmentstore.tier1 import make_log_factory
from tier2.archive.archive_config import ArchiveConfig
from tier2.archive.archived_parts_lists import ArchivedPartsLists
from tier2.archive.ledger_offloader import (
    ArchiveDisabledError,
    LedgerOffloader,
    NullLedgerOffloader,
)
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.read_only_object_storage import ReadOnlyObjectStorage
from tier2.retried_reads import RetriedReads

NO_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({})

_EVER: Final = 2**62
"""Milliseconds since 1970: later than every operation."""


@dataclass(frozen=True, slots=True)
class ArchiveTraffic:
    """What was asked of an archive."""

    requests: int
    """GETs and HEADs, their retries among them."""
    bytes_received: int


class PastStore:
    """A context manager; `open_past` and `open_lost` make it."""

    def __init__(
        self,
        source: PastSource,
        parts: list[KeptParts],
        epochs: list[int],
        offloader: LedgerOffloader,
        archive: ObjectStorage | None,
        undo: UndoStack,
    ) -> None:
        self.source = source
        self.parts = parts
        """By container."""
        self.epochs = epochs
        """Of the newest owners, by container; empty where the logs are lost."""
        self._offloader = offloader
        self._archive = archive
        self._undo = undo

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open_part(self, part: ArchivedPart) -> ReadHandle:
        """A handle on a part in the archive; the caller closes it.

        Raises LedgerNotFoundError, DataCorruptionError, TierUnavailableError.
        """
        return await self._offloader.read_offloaded(part.ledger_id, part.uid)

    async def archive_orphans(self, now_ms: int) -> AsyncGenerator[Finding, None]:
        """A note of each object of the store that is of no part of its archive.

        Raises as `archive_orphans`, whose cost it has.
        """
        if self._archive is None:
            return
        known: set[bytes] = set()
        for parts in self.parts:
            known |= await parts.uids()
        orphans = archive_orphans(self._archive, self.source.store_id, known, now_ms)
        async with aclosing(orphans) as findings:
            async for each in findings:
                yield each

    def archive_traffic(self) -> ArchiveTraffic:
        """Since the opening; nothing without an archive."""
        if self._archive is None:
            return ArchiveTraffic(0, 0)
        operations = self._archive.statistics().operations.values()
        return ArchiveTraffic(
            sum(each.requests for each in operations),
            sum(each.bytes_received for each in operations),
        )

    async def close(self) -> None:
        """Release everything. Idempotent."""
        await self._undo.unwind()


async def open_past(
    location: str, environment: Mapping[str, str], runtime: Runtime, containers: range | None = None
) -> PastStore:
    """The past of the store in a folder; of the `containers` alone, if they are given.

    Raises NotAStoreError, ConfigError, DataCorruptionError, TierUnavailableError. Costs the replay
    of the logs.
    """
    undo = UndoStack()
    try:
        file = await on_disk(runtime, location, read_store_file, location, runtime)
        if file is None:
            raise NotAStoreError(location, "there is no store in it")
        tier1 = str(file.settings["tier1"])
        logs = make_log_factory(tier1, location, environment, runtime)
        await logs.open()
        undo.push(logs.close, abandon=logs.abandon)
        await check_identity(logs, file, location)
        config = merge_settings({}, environment, file.settings, existing=True)
        storage = _opened(tier2_url(location, config), runtime, undo)
        catalogs = StoppedCatalogs(
            partial(catalog_directory, location), file.store_id, runtime, RocksDbKeyStore
        )
        made = _Making(file.store_id, storage, config.archiving, runtime, undo)
        for container_id in containers if containers is not None else range(config.containers):

            async def load(
                operation: SnapshotCheckpointOperation, container_id: int = container_id
            ) -> ContainerMetadata:
                return (await catalogs.load(container_id, operation, storage)).metadata

            viewed = _Viewed(made, logs, container_id, load)
            view, now = await viewed.view()
            undo.push(view.close)
            parts = viewed.parts(now)
            history = FollowedHistory(
                container_id, parts, made.open_part, view, load, viewed.parts_and_log
            )
            undo.push(history.close)
            made.add(history, now, parts)
            made.epochs.append(view.epoch)
        return made.store()
    except BaseException:
        await undo.unwind()
        raise


async def open_lost(
    tier2: str, archive: str, runtime: Runtime, environment: Mapping[str, str] = NO_ENVIRONMENT
) -> PastStore:
    """The past of a store whose folder and logs are lost: of what Tier 2 and the archive have.

    `environment` says how the archive is read (`archive_read_bytes`).

    Raises InvalidArgumentError, NotAStoreError, ConfigError, TierUnavailableError.
    """
    undo = UndoStack()
    try:
        storage = _opened(tier2, runtime, undo)
        catalogs = LostCatalogs(storage, runtime, CATALOG_READING)
        undo.push(catalogs.close)
        found, store_id, count = await listed_again(partial(_newest, storage, catalogs))
        settings = merge_settings({}, environment, {}, existing=True).archiving
        made = _Making(store_id, storage, replace(settings, archive=archive), runtime, undo)
        for container_id in range(count):
            if container_id not in found:
                detail = f"of container {container_id} there is no copy of the metadata"
                raise NotAStoreError(storage.url, detail)
            parts = made.parts(container_id, found[container_id].archive)
            load = partial(catalogs.load, container_id)
            history = ArchivedHistory(container_id, parts, made.open_part, load=load)
            made.add(history, found[container_id], parts)
        return made.store()
    except BaseException:
        await undo.unwind()
        raise


async def _newest(
    storage: ObjectStorage, catalogs: LostCatalogs
) -> tuple[dict[int, ContainerMetadata], str, int]:
    """The newest metadata that can be read of each container; whose they are, and the number of
    its containers. Those of several stores are refused: they share no moment.
    """
    bucket = await list_bucket(storage)
    if bucket.is_empty:
        raise NotAStoreError(storage.url, "Tier 2 holds nothing of a segment store")
    if len(bucket.stores) > 1:
        detail = f"the stores {', '.join(bucket.stores)} have been here: name a folder"
        raise InvalidArgumentError("tier2", storage.url, detail)
    found: dict[int, ContainerMetadata] = {}
    stores: dict[str, tuple[int, int]] = {}  # A container that each has, and how many it has.
    unreadable: list[str] = []
    for container_id in bucket.containers:
        checkpoint, damaged = await newest_metadata(
            storage,
            bucket.checkpoints.get(container_id, ()),
            bucket.snapshots.get(container_id, ()),
            catalogs.read,
        )
        unreadable += damaged
        if checkpoint is not None:
            found[container_id] = checkpoint.metadata
            stores.setdefault(checkpoint.store_id, (container_id, checkpoint.containers))
    if not found:
        detail = "no copy of the metadata can be read there, which says what the archive has"
        move = "a restore without a moment takes what tier2 has"
        raise NotAStoreError(storage.url, "; ".join([detail, *unreadable[-3:], move]))
    if len(stores) > 1:
        theirs = " and ".join(f"{each} (container {of[0]})" for each, of in stores.items())
        detail = f"the newest copies of the metadata are of the stores {theirs}: name a folder"
        raise InvalidArgumentError("tier2", storage.url, detail)
    ((store_id, (_, count)),) = stores.items()
    return found, store_id, count


class _Viewed:
    """One container, seen anew by each view: one that is open stands still.

    All raise DataCorruptionError, MomentNotKeptError, TierUnavailableError.
    """

    def __init__(
        self,
        making: _Making,
        logs: DurableDataLogFactory,
        container_id: int,
        load: SnapshotLoad,
    ) -> None:
        self._making = making
        self._logs = logs
        self._container_id = container_id
        self._load = load

    async def view(self) -> tuple[DurableDataLog, ContainerMetadata]:
        """A view of the log, the caller's to close, and the container as that alone has it."""
        return await followed(self._view)

    def parts(self, now: ContainerMetadata) -> KeptParts:
        """Those that the archive has by then."""
        return self._making.parts(self._container_id, now.archive, self._archive)

    async def parts_and_log(self) -> tuple[KeptParts, DurableDataLog]:
        """As of now. The caller closes the view."""
        view, now = await self.view()
        return self.parts(now), view

    async def _archive(self) -> ArchiveMetadata:
        view, now = await self.view()
        await view.close()
        return now.archive

    async def _view(self) -> tuple[DurableDataLog, ContainerMetadata]:
        view = self._logs.make_view(self._container_id, self._making.store_id)
        try:
            await view.open()
            return view, await self._making.now(self._container_id, view, self._load)
        except BaseException:
            await view.close()
            raise


class _Making:
    """A store in the making."""

    def __init__(
        self,
        store_id: str,
        storage: ObjectStorage,
        archiving: ArchiveConfig,
        runtime: Runtime,
        undo: UndoStack,
    ) -> None:
        self.store_id = store_id
        self._storage = storage
        self.undo = undo
        self._offloader: LedgerOffloader = NullLedgerOffloader()
        self._archive = storage
        if archiving.place:
            self._archive = RetriedReads(_opened(archiving.place, runtime, undo))
            self._offloader = ObjectLedgerOffloader(
                self._archive, read_bytes=archiving.archive_read_bytes
            )
        self._containers: list[PastContainer] = []
        self._parts: list[KeptParts] = []
        self.epochs: list[int] = []

    async def now(
        self, container_id: int, log: ReadableLog, load: SnapshotLoad
    ) -> ContainerMetadata:
        """A container as its log alone has it."""
        nothing = self.parts(container_id, ArchiveMetadata())
        history = ArchivedHistory(container_id, nothing, self.open_part, log, load)
        return (await history.state_at(AtTime(_EVER))).metadata

    def parts(
        self, container_id: int, archive: ArchiveMetadata, again: ReadAgain | None = None
    ) -> KeptParts:
        """Those of a container. Raises ArchiveDisabledError if their lists are needed."""
        if archive.lists and isinstance(self._offloader, NullLedgerOffloader):
            raise ArchiveDisabledError
        lists = ArchivedPartsLists(self._archive, self.store_id, container_id, lambda: archive)
        return KeptParts(container_id, lists, archive, again)

    async def open_part(self, part: ArchivedPart) -> ReadHandle:
        """As `PastStore.open_part`."""
        return await self._offloader.read_offloaded(part.ledger_id, part.uid)

    def add(self, history: ArchivedHistory, now: ContainerMetadata, parts: KeptParts) -> None:
        """The next container."""
        self._containers.append(PastContainer(history, now))
        self._parts.append(parts)

    def store(self) -> PastStore:
        """All of it."""
        source = PastSource(
            store_id=self.store_id, containers=self._containers, storage=self._storage
        )
        archive = self._archive if self._archive is not self._storage else None
        return PastStore(source, self._parts, self.epochs, self._offloader, archive, self.undo)


def _opened(url: str, runtime: Runtime, undo: UndoStack) -> ObjectStorage:
    storage = ReadOnlyObjectStorage(open_object_storage(url, runtime))
    undo.push(storage.close)
    return storage
