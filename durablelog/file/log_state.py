"""The state record: epoch and truncation point, and through them the fence.

Each change makes a record of the next version, `state-<version>`; the one of the highest version
counts. A process that opens the log for writing creates one too. An owner keeps its own record
open: as long as the name still leads to it, no other has opened the log since. Rules of this file:

- a change has four steps. The record is written and synced under a name of its writer's own, and
  linked to the name of the version, which fails if that is taken. Then the directory is synced, and
  the older records removed;
- that link is the compare-and-set, and alone decides between two owners. A lock can be lost while
  its owner sleeps, and then a fenced owner that wakes up in the middle of a change must lose all
  the same;
- versions are used up by later owners, and removed: a link may succeed where its version was long
  passed. So a change counts only on two conditions afterwards. The record it follows is still there
  (later owners remove the oldest first), and its version is the highest; the highest is never
  removed. Either check alone has a hole: the very first record follows none, and a listing of a
  large folder is not of one instant;
- blocking; called on the log's writer thread, or by tools.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from durablelog.data_frame import FrameFormatError, FrameVersionError
from durablelog.durable_data_log import LogAddress
from durablelog.file.log_layout import (
    LOCK_NAME,
    PREPARED_SUFFIX,
    LogState,
    pack_state,
    parse_state,
    state_name,
    state_version,
)
from durablelog.file.room import NoRoomError, unless_full
from segmentstore.contracts.disk import Disk, DiskFile, create_own, is_full, remove_if_there
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    NotPrimaryError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.lock_owner import owner_of

_STATE_BYTES_MAX: Final = 4096
_SCANS: Final = 8
"""Listings in which no record can be opened before there is none."""
_UNNUMBERED: Final = "state"
"""Name of the one record that was, before 0.1.0 was released."""
_CLAIM_TRIES: Final = 16
"""A claim begins again if a living owner truncates meanwhile, which happens once in megabytes of
log.
"""


class _Record(NamedTuple):
    version: int
    path: str
    state: LogState
    file: DiskFile | None
    """Open; None if there is no record yet."""


def read_state(directory: str, disk: Disk) -> LogState | None:
    """The state of the log in `directory`; None if there has never been a log. Changes nothing.

    Raises DataCorruptionError, ConfigError (written by a newer program), OSError.
    """
    record = _read_record(directory, disk)
    if record is None:
        return None
    if record.file is not None:
        record.file.close()
    return record.state


def _read_record(directory: str, disk: Disk) -> _Record | None:
    """The record of the highest version; its file stays open."""
    for _ in range(_SCANS):
        version = max(_versions(directory, disk), default=None)
        if version is None:
            # a large folder is listed in pieces: a record may be followed by the next one between
            # two of them
            continue
        path = os.path.join(directory, state_name(version))
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue  # a later one has taken its place
        try:
            return _Record(version, path, parse_state(file.pread(0, _STATE_BYTES_MAX)), file)
        except BaseException as error:
            file.close()
            if isinstance(error, FrameVersionError):
                raise ConfigError("log format", f"{path}: {error.reason}") from error
            if isinstance(error, FrameFormatError):
                raise DataCorruptionError(path, error.reason) from error
            raise
    if disk.exists(os.path.join(directory, _UNNUMBERED)):
        raise ConfigError(
            "log format", f"{directory} holds a log of a version before state records were numbered"
        )
    return None


def _versions(directory: str, disk: Disk) -> list[int]:
    try:
        names = disk.list_directory(directory)
    except FileNotFoundError:
        return []
    return [version for name in names if (version := state_version(name)) is not None]


def lock_log(directory: str, disk: Disk) -> DiskFile:
    """Take the log for oneself without opening it for writing; closing the result gives it back.

    For tools that must not meet a living owner. Raises StoreInUseError, OSError.
    """
    try:
        return disk.lock(os.path.join(directory, LOCK_NAME))
    except BlockingIOError as error:
        raise StoreInUseError(directory, f"its log: {owner_of(error)}") from error


class StateFile:
    """The state of a log that is ours: made by `StateFile.claim`, which fences every earlier
    owner.
    """

    def __init__(self, directory: str, disk: Disk, tag: str, record: _Record) -> None:
        self._directory = directory
        self._disk = disk
        self._tag = tag
        self._record = record  # replaced as a whole: `is_ours` is called beside a truncation

    @property
    def state(self) -> LogState:
        """What the record says."""
        return self._record.state

    @classmethod
    def claim(
        cls, directory: str, disk: Disk, container_id: int, tag: str, epoch_min: int = 1
    ) -> StateFile:
        """Write the next epoch, at least `epoch_min`, durably.

        From then on no earlier owner can acknowledge anything.

        `tag` distinguishes this opening from every other. Raises NotPrimaryError if others open the
        log at the same time, OSError.
        """
        for _ in range(_CLAIM_TRIES):
            there = _read_record(directory, disk) or _Record(
                0, "", LogState(container_id, 0, LogAddress(0), 1), None
            )
            there = there._replace(
                state=there.state._replace(epoch=max(there.state.epoch, epoch_min - 1))
            )
            owned = cls(directory, disk, tag, there)
            try:
                owned._follow(there.state._replace(epoch=there.state.epoch + 1))
            except FileExistsError:
                continue
            finally:
                if there.file is not None:
                    there.file.close()
            owned._remove_older()
            return owned
        raise NotPrimaryError(container_id, "its log is being opened by others all the time")

    def is_ours(self) -> bool:
        """True if no other process has opened the log since this one did. Costs a stat.

        For any thread, beside every other call but `close`.
        """
        while True:
            record = self._record
            if record.file is not None and record.file.is_at(record.path):
                return True
            # A truncation removes the record before its own.
            if record is self._record:
                return False

    def loss(self) -> NotPrimaryError | TierUnavailableError:
        """Why the log is not ours any more, once `is_ours` has said so.

        Either is final for this owner. Raises OSError.

        The highest record is never removed: a folder without any is not the one we opened.
        """
        if _versions(self._directory, self._disk):
            return NotPrimaryError(self.state.container_id, "its log was opened by another owner")
        detail = (
            f"the log's folder is not at {self._directory} any more: it was moved or removed. "
            "Nothing was acknowledged since; put it back, then open the store again"
        )
        return TierUnavailableError("tier1", detail)

    def truncate(self, address: LogAddress, sequence: int) -> None:
        """Make the frame at `address` the first one, durably.

        Raises NotPrimaryError, TierUnavailableError, OSError.

        After an OSError it is unknown which record counts: the log must be given up.
        """
        before = self._record
        try:
            if not self.is_ours():
                raise FileExistsError
            self._follow(
                before.state._replace(truncation_address=address, truncation_sequence=sequence)
            )
        except FileExistsError:
            raise self.loss() from None
        finally:
            if self._record is not before and before.file is not None:
                before.file.close()
        # A new owner may have removed it meanwhile; that we are fenced shows at the next
        # acknowledgement.
        remove_if_there(self._disk, before.path)

    def close(self) -> None:
        """Give up the handle; idempotent."""
        file = self._record.file
        self._record = self._record._replace(file=None)
        if file is not None:
            file.close()

    def _follow(self, state: LogState) -> None:
        """Make `state` the record of the next version.

        Raises FileExistsError if that is taken or was passed.

        NoRoomError: nothing was changed. After another OSError it is unknown which record counts.
        """
        before = self._record
        version = before.version + 1
        path = self._path(version)
        staged = f"{path}-{self._tag}{PREPARED_SUFFIX}"
        with unless_full("writing a state record"):
            file = create_own(self._disk, staged)
            try:
                file.pwrite([pack_state(state)], 0)
                file.sync()
            except BaseException:
                file.close()
                with contextlib.suppress(OSError):
                    remove_if_there(self._disk, staged)
                raise
        try:
            try:
                self._link(file, staged, path)
            finally:
                remove_if_there(self._disk, staged)
            self._disk.sync_directory(self._directory)
            if before.file is not None and not before.file.is_at(before.path):
                # The new record may be the highest all the same, if that owner's follower claimed
                # behind it: it stays.
                raise FileExistsError
            if max(_versions(self._directory, self._disk), default=0) > version:
                remove_if_there(self._disk, path)
                raise FileExistsError
        except BaseException:
            file.close()
            raise
        self._record = _Record(version, path, state, file)

    def _link(self, file: DiskFile, staged: str, path: str) -> None:
        try:
            self._disk.link(staged, path)
        except FileNotFoundError:
            # A new owner tidied up what it took for left over.
            raise FileExistsError from None
        except OSError as error:
            if not is_full(error) or file.is_at(path):
                raise
            raise NoRoomError(f"naming a state record: {error.strerror}") from error

    def _remove_older(self) -> None:
        for version in sorted(_versions(self._directory, self._disk)):
            if version < self._record.version:
                remove_if_there(self._disk, self._path(version))

    def _path(self, version: int) -> str:
        return os.path.join(self._directory, state_name(version))
