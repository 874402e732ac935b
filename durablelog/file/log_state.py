"""The `state` file: epoch and truncation point, and through them the fence.

Whoever opens the log for writing replaces the file. An owner keeps its own file open: as long as the name
still leads to it, nobody has opened the log since. Rules of this file:

- a change is: `state.new` written, synced, renamed over `state`, directory synced;
- changes exclude each other by a short lock on `state.lock`, and an owner looks under that lock whether
  it is still the owner: otherwise a fenced owner's truncation could put itself back into power;
- blocking; called on the log's lane, or by tools.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from durablelog.data_frame import FrameFormatError, FrameVersionError
from durablelog.durable_data_log import LogAddress
from durablelog.file.log_layout import (
    LOCK_NAME,
    STATE_LOCK_NAME,
    STATE_NAME,
    STATE_NEW_NAME,
    LogState,
    pack_state,
    parse_state,
)
from segmentstore.contracts.disk import Disk, DiskFile
from segmentstore.contracts.errors import ConfigError, DataCorruptionError, NotPrimaryError, StoreInUseError

_STATE_BYTES_MAX = 4096


def read_state(directory: str, disk: Disk) -> LogState | None:
    """The state record of the log in `directory`; None if there has never been a log. Changes nothing.

    Raises DataCorruptionError, ConfigError (written by a newer program), OSError.
    """
    path = os.path.join(directory, STATE_NAME)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return parse_state(file.pread(0, _STATE_BYTES_MAX))
    except FrameVersionError as error:
        raise ConfigError("log format", f"{path}: {error.reason}") from error
    except FrameFormatError as error:
        raise DataCorruptionError(path, error.reason) from error
    finally:
        file.close()


def lock_log(directory: str, disk: Disk) -> DiskFile:
    """Take the log for oneself without opening it for writing; closing the result gives it back.

    For tools that must not meet a living owner. Raises StoreInUseError, OSError.
    """
    try:
        return disk.lock(os.path.join(directory, LOCK_NAME))
    except BlockingIOError as error:
        raise StoreInUseError(directory, "another owner has its log open") from error


class StateFile:
    """The state of a log that is ours: made by `StateFile.claim`, which fences every earlier owner."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._path = os.path.join(directory, STATE_NAME)
        self._file: DiskFile | None = None
        self.state = LogState(0, 0, LogAddress(0), 1)

    @classmethod
    def claim(cls, directory: str, disk: Disk, container_id: int) -> StateFile:
        """Write the next epoch durably. From then on no earlier owner can acknowledge anything."""
        owned = cls(directory, disk)
        with owned._exclusive():
            there = read_state(directory, disk) or LogState(container_id, 0, LogAddress(0), 1)
            owned._replace(there._replace(epoch=there.epoch + 1))
        return owned

    def is_ours(self) -> bool:
        """True if nobody has opened the log since we did. Costs a stat and an fstat."""
        return self._file is not None and self._file.is_at(self._path)

    def truncate(self, address: LogAddress, sequence: int) -> None:
        """Make the frame at `address` the first one, durably. Raises NotPrimaryError, OSError.

        After an OSError it is unknown which record counts: the log must be given up.
        """
        with self._exclusive():
            if not self.is_ours():
                raise NotPrimaryError(self.state.container_id, "its log was opened by another owner")
            self._replace(self.state._replace(truncation_address=address, truncation_sequence=sequence))

    def close(self) -> None:
        """Give up the handle; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            lock = self._disk.lock(os.path.join(self._directory, STATE_LOCK_NAME))
        except BlockingIOError as error:
            # Only another opening, or an owner that one is fencing, can hold it: we cannot tell who wins.
            raise NotPrimaryError(self.state.container_id, "another owner is changing the log's state") from error
        try:
            yield
        finally:
            lock.close()

    def _replace(self, state: LogState) -> None:
        path = os.path.join(self._directory, STATE_NEW_NAME)
        try:
            # What an interrupted change left; a file with a failed sync must not be synced again.
            self._disk.unlink(path)
        except FileNotFoundError:
            pass
        file = self._disk.open(path, write=True, create=True, exclusive=True)
        try:
            file.pwrite([pack_state(state)], 0)
            file.sync()
            self._disk.rename(path, self._path)
            self._disk.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        self.close()
        self._file = file
        self.state = state
