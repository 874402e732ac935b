"""A stopped store, looked at without changing it: its log's frames, the operations in them, what
they add up to.

Rules: the store and every container's log are locked meanwhile, so that no owner is alive; nothing
is written (but a lock file, if there was none); operations are replayed through the same metadata
updater as always. Of a store on BookKeeper only the folder can be locked: what an owner elsewhere
has open is refused by the ledgers (frame_reports.py), and who opened it meanwhile is seen by its
record (`check_undisturbed`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Self

from durablelog.data_frame_reader import DataFrameReader, Record
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.durable_data_log_factory import RemoteLog, StoredLogs
from durablelog.file.frame_reports import FrameReport, read_only_frames
from durablelog.file.log_state import lock_log, read_state
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import OperationFormatError, decode_operation
from durablelog.operations import Operation
from recovery.replay import Replay
from segmentstore.cli.bookkeeper_store import BookKeeperStore, on_bookkeeper
from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.stores import require_store
from segmentstore.config import merge_settings
from segmentstore.contracts.disk import DiskFile, is_read_only
from segmentstore.contracts.errors import (
    DataCorruptionError,
    ReadOnlyFileSystemError,
    StoreInUseError,
)
from segmentstore.contracts.lock_owner import owner_of
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.store_folder import LOCK_NAME, log_directory, read_store_file, tier2_url


class LoggedOperation(NamedTuple):
    """An operation and where it lies in the log."""

    container_id: int
    address: LogAddress
    """Of the frame it begins in."""
    size: int
    """Encoded, in bytes."""
    operation: Operation


class StoppedStore:
    """The store in a folder; a context manager that holds its locks.

    `bookkeeper` makes the look at a log that is there.
    """

    def __init__(
        self, location: str, *, bookkeeper: Callable[[str], BookKeeperStore] = BookKeeperStore
    ) -> None:
        require_store(location)
        self.runtime = Runtime()
        self._disk = self.runtime.disk
        self._location = location
        self._locks = ExitStack()
        file = read_store_file(location, self.runtime)
        assert file is not None, location
        self._settings = file.settings
        self.store_id = file.store_id
        self.bookkeeper = bookkeeper(location) if on_bookkeeper(location) else None
        """Where its log is, if it is there."""
        if self.bookkeeper is None and self._settings["tier1"] != "file":
            raise CommandError(
                f"the log of {location} is in {redacted(str(self._settings['tier1']))}: "
                "there is none on disk to look at"
            )

    @property
    def container_ids(self) -> range:
        """All containers."""
        return range(int(str(self._settings["containers"])))

    def __enter__(self) -> Self:
        try:
            self._locks.callback(self._lock_store().close)
            if self.bookkeeper is not None:
                self._locks.enter_context(self.bookkeeper)
                return self
            for container_id in self.container_ids:
                folder = self.log_folder(container_id)
                if self._disk.is_directory(folder):
                    self._locks.callback(lock_log(folder, self._disk).close)
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
            raise StoreInUseError(self._location, owner_of(error)) from None
        except OSError as error:
            if is_read_only(error):
                raise ReadOnlyFileSystemError(self._location) from error
            raise

    def log_folder(self, container_id: int) -> str:
        """Where a container's log lies."""
        return log_directory(self._location, container_id)

    @property
    def logs(self) -> StoredLogs:
        """The logs of all containers, as `check_store` takes them."""
        if self.bookkeeper is not None:
            frames = self.bookkeeper.frames
            return {
                each: RemoteLog(partial(frames, each), self.position_unit)
                for each in self.container_ids
            }
        return {container_id: self.log_folder(container_id) for container_id in self.container_ids}

    @property
    def position_unit(self) -> str:
        """What the position of a frame's report counts."""
        return "offset" if self.bookkeeper is None else "entry"

    def check_undisturbed(self) -> None:
        """Raise StoreInUseError if somebody was at a log meanwhile: possible on BookKeeper alone,
        where it cannot be locked.
        """
        if self.bookkeeper is not None:
            self.bookkeeper.check_undisturbed()

    @property
    def tier2_url(self) -> str:
        """Where the objects are. Raises ConfigError."""
        return tier2_url(self._location, merge_settings({}, {}, self._settings, existing=True))

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        """Every frame, good or bad, from the truncation point or from `start`."""
        if self.bookkeeper is not None:
            yield from self.bookkeeper.frames(container_id, start)
            return
        folder = self.log_folder(container_id)
        if self._disk.is_directory(folder) and read_state(folder, self._disk) is not None:
            yield from read_only_frames(folder, self._disk, start=start)

    def last_epoch(self, container_id: int) -> int | None:
        """Of the container's last owner; None if it never had one."""
        if self.bookkeeper is not None:
            record = self.bookkeeper.record(container_id)
            return record.epoch if record is not None else None
        folder = self.log_folder(container_id)
        state = read_state(folder, self._disk) if self._disk.is_directory(folder) else None
        return state.epoch if state is not None else None

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

    def metadata(self, container_id: int) -> ContainerMetadata:
        """What the log adds up to. O(log)."""
        metadata = ContainerMetadata(container_id)
        replay = Replay(MetadataUpdater(metadata), LogPositions())
        for record in self._records(container_id):
            replay.apply(record.data, record.first_frame_address, record.last_frame_address)
        replay.finish()
        return metadata

    def _records(self, container_id: int) -> Iterator[Record]:
        reader = DataFrameReader()
        for report in self.frames(container_id):
            if report.status == "corrupt":
                raise DataCorruptionError(
                    f"{report.path} {self.position_unit} {report.position} frame {report.sequence}",
                    report.detail,
                )
            if report.status == "ok":
                frame = LogFrame(
                    report.address, report.sequence, report.epoch, memoryview(report.payload)
                )
                yield from reader.feed(frame)
        reader.finish()
