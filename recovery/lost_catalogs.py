"""LostCatalogs: metadata snapshots of a store whose folder is lost, from Tier 2 alone.

Each is downloaded into a temporary folder, read, and removed again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Final

from durablelog.operations import SnapshotCheckpointOperation
from recovery.restore_report import CheckpointUsed
from recovery.snapshot_name import snapshot_name
from recovery.snapshot_reading import CatalogReading, SnapshotReader
from recovery.tier2_scan import retried
from segmentstore.contracts.disk import remove_content
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.metadata_snapshots import MetadataSnapshotError
from tier2.object_storage import ObjectStorage


class LostCatalogs:
    """The catalogs of one store, on one event loop. Callers wait for each other.

    Nothing is made before a snapshot is asked for; `close` removes it.
    """

    def __init__(self, storage: ObjectStorage, runtime: Runtime, catalog: CatalogReading) -> None:
        number = runtime.random.getrandbits(64)
        self._directory: Final = f"{tempfile.gettempdir()}/segmentstore-lost-{number:016x}"
        self._disk: Final = runtime.disk
        self._executor: Final = runtime.executor("lost-catalogs", 1)
        self._reader: Final = SnapshotReader(
            storage, f"{self._directory}/snapshot", runtime, self._executor, catalog
        )
        self._lock: Final = asyncio.Lock()
        self._is_there = False

    async def read(self, name: str) -> CheckpointUsed:
        """As `SnapshotReader.read`."""
        async with self._lock:
            if not self._is_there:
                self._is_there = True
                try:
                    await self._blocking(partial(self._disk.make_directory, self._directory))
                except OSError as error:
                    raise TierUnavailableError("tier1", f"{self._directory}: {error}") from error
            return await self._reader.read(name)

    async def load(
        self, container_id: int, operation: SnapshotCheckpointOperation
    ) -> ContainerMetadata:
        """The metadata as of just before a checkpoint by reference.

        Raises DataCorruptionError, which names the object that is missing or damaged, and
        TierUnavailableError.
        """
        name = snapshot_name(container_id, operation)
        try:
            used = await retried(partial(self.read, name))
        except MetadataSnapshotError as error:
            place = f"container {container_id}, checkpoint {operation.sequence_number}"
            detail = f"its metadata were in tier2 alone, since the folder is lost: {error}"
            raise DataCorruptionError(place, detail) from error
        return used.metadata

    async def close(self) -> None:
        """Remove everything. Idempotent."""
        if self._is_there:
            self._is_there = False
            await self._blocking(self._remove)
        self._executor.shutdown(wait=False)

    async def _blocking(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _remove(self) -> None:
        # Not there if making it failed.
        if self._disk.exists(self._directory):
            remove_content(self._disk, self._directory)
            self._disk.remove_directory(self._directory)
