"""A stopped store, looked at without changing it: its log's frames, the operations in them, what they add up to.

Rules: every container's log is locked while it is looked at, so that no owner is alive; nothing is written
(but the lock file, if there was none); operations are replayed through the same metadata updater as always.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.file.frame_reports import FrameReport, read_only_frames
from durablelog.file.log_state import lock_log, read_state
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import OperationFormatError, decode_operation
from durablelog.operations import CheckpointOperation, Operation
from segmentstore.cli.stores import STORE_FILE, log_folder, require_store
from segmentstore.contracts.disk import Disk, OsDisk
from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata


class LoggedOperation(NamedTuple):
    """An operation and where it lies in the log."""

    container_id: int
    address: LogAddress
    """Of the frame it begins in."""
    size: int
    """Encoded, in bytes."""
    operation: Operation


class StoppedStore:
    """The store in a folder; a context manager that holds its locks."""

    def __init__(self, location: str, disk: Disk | None = None) -> None:
        require_store(location)
        self._disk = disk or OsDisk()
        self._location = location
        self._locks = ExitStack()
        self.settings = _read_settings(Path(location) / STORE_FILE)
        """What `store.toml` says."""

    @property
    def container_ids(self) -> range:
        """All containers."""
        return range(int(self.settings.get("containers", 1)))

    def __enter__(self) -> Self:
        try:
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

    def log_folder(self, container_id: int) -> str:
        """Where a container's log lies."""
        return str(log_folder(self._location, container_id))

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        """Every frame, good or bad, from the truncation point or from `start`."""
        folder = self.log_folder(container_id)
        if self._disk.is_directory(folder) and read_state(folder, self._disk) is not None:
            yield from read_only_frames(folder, self._disk, start=start)

    def operations(self, container_id: int) -> Iterator[LoggedOperation]:
        """Every operation from the truncation point to the tail. Raises DataCorruptionError at the first bad place."""
        reader = DataFrameReader()
        for report in self.frames(container_id):
            if report.status == "corrupt":
                raise DataCorruptionError(_place(report), report.detail)
            if report.status != "ok":
                continue
            frame = LogFrame(report.address, report.sequence, report.epoch, memoryview(report.payload))
            for record, first, _last in reader.feed(frame):
                try:
                    operation = decode_operation(record)
                except OperationFormatError as error:
                    raise DataCorruptionError(f"{_place(report)}, operation", str(error)) from error
                yield LoggedOperation(container_id, first, len(record), operation)

    def metadata(self, container_id: int) -> ContainerMetadata:
        """What the log adds up to. O(log)."""
        updater: MetadataUpdater | None = None
        metadata = ContainerMetadata(container_id)
        for logged in self.operations(container_id):
            if isinstance(logged.operation, CheckpointOperation):
                if updater is None:
                    metadata = decode_checkpoint(logged.operation.blob)
                    updater = MetadataUpdater(metadata)
            elif updater is None:
                raise DataCorruptionError(
                    f"{self.log_folder(container_id)} address {logged.address:#x}", "operations but no checkpoint"
                )
            if updater is not None:
                updater.replay(logged.operation)
        return metadata


def _place(report: FrameReport) -> str:
    return f"{report.path} offset {report.position} frame {report.sequence}"


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"it is not TOML: {error}") from error
