"""Reading a metadata snapshot whole: its files in a directory, the key store opened there, and all
metadata loaded. For a restore, which has no log and no local catalog.

Nothing stays on the disk. How the key store is made and read comes from the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import (
    ForeignKeyStoreError,
    KeyStore,
    KeyStoreCorruptError,
    KeyStoreError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from recovery.restore_report import CheckpointUsed
from segmentstore.contracts.disk import Disk, remove_content
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.metadata_manifest import MetadataManifest
from tier2.metadata_snapshots import (
    UNFINISHED,
    SnapshotObjectDamagedError,
    download_snapshot,
    read_snapshot_manifest,
)
from tier2.object_storage import ObjectStorage


class CatalogReading(NamedTuple):
    """How a catalog is opened and read."""

    make_store: Callable[[str, KeyStoreIdentity, Runtime], KeyStore]
    """A key store of this directory, not opened yet."""
    load: Callable[[KeyStore, int], Awaitable[ContainerMetadata]]
    """All metadata of the container with this id, as of the store's sequence number."""


class SnapshotReader:
    """Reads the snapshots of one bucket, one after another.

    `directory` is not there and has a parent; it exists while a snapshot is being read.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        directory: str,
        runtime: Runtime,
        executor: Executor,
        catalog: CatalogReading,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._runtime = runtime
        self._executor = executor
        self._catalog = catalog

    async def read(self, name: str) -> CheckpointUsed:
        """The metadata of the snapshot whose manifest has this name, of whatever store.

        Raises MetadataSnapshotError for one that is damaged or lacks something. Also
        StorageUnavailableError, and TierUnavailableError for a disk that is full or fails.
        """
        manifest = await read_snapshot_manifest(self._storage, name)
        try:
            metadata = await self._downloaded(manifest)
        except (KeyStoreError, OSError) as error:
            detail = f"{name} cannot be read in {self._directory}: {error}"
            raise TierUnavailableError("tier1", detail) from error
        return CheckpointUsed(
            name=name,
            store_id=str(manifest.store_id),
            containers=manifest.containers,
            epoch=manifest.epoch,
            sequence_number=manifest.sequence_number,
            time_ms=manifest.time_ms,
            metadata=metadata,
        )

    async def _downloaded(self, manifest: MetadataManifest) -> ContainerMetadata:
        try:
            await download_snapshot(self._storage, manifest, self._directory, self._runtime)
            return await self._load(manifest)
        finally:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, _remove, self._runtime.disk, self._directory)

    async def _load(self, manifest: MetadataManifest) -> ContainerMetadata:
        container_id = manifest.container_id
        identity = KeyStoreIdentity(str(manifest.store_id), container_id)
        store = self._catalog.make_store(self._directory, identity, self._runtime)
        try:
            await store.open()
            if store.sequence_number != manifest.sequence_number:
                raise SnapshotObjectDamagedError(
                    manifest.name, f"its files are as of {store.sequence_number}"
                )
            return await self._catalog.load(store, container_id)
        except (KeyStoreCorruptError, ForeignKeyStoreError, MetadataFormatError) as error:
            raise SnapshotObjectDamagedError(manifest.name, str(error)) from error
        finally:
            await store.close()


def _remove(disk: Disk, directory: str) -> None:
    """Blocking."""
    for each in (directory, directory + UNFINISHED):
        if disk.exists(each):
            remove_content(disk, each)
            disk.remove_directory(each)
