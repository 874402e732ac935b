"""MetadataCheckpoints: makes the checkpoints of a container, small ones in the log, large ones as
snapshots of the metadata catalog (docs/decisions/0055 and 0058).

Rules of this file:

- metadata that fit are in the checkpoint itself. From the first checkpoint that is larger on, the
  log has the name of a snapshot, and the catalog what changed since the one before;
- one snapshot at a time: none is frozen while one is being made;
- a snapshot is a truncation point when its manifest is durable in Tier 2, not before;
- a catalog whose files fail, at the opening too, is made anew from memory, which has everything.
  Until it is there the log is not truncated, so nothing depends on it;
- nothing waits for Tier 2 but an ordinary close, for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.frozen_metadata import FrozenMetadata
from durablelog.catalog.key_store import (
    KeyBatch,
    KeyStoreCheckpoint,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreFullError,
)
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import CheckpointOperation, SnapshotCheckpointOperation
from recovery.snapshot_name import snapshot_name
from recovery.snapshot_recovery import SnapshotRecovery
from segmentstore.config import StoreConfig
from segmentstore.container.writer_source import WriterSource
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from storagewriter.metadata_backup import MetadataBackup
from storagewriter.snapshot_uploader import SnapshotFileChangedError, SnapshotUploader
from tier2.metadata_manifest import FileContent
from tier2.object_storage import ObjectExistsError, ObjectStorage, StorageUnavailableError

_log: Final = logging.getLogger(__name__)

BATCH_KEYS: Final = 128
"""Keys encoded in one turn of the event loop."""
WRITTEN_KEYS: Final = 512
"""And written by one call of the store."""
_SEGMENT_BYTES_MIN: Final = 60
_ATTRIBUTE_BYTES: Final = 24
_CHUNK_BYTES_MIN: Final = 40
"""Of one in an inline checkpoint, at least."""
WHOLE_BYTES_MAX: Final = 16 * MIB
"""Metadata up to this come whole at an opening, in about a second. A million attributes took six:
what an opening takes must not depend on history.
"""
_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0


class SnapshotStatistics(NamedTuple):
    """Metadata snapshots of one container since it was opened."""

    by_reference: bool
    """Whether checkpoints name snapshots; else the metadata are in them."""
    in_progress: bool
    """Whether one is being made, or tried again: the log is truncated behind it."""
    downloaded: bool
    """Whether the metadata came from Tier 2 at the opening, and not from local disk."""
    completed: int
    """Snapshots that are durable in Tier 2."""
    bytes_put: int
    """Of their files, and of manifests."""
    objects_deleted: int
    """Files and manifests of snapshots that no log can begin with."""


def active_segments_max(config: StoreConfig) -> int | None:
    """The largest number of segments in memory; None, there is no bound: a log in memory holds
    nothing at the next opening, and names no snapshots.
    """
    return config.processor.active_segments_max if config.tier1 != "memory" else None


def active_metadata_bytes_max(config: StoreConfig) -> int | None:
    """What the metadata of active segments may take in memory; None: as `active_segments_max`."""
    return config.processor.active_metadata_bytes_max if config.tier1 != "memory" else None


class MetadataCheckpoints:
    """The CheckpointSource of one container, and the copies of its metadata in Tier 2. Everything
    on its event loop.

    `on_snapshot(made)` is called when a snapshot has ended: there is a new truncation point, or
    there is none and another checkpoint is needed. `on_failure(error)`: the container must stop.
    """

    def __init__(
        self,
        source: WriterSource,
        storage: ObjectStorage,
        catalog: MetadataCatalog,
        updater: MetadataUpdater,
        positions: LogPositions,
        config: StoreConfig,
        runtime: Runtime,
        on_snapshot: Callable[[bool], None],
        on_written: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._source = source
        self._catalog = catalog
        self._updater = updater
        self._positions = positions
        self._inline_bytes_max = config.processor.inline_checkpoint_bytes_max
        self._active_max = active_segments_max(config)
        bytes_max = active_metadata_bytes_max(config)
        bounds = (
            None
            if self._active_max is None
            else (self._active_max, min(bytes_max or 0, WHOLE_BYTES_MAX))
        )
        self._on_snapshot = on_snapshot
        self._on_written = on_written
        self._on_failure = on_failure
        self._container_id = updater.metadata.container_id
        containers, store_id = config.containers, source.store_id
        self.backup = MetadataBackup(source, storage, store_id, containers, runtime)
        self._uploader = SnapshotUploader(
            source, storage, containers, runtime, config.writer.deletion_lag_s
        )
        self._recovery = SnapshotRecovery(
            self._container_id, store_id, catalog, storage, runtime, bounds
        )
        self._backoff = Backoff(runtime.random, min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        self.ready = True
        self._health = HealthNote("metadata snapshot", runtime.clock)
        self._frozen: FrozenMetadata | None = None
        self._store_is_new = False
        """Whether the catalog has to be begun anew before the next snapshot."""
        self._is_crowded = False
        """Whether segments wait for room in memory."""
        self._first: SnapshotCheckpointOperation | None = None
        """What the log began with when it was opened, if that was a checkpoint by reference."""
        self._earlier: Sequence[SnapshotCheckpointOperation] = ()
        """Checkpoints by reference that it had, oldest first, until they are taken over."""
        self._begin = 0
        """Sequence number of the checkpoint that the log begins with."""
        self._tasks: list[asyncio.Task[None]] = []
        self._attempted = asyncio.Event()
        self._retry = asyncio.Event()
        self._failing = False
        """Whether the snapshot that is being made has failed once."""
        self._stopped = False
        self.snapshots = 0

    # --- what the processor asks ------------------------------------------------------------------

    @property
    def by_reference(self) -> bool:
        """Whether checkpoints name snapshots."""
        return self._updater.changes.tracking

    def take(self) -> CheckpointOperation | SnapshotCheckpointOperation:
        """The operation of a checkpoint of the committed metadata, as they are now."""
        assert self.ready, "one at a time"
        changes = self._updater.changes
        # A log begins with nothing that has yet to become durable elsewhere.
        if not (changes.tracking or self._updater.metadata.sequence_number):
            return CheckpointOperation(encode_checkpoint(self._updater.metadata))
        if not changes.tracking:
            blob = self._inline()
            if blob is not None:
                return CheckpointOperation(blob)
            self._begin_anew()
        metadata = self._updater.metadata
        self._frozen = changes.freeze(CatalogTotals(metadata.segment_count, metadata.archive))
        self.ready = False
        self._failing = False
        self._attempted.clear()
        return SnapshotCheckpointOperation(self._source.epoch, self._uploader.new_id())

    def logged(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        """The log has the operation, from `address` on: its snapshot can be made."""
        if not self._stopped:
            self._run(self._make(operation, address), "metadata snapshot")

    # --- life -------------------------------------------------------------------------------------

    async def load(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        """The metadata that the log begins with, as `SnapshotRecovery.load`; from then on they are
        tracked.
        """
        metadata = await self._recovery.load(operation)
        self._first = operation
        if self._recovery.write_error is None and not self._recovery.is_old:
            self._updater.changes.begin_from(metadata)
            return metadata
        if self._recovery.write_error is not None:
            self._health.failed(self._recovery.write_error)
        self._begin_anew()
        return metadata

    def start(self, snapshots: Sequence[SnapshotCheckpointOperation]) -> None:
        """The container serves. The log has these checkpoints by reference, oldest first."""
        self._earlier = snapshots
        if self._first is not None:
            self._begin = self._first.sequence_number
            self._uploader.keep_from(self._begin)
        else:
            self.backup.start()

    def truncated(self, sequence_number: int) -> None:
        """The log begins with this checkpoint now."""
        self._begin = sequence_number
        self._uploader.keep_from(sequence_number)
        if not self.by_reference:
            self.backup.request()
        elif self.ready and not self._stopped:
            self._run(self._remove_old(), "metadata checkpoints")

    def request_copy(self) -> None:
        """Have the metadata in Tier 2 as they are now, soon."""
        if not self.by_reference:
            self.backup.request(now=True)

    def make_evictable(self) -> None:
        """Have the next checkpoint let segments leave memory: it names a snapshot."""
        self._is_crowded = True

    async def settled(self) -> bool:
        """Wait until no snapshot is being made, or all has been stopped; False if one fails, which
        will be tried again. One that has failed before is tried now.
        """
        if self._failing and not self.ready:
            self._failing = False
            self._attempted.clear()
            self._retry.set()
        while not (self.ready or self._stopped or self._failing):
            await self._attempted.wait()
        return self.ready or self._stopped

    async def finish(self, timeout_s: float) -> None:
        """For an ordinary close: have what is new in Tier 2, waiting at most `timeout_s`, and not
        for a Tier 2 that fails.
        """
        if not self.by_reference:
            await self.backup.finish(timeout_s)
        elif not self.ready and self._health.describe() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._attempted.wait()

    async def stop(self) -> None:
        """Cancel what runs, and close the catalog. Idempotent.

        Nothing waits for a snapshot any more.
        """
        self._stopped = True
        self._attempted.set()
        await self.backup.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._catalog.close()

    def statistics(self) -> SnapshotStatistics:
        """As of now. O(1)."""
        return SnapshotStatistics(
            self.by_reference,
            not self.ready,
            self._recovery.from_tier2,
            self.snapshots,
            self._uploader.bytes_put,
            self._uploader.deleted,
        )

    def health(self) -> str | None:
        """What is wrong with the copies in Tier 2; None if nothing is."""
        uploader = self._uploader
        notes = (self.backup.health, self._health, uploader.health, uploader.damage)
        return "; ".join(each for note in notes if (each := note.describe()) is not None) or None

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        name = f"{name} {self._container_id}"
        self._tasks.append(own_task(work, name=name, on_failure=self._failed))

    def _failed(self, error: BaseException) -> None:
        if not self._stopped:
            self._on_failure(error)

    # --- inline -----------------------------------------------------------------------------------

    def _inline(self) -> bytes | None:
        """The metadata encoded, None if they are too many. Costs no more than the bound."""
        metadata, room = self._updater.metadata, self._inline_bytes_max
        if self._active_max is None:
            return encode_checkpoint(metadata)
        if self._is_crowded or len(metadata.segments) >= self._active_max:
            # What is to leave memory must be in the catalog.
            return None
        if len(metadata.segments) * _SEGMENT_BYTES_MIN > room:
            return None
        for segment in metadata.all_records():
            room -= len(segment.attributes) * _ATTRIBUTE_BYTES
            room -= len(segment.chunks) * _CHUNK_BYTES_MIN
            if room < 0:
                return None
        blob = encode_checkpoint(metadata)
        return blob if len(blob) <= self._inline_bytes_max else None

    def _begin_anew(self) -> None:
        self._updater.changes.begin(self._updater.metadata)
        self._store_is_new = True

    # --- snapshots --------------------------------------------------------------------------------

    async def _make(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        number = operation.sequence_number
        made = False
        try:
            checkpoint = await self._write(number)
            await self._upload(checkpoint, operation.unique_id)
        except KeyStoreError as error:
            await self._give_up(error, number)
        else:
            made = True
            self.snapshots += 1
            self._health.succeeded()
            self._positions.add_checkpoint(number, address)
            await self._remove_old()
        self.ready = True
        self._attempted.set()
        self._on_snapshot(made)

    async def _write(self, sequence_number: int) -> KeyStoreCheckpoint:
        """Bring the catalog to this sequence number, and keep it so on local disk."""
        frozen, self._frozen = self._frozen, None
        assert frozen is not None, "what is logged was taken"
        if self._store_is_new:
            await self._catalog.begin_empty()
            self._store_is_new = False
        checkpoint = await self._catalog.write(_batches(frozen), sequence_number)
        self._updater.changes.written()
        self._on_written()
        return checkpoint

    async def _upload(self, checkpoint: KeyStoreCheckpoint, unique_id: bytes) -> None:
        """Have it durable in Tier 2, however long that takes. Raises KeyStoreError."""
        number = checkpoint.sequence_number
        files = [FileContent(*file) for file in checkpoint.files]

        async def read(name: str, offset: int, length: int) -> bytes:
            return await self._catalog.read(number, name, offset, length)

        while True:
            try:
                await self._take_over()
                await self._uploader.put(files, number, unique_id, read)
                break
            except (StorageUnavailableError, ObjectExistsError) as error:
                self._health.failed(error)
                self._failing = True
            except SnapshotFileChangedError as error:
                directory = self._catalog.checkpoint_directory(number)
                raise KeyStoreCorruptError(directory, str(error)) from error
            self._attempted.set()
            await self._pause()
        self._backoff.reset()
        if not self.snapshots:
            self._run(self._uploader.run(), "deletion of metadata snapshots")

    async def _take_over(self) -> None:
        """Have files that predecessors put named by our snapshots. Once, before the first put."""
        if not self._earlier:
            return
        names = [snapshot_name(self._container_id, each) for each in self._earlier]
        first = snapshot_name(self._container_id, self._first) if self._first is not None else None
        newest = await self._uploader.find_newest(names) or first
        if newest is not None:
            await self._uploader.take_over(newest, first)
        self._earlier = ()

    async def _remove_old(self) -> None:
        try:
            await self._catalog.keep_from(self._begin)
        except KeyStoreError as error:
            _log.warning("container %d: %s", self._container_id, error)

    async def _give_up(self, error: KeyStoreError, sequence_number: int) -> None:
        """The catalog's files failed: make it anew with the next checkpoint, not at once."""
        if not self._updater.metadata.whole:
            # Memory has not everything: the next opening has, from the log's first checkpoint on.
            directory = self._catalog.checkpoint_directory(sequence_number)
            raise TierUnavailableError("tier1", f"catalog {directory}: {error}") from error
        _log.warning("container %d: %s; the catalog is made anew", self._container_id, error)
        self._health.failed(error)
        self._failing = True
        self._attempted.set()
        self._begin_anew()
        await self._free_disk(error, sequence_number)
        await self._pause()

    async def _pause(self) -> None:
        """Before another try; `settled` ends it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.next_s()):
                await self._retry.wait()
        self._retry.clear()

    async def _free_disk(self, error: KeyStoreError, sequence_number: int) -> None:
        """Remove what is of no use any more; on a full disk also the checkpoints that Tier 2 has.

        The log may need that room before it can be truncated.
        """
        with suppress(KeyStoreError):
            await self._catalog.destroy_working()
            if isinstance(error, KeyStoreFullError) and await self._tier2_is_whole():
                await self._catalog.keep_from(sequence_number + 1)

    async def _tier2_is_whole(self) -> bool:
        """Whether the snapshots that the log may begin with are known to be there."""
        try:
            await self._take_over()
        except StorageUnavailableError:
            return False
        return self._uploader.damage.describe() is None


async def _batches(frozen: FrozenMetadata) -> AsyncIterator[KeyBatch]:
    """All of it, encoded in slices between which others run."""
    together = KeyBatch()
    while (batch := frozen.encode_some(BATCH_KEYS)) is not None:
        together.extend(batch)
        if len(together) >= WRITTEN_KEYS:
            yield together
            together = KeyBatch()
        else:
            await asyncio.sleep(0)
    if len(together):
        yield together
