"""The metadata that the log of a container begins with, where they are in a metadata snapshot.

They come from the checkpoint on local disk if it is whole, else from Tier 2. Either way they are as
of exactly the sequence number that the log begins with, or they are refused.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.catalog_loading import load_bounded, load_metadata, load_totals
from durablelog.catalog.key_store import (
    CheckpointFile,
    ForeignKeyStoreError,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreInUseError,
)
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.operations import SnapshotCheckpointOperation
from recovery.snapshot_name import snapshot_name
from segmentstore.contracts.errors import (
    DataCorruptionError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.metadata_snapshots import (
    MetadataSnapshotError,
    download_snapshot,
    read_snapshot_manifest,
)
from tier2.object_storage import ObjectStorage, StorageUnavailableError

_log: Final = logging.getLogger(__name__)

_DAMAGED: Final = (KeyStoreCorruptError, MetadataFormatError)
"""Of a checkpoint: another copy may be whole. Other errors of the disk say nothing about it."""


class SnapshotRecovery:
    """Opens the catalog of one container as of the checkpoint that its log begins with."""

    def __init__(
        self,
        container_id: int,
        store_id: str,
        catalog: MetadataCatalog,
        storage: ObjectStorage,
        runtime: Runtime,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        """With more segments than the first of `bounds`, or more bytes of metadata in memory than
        the second, segments that may be idle are left in the catalog.
        """
        self._container_id = container_id
        self._bounds = bounds
        self._store_id = uuid.UUID(store_id)
        self._catalog = catalog
        self._storage = storage
        self._runtime = runtime
        self.from_tier2 = False
        """Whether what was loaded last came from there."""
        self.write_error: KeyStoreError | None = None
        """Why the catalog was not opened then, and only its checkpoint read; None: it is open."""
        self.is_old = False
        """Whether the catalog was of an earlier version then: it has to be made anew."""
        self.local_damage: str | None = None
        """Why the copy on local disk was not used then; None if it was, or there was none."""

    async def load(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        """The metadata as of the operation; the catalog is open as of it, unless its disk refuses
        what that takes: `write_error`.

        Raises DataCorruptionError if they are neither on local disk nor in Tier 2, and
        TierUnavailableError if Tier 2 or the disk cannot say. StoreInUseError if another process
        has the catalog.
        """
        self.from_tier2, self.local_damage, self.write_error = False, None, None
        self.is_old = False
        try:
            metadata = await self._open_local(operation.sequence_number)
            if metadata is not None:
                return metadata
            return await self._open_downloaded(operation)
        except ForeignKeyStoreError as error:
            raise self._corrupt(operation, str(error)) from error
        except KeyStoreInUseError as error:
            raise StoreInUseError(error.directory) from error
        except KeyStoreError as error:
            raise TierUnavailableError("tier1", str(error)) from error

    async def _open_local(self, sequence_number: int) -> ContainerMetadata | None:
        """The metadata from local disk, None if they are not whole there. Raises KeyStoreError."""
        if not await self._catalog.has_checkpoint(sequence_number):
            self.local_damage = self._catalog.damage
            return None
        try:
            return await self._open(sequence_number)
        except _DAMAGED as error:
            self.local_damage = str(error)
        await self._catalog.remove_checkpoint(sequence_number)
        return None

    async def _open_downloaded(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        self.from_tier2 = True
        local = self.local_damage or "there is no copy on local disk"
        _log.warning("container %d: its metadata come from tier2: %s", self._container_id, local)
        await self._download(operation, local)
        try:
            return await self._open(operation.sequence_number)
        except _DAMAGED as error:
            raise self._corrupt(operation, f"{error}, downloaded from tier2") from error

    async def _open(self, sequence_number: int) -> ContainerMetadata:
        try:
            await self._catalog.open_at(sequence_number)
        except (ForeignKeyStoreError, KeyStoreInUseError):
            raise
        except KeyStoreError as error:
            # Whether the checkpoint is damaged, or the working store alone: that raises it again.
            metadata = await self._read(sequence_number)
            _log.warning("container %d: %s; its checkpoint was read", self._container_id, error)
            self.write_error = error
            return metadata
        store = self._catalog.store
        totals = await load_totals(store)
        self.is_old = totals is None
        if totals is None or self._bounds is None:
            return await load_metadata(store, self._container_id)
        return await load_bounded(store, self._container_id, *self._bounds)

    async def _read(self, sequence_number: int) -> ContainerMetadata:
        checkpoint = await self._catalog.open_checkpoint(sequence_number)
        try:
            return await load_metadata(checkpoint, self._container_id)
        finally:
            await checkpoint.close()

    async def _download(self, operation: SnapshotCheckpointOperation, local: str) -> None:
        name = snapshot_name(self._container_id, operation)
        number = operation.sequence_number
        try:
            manifest = await read_snapshot_manifest(self._storage, name, self._store_id)
            directory = self._catalog.checkpoint_directory(number)
            await download_snapshot(self._storage, manifest, directory, self._runtime)
            await self._catalog.adopt_download(
                number, [CheckpointFile(*file.content) for file in manifest.files]
            )
        except MetadataSnapshotError as error:
            raise self._corrupt(operation, f"in tier2 {error}; {local}") from error
        except StorageUnavailableError as error:
            raise TierUnavailableError(
                "tier2", f"{error}; the metadata are nowhere else: {local}"
            ) from error
        except (KeyStoreError, OSError) as error:
            raise TierUnavailableError("tier1", f"{name} cannot be downloaded: {error}") from error

    def _corrupt(self, operation: SnapshotCheckpointOperation, detail: str) -> DataCorruptionError:
        return DataCorruptionError(
            f"container {self._container_id}, checkpoint {operation.sequence_number}",
            f"its metadata cannot be read: {detail}; see docs/restore.md",
        )
