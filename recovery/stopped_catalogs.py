"""StoppedCatalogs: the metadata that the logs of a stopped store begin with, where a log names a
metadata snapshot. Nothing is written in the store's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.metadata_catalog import MakeKeyStore
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogFrame
from durablelog.file.frame_reports import FrameReport
from durablelog.operations import SnapshotCheckpointOperation
from recovery.replay import Replay
from recovery.scratch_catalog import ScratchCatalog
from recovery.snapshot_recovery import SnapshotRecovery
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage


class LoadedSnapshot(NamedTuple):
    """Metadata as of a checkpoint by reference."""

    metadata: ContainerMetadata
    from_tier2: bool
    local_damage: str | None
    """Why the copy on local disk was not used; None if it was, or there is none."""


class StoppedCatalogs:
    """The catalogs of a store that no process runs there.

    `directory(container id)` is where they are.
    """

    def __init__(
        self,
        directory: Callable[[int], str],
        store_id: str,
        runtime: Runtime,
        make_store: MakeKeyStore,
    ) -> None:
        self._directory: Final = directory
        self.store_id: Final = store_id
        self._runtime: Final = runtime
        self._make_store: Final = make_store

    def scratch(self, container_id: int) -> ScratchCatalog:
        """A catalog of copies for one container; the caller closes it."""
        return ScratchCatalog(
            self._directory(container_id),
            KeyStoreIdentity(self.store_id, container_id),
            self._runtime,
            self._make_store,
        )

    async def load(
        self, container_id: int, operation: SnapshotCheckpointOperation, storage: ObjectStorage
    ) -> LoadedSnapshot:
        """What the operation names, from local disk if it is whole there, else from Tier 2.

        Raises DataCorruptionError, TierUnavailableError.
        """
        catalog = self.scratch(container_id)
        recovery = SnapshotRecovery(container_id, self.store_id, catalog, storage, self._runtime)
        try:
            metadata = await recovery.load(operation)
        finally:
            await catalog.close()
        return LoadedSnapshot(metadata, recovery.from_tier2, recovery.local_damage)


def first_snapshot(frames: Iterable[FrameReport]) -> SnapshotCheckpointOperation | None:
    """The checkpoint by reference that a log begins with; None if it begins with anything else.

    A bad frame, too, gives None: the replay names it. Blocks.
    """
    reader = DataFrameReader()
    try:
        for report in frames:
            if report.status == "corrupt":
                return None
            if report.status != "ok":
                continue
            frame = LogFrame(report.address, report.sequence, report.epoch, report.payload)
            for record in reader.feed(frame):
                operation = Replay.decode(record.data, record.first_frame_address)
                return operation if isinstance(operation, SnapshotCheckpointOperation) else None
    except DataCorruptionError:
        pass
    return None
