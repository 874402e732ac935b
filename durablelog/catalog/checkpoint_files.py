"""CheckpointFiles: a catalog's directories on disk, and the lists that make checkpoints finished.

All calls block. Rules of this file:

- a checkpoint is finished when its list is there. The list is written last, when all that it names
  is durable, and removed first: a directory without a list is a leftover;
- every list says whose it is. A directory that has a list of another store or container is refused
  before anything in it is changed. That of a working directory is there for this alone;
- no two key stores ever have one working directory: each opening has one with a number of its own.
  Two processes may be at work if the lock of one was given up for it, and RocksDB would write over
  the other's files;
- names that are none of a catalog's are left alone.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.checkpoint_list import (
    CheckpointList,
    decode_checkpoint_list,
    encode_checkpoint_list,
)
from durablelog.catalog.key_store import (
    CheckpointFile,
    ForeignKeyStoreError,
    KeyStoreCorruptError,
    KeyStoreInUseError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import (
    Disk,
    DiskFile,
    make_directories,
    remove_content,
    remove_if_there,
)
from segmentstore.contracts.lock_owner import owner_of

WORKING: Final = "working"
LOCK_NAME: Final = "lock"
LIST_SUFFIX: Final = ".files"

_NEW_SUFFIX = ".new"
_WORKING: Final = re.compile(WORKING + r"(-[0-9a-f]{16})?(\.files(?:\.new)?)?")
"""An early version had one, without a number."""
_CHECKPOINT: Final = re.compile(r"([0-9a-f]{16})(\.files(?:\.new)?|\.part|\.tmp)?")
"""With the names of what is being listed, downloaded, and made by RocksDB."""
_CHANGED: Final = ("CURRENT", "MANIFEST")
"""Files a key store may write to; it never changes any other."""
_READ_BYTES = 1024 * 1024
_DAMAGE = frozenset((errno.ENOENT, errno.EIO, errno.EISDIR, errno.ENOTDIR))


class CheckpointFiles:
    """The files of one container's catalog, in `directory`."""

    def __init__(self, directory: str, identity: KeyStoreIdentity, disk: Disk) -> None:
        self.directory = directory
        self._identity = identity
        self._disk = disk

    def working(self, token: int) -> str:
        """The directory of a key store that is changed."""
        return f"{self.directory}/{WORKING}-{token:016x}"

    def path(self, sequence_number: int) -> str:
        """The directory of a checkpoint."""
        return f"{self.directory}/{sequence_number:016x}"

    # --- whose it is ------------------------------------------------------------------------------

    def claim(self) -> DiskFile:
        """Make the directory if it is absent, and lock it; closing what this returns unlocks it.

        Raises ForeignKeyStoreError, KeyStoreInUseError, OSError.
        """
        make_directories(self._disk, self.directory)
        for name in self._disk.list_directory(self.directory):
            if name.endswith(LIST_SUFFIX):
                try:
                    self._read_list(f"{self.directory}/{name}")
                except MetadataFormatError:
                    pass  # Whose it is cannot be known, nor is anything kept that it lists.
                except OSError as error:
                    if error.errno not in _DAMAGE:
                        raise
        try:
            return self._disk.lock(f"{self.directory}/{LOCK_NAME}")
        except BlockingIOError as error:
            raise KeyStoreInUseError(self.directory, owner_of(error)) from error

    def claim_working(self, path: str, sequence_number: int) -> None:
        """Say whose a new working directory will be, and make it."""
        self._write_list(path, CheckpointList(self._identity, sequence_number, ()))
        make_directories(self._disk, path)

    def remove_working(self, path: str | None = None) -> None:
        """Remove a working directory that no process has open, and its list; None: all of them."""
        names = [
            name
            for name in self._disk.list_directory(self.directory)
            if _WORKING.fullmatch(name)
            and path in (None, f"{self.directory}/{name.partition('.')[0]}")
        ]
        # The lists last: they say whose the directories are.
        for name in sorted(names, key=lambda name: LIST_SUFFIX in name):
            path = f"{self.directory}/{name}"
            if self._disk.is_directory(path):
                remove_content(self._disk, path)
                with suppress(FileNotFoundError):
                    self._disk.remove_directory(path)
            else:
                remove_if_there(self._disk, path)
        if names:
            self._disk.sync_directory(self.directory)

    def _read_list(self, path: str) -> CheckpointList:
        listed = decode_checkpoint_list(self._read(path))
        if listed.identity != self._identity:
            words = f"{path} is of {listed.identity}, not {self._identity}"
            raise ForeignKeyStoreError(self.directory, words)
        return listed

    # --- one checkpoint ---------------------------------------------------------------------------

    def files_of(self, sequence_number: int) -> tuple[CheckpointFile, ...]:
        """What is listed of a finished checkpoint.

        Raises MetadataFormatError, ForeignKeyStoreError, OSError: FileNotFoundError if it is not
        finished.
        """
        listed = self._read_list(self.path(sequence_number) + LIST_SUFFIX)
        if listed.sequence_number != sequence_number:
            raise MetadataFormatError(f"the list of {listed.sequence_number} has another's name")
        return listed.files

    def damage(self, sequence_number: int) -> str | None:
        """What is wrong with a checkpoint: "" nothing, None: there is none. Reads all its files.

        Raises ForeignKeyStoreError, and OSError if that does not mean damage.
        """
        path = self.path(sequence_number)
        if not self._disk.exists(path + LIST_SUFFIX):
            return None
        try:
            for file in self.files_of(sequence_number):
                if wrong := self._compare(f"{path}/{file.name}", file):
                    return wrong
        except MetadataFormatError as error:
            return str(error)
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            return str(error)
        return ""

    def _compare(self, path: str, listed: CheckpointFile) -> str:
        file = self._disk.open(path)
        try:
            size = file.size()
            if size != listed.size:
                return f"{path} has {size:,} bytes, where {listed.size:,} are listed"
            checksum = _checksum(file, size)
        finally:
            file.close()
        if checksum != listed.crc32c:
            return f"{path} has checksum {checksum:08x}, where {listed.crc32c:08x} is listed"
        return ""

    def begin(self, sequence_number: int) -> None:
        """Nothing is finished under this number: a checkpoint may be made."""
        remove_if_there(self._disk, self.path(sequence_number) + LIST_SUFFIX)
        self._disk.sync_directory(self.directory)

    def finish(self, sequence_number: int, files: Iterable[CheckpointFile]) -> None:
        """List files that are there, whole and durable. Raises KeyStoreCorruptError, OSError."""
        path = self.path(sequence_number)
        listed = tuple(sorted(files))
        for file in listed:
            size = self._disk.size(f"{path}/{file.name}")
            if size != file.size:
                words = f"{path}/{file.name} has {size:,} bytes, not {file.size:,}"
                raise KeyStoreCorruptError(self.directory, words)
        self._disk.sync_directory(path)
        self._write_list(path, CheckpointList(self._identity, sequence_number, listed))

    def _write_list(self, path: str, listed: CheckpointList) -> None:
        final, made = path + LIST_SUFFIX, path + LIST_SUFFIX + _NEW_SUFFIX
        remove_if_there(self._disk, made)
        self._write(made, encode_checkpoint_list(listed))
        # What is listed has its name before the list has.
        self._disk.sync_directory(self.directory)
        self._disk.rename(made, final)
        self._disk.sync_directory(self.directory)

    def link_into_working(self, working: str, sequence_number: int) -> None:
        """Fill an empty working directory. Not durable: it does not outlive this process.

        Raises KeyStoreCorruptError, ForeignKeyStoreError, OSError.
        """
        path = self.path(sequence_number)
        try:
            for name, _, _ in self.files_of(sequence_number):
                source, target = f"{path}/{name}", f"{working}/{name}"
                if name.startswith(_CHANGED):
                    self._write(target, self._read(source))
                else:
                    self._disk.link(source, target)
        except MetadataFormatError as error:
            raise KeyStoreCorruptError(self.directory, str(error)) from error

    def read_piece(self, sequence_number: int, name: str, offset: int, length: int) -> bytes:
        """A part of a file of a checkpoint; fewer bytes only at its end. Raises OSError."""
        file = self._disk.open(f"{self.path(sequence_number)}/{name}")
        try:
            return file.pread(offset, length)
        finally:
            file.close()

    # --- removing ---------------------------------------------------------------------------------

    def stale(self, first: int, written: int | None) -> set[int]:
        """Numbers of checkpoints before `first`, and of those that are neither finished nor being
        written.
        """
        there = {number for number, _ in self._names()}
        return {
            number
            for number in there - {written}
            if number < first or not self._is_finished(number)
        }

    def remove_unfinished(self, sequence_number: int) -> None:
        """Remove what there is of a checkpoint, unless it is finished."""
        if not self._is_finished(sequence_number):
            self.remove([sequence_number])

    def remove(self, sequence_numbers: Iterable[int]) -> None:
        """Remove checkpoints, and what else has their numbers: lists first. Raises OSError."""
        removed = set(sequence_numbers)
        names = [name for number, name in self._names() if number in removed]
        if not names:
            return
        lists = [name for name in names if name.endswith(LIST_SUFFIX)]
        for name in lists:
            self._disk.unlink(f"{self.directory}/{name}")
        if lists:
            self._disk.sync_directory(self.directory)
        for name in names:
            path = f"{self.directory}/{name}"
            if self._disk.is_directory(path):
                remove_content(self._disk, path)
                self._disk.remove_directory(path)
            else:
                remove_if_there(self._disk, path)
        self._disk.sync_directory(self.directory)

    def remove_all(self) -> None:
        """Remove every checkpoint, and the directory if nothing else is in it."""
        self.remove({number for number, _ in self._names()})
        remove_if_there(self._disk, f"{self.directory}/{LOCK_NAME}")
        if not self._disk.list_directory(self.directory):
            self._disk.remove_directory(self.directory)

    def _names(self) -> Iterator[tuple[int, str]]:
        """Number and name of what belongs to checkpoints, finished or not."""
        for name in self._disk.list_directory(self.directory):
            found = _CHECKPOINT.fullmatch(name)
            if found is not None:
                yield int(found[1], 16), name

    def _is_finished(self, number: int) -> bool:
        try:
            self.files_of(number)
        except MetadataFormatError:
            return False
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            return False
        return self._disk.is_directory(self.path(number))

    # --- files ------------------------------------------------------------------------------------

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            return file.pread(0, file.size())
        finally:
            file.close()

    def _write(self, path: str, content: bytes) -> None:
        file = self._disk.open(path, write=True, create=True, exclusive=True)
        try:
            file.pwrite([content], 0)
            file.sync()
        finally:
            file.close()


def _checksum(file: DiskFile, size: int) -> int:
    checksum = 0
    for offset in range(0, size, _READ_BYTES):
        checksum = crc32c(file.pread(offset, min(_READ_BYTES, size - offset)), checksum)
    return checksum
