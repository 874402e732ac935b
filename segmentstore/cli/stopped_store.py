"""A stopped store, checked without changing it: its log's frames, the operations in them, what
they add up to.

Rules: the store and every container's log are locked meanwhile, so that no owner is alive. Nothing
is written (but a lock file, if there was none), and operations are replayed through the same
metadata updater as always. Of a store on BookKeeper only the folder can be locked. The ledgers
refuse what an owner elsewhere has open (frame_reports.py), and the record shows an owner that
opened it meanwhile (`check_undisturbed`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple, Self

from durablelog.data_frame_reader import DataFrameReader, Record
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import OperationFormatError, decode_operation
from durablelog.operations import Operation, SnapshotCheckpointOperation
from recovery.replay import Replay
from recovery.stopped_catalogs import StoppedCatalogs, first_snapshot
from segmentstore.cli.bookkeeper_store import BookKeeperStore
from segmentstore.cli.stopped_logs import StoppedLogs, open_stopped_logs
from segmentstore.cli.stores import require_store
from segmentstore.contracts.disk import DiskFile, is_read_only
from segmentstore.contracts.errors import (
    DataCorruptionError,
    ReadOnlyFileSystemError,
    StoreInUseError,
)
from segmentstore.contracts.lock_owner import owner_of
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import merge_settings
from segmentstore.store_folder import LOCK_NAME, catalog_directory, read_store_file, tier2_url
from tier2.locations import open_object_storage


class LoggedOperation(NamedTuple):
    """An operation and where it lies in the log."""

    container_id: int
    address: LogAddress
    """Of the frame it begins in."""
    size: int
    """Encoded, in bytes."""
    operation: Operation


STOP_IT: Final = "what is checked must not change meanwhile: stop that process first"
"""Whose move is next if a process has the store open: the operator's."""
LET_IT_LISTEN: Final = (
    "that process would be asked, and does not listen in the folder: stop it, or open the store "
    "with the setting local_server"
)
"""The same where that process could be asked."""


class StoppedStore:
    """The store in a folder; a context manager that holds its locks.

    `move` is whose move is next, and which, if a process has the store open. `bookkeeper` reads
    logs that are there.
    """

    def __init__(
        self,
        location: str,
        *,
        move: str = STOP_IT,
        bookkeeper: Callable[[str], StoppedLogs] = BookKeeperStore,
    ) -> None:
        require_store(location)
        self._move = move
        self.runtime = Runtime()
        self._disk = self.runtime.disk
        self._location = location
        self._locks = ExitStack()
        file = read_store_file(location, self.runtime)
        assert file is not None, location
        self._settings = file.settings
        self.store_id = file.store_id
        self.logs = open_stopped_logs(
            location, str(self._settings["tier1"]), self.container_ids, self.runtime, bookkeeper
        )

    @property
    def container_ids(self) -> range:
        """All containers."""
        return range(int(str(self._settings["containers"])))

    def __enter__(self) -> Self:
        try:
            self._locks.callback(self._lock_store().close)
            self._locks.enter_context(self.logs)
        except BaseException:
            self._locks.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def _lock_store(self) -> DiskFile:
        try:
            return self._disk.lock(os.path.join(self._location, LOCK_NAME))
        except BlockingIOError as error:
            raise StoreInUseError(self._location, f"{owner_of(error)}; {self._move}") from None
        except OSError as error:
            if is_read_only(error):
                raise ReadOnlyFileSystemError(self._location) from error
            raise

    @property
    def tier2_url(self) -> str:
        """Where the objects are. Raises ConfigError."""
        return tier2_url(self._location, merge_settings({}, {}, self._settings, existing=True))

    @property
    def deletion_lag_s(self) -> float:
        """As the environment and store.toml say. Raises ConfigError."""
        config = merge_settings({}, os.environ, self._settings, existing=True)
        return config.writer.deletion_lag_s

    @property
    def catalogs(self) -> StoppedCatalogs:
        """The metadata catalogs in the folder."""
        # Not at the top: most commands do not pay for RocksDB.
        from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore  # noqa: PLC0415

        return StoppedCatalogs(
            partial(catalog_directory, self._location),
            self.store_id,
            self.runtime,
            RocksDbKeyStore,
        )

    def operations(self, container_id: int) -> Iterator[LoggedOperation]:
        """Every operation from the truncation point to the tail.

        Raises DataCorruptionError at the first bad place.
        """
        for record in self._records(container_id):
            try:
                operation = decode_operation(record.data)
            except OperationFormatError as error:
                raise DataCorruptionError(
                    f"log address {record.first_frame_address:#x}", str(error)
                ) from error
            yield LoggedOperation(
                container_id, record.first_frame_address, len(record.data), operation
            )

    async def metadata(self, container_id: int) -> ContainerMetadata:
        """What the log adds up to. O(log).

        What it begins with may be in the catalog, or in Tier 2. Raises DataCorruptionError,
        TierUnavailableError.
        """
        metadata = ContainerMetadata(container_id)
        snapshot = first_snapshot(self.logs.frames(container_id))
        load = None
        if snapshot is not None:
            loaded = await self._load(container_id, snapshot)
            load = lambda _: loaded  # noqa: E731
        replay = Replay(MetadataUpdater(metadata), LogPositions(), load)
        for record in self._records(container_id):
            replay.apply(record.data, record.first_frame_address, record.last_frame_address)
        replay.finish()
        return metadata

    async def all_metadata(self) -> list[ContainerMetadata]:
        """`metadata` of every container."""
        return [await self.metadata(container_id) for container_id in self.container_ids]

    async def _load(
        self, container_id: int, snapshot: SnapshotCheckpointOperation
    ) -> ContainerMetadata:
        storage = open_object_storage(self.tier2_url, self.runtime)
        try:
            return (await self.catalogs.load(container_id, snapshot, storage)).metadata
        finally:
            await storage.close()

    def _records(self, container_id: int) -> Iterator[Record]:
        reader = DataFrameReader()
        for report in self.logs.frames(container_id):
            if report.status == "corrupt":
                position = f"{self.logs.position_unit} {report.position}"
                raise DataCorruptionError(
                    f"{report.path} {position} frame {report.sequence}", report.detail
                )
            if report.status == "ok":
                frame = LogFrame(
                    report.address, report.sequence, report.epoch, memoryview(report.payload)
                )
                yield from reader.feed(frame)
        reader.finish()
