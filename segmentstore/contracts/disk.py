"""The seam to a local file system: the few calls the file log and the file Tier 2 make.

Everything durable on local disk goes through a `Disk`, so that a simulated one can lose, tear and
refuse writes. All calls block and are made from an executor's thread, never from the event loop,
except where a caller says why. Foreign errors stay OSError: the caller's adapter translates them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol

from segmentstore.contracts import forks
from segmentstore.contracts.aio_syncs import AioSyncs
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.direct_writes import DirectWriter
from segmentstore.contracts.file_systems import is_of_one_host
from segmentstore.contracts.lock_owner import (
    OWNER_BYTES_MAX,
    LockedError,
    describe_owner,
    render_owner,
)

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_NO_ALLOCATION = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
_NOT_OURS = frozenset((errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP))
_IOV_MAX = 1024
"""Buffers one pwritev takes (Linux UIO_MAXIOV)."""


class DiskFile(Protocol):
    """An open file. Not safe for use by two threads at once, except `pread`."""

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers, one after another, at `offset`; short writes are continued.

        Durable only after `sync`.
        """

    def pread(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def sync(self) -> None:
        """fdatasync.

        After it raised, the file is finished: no second sync on it, ever (DESIGN 4.2).
        """

    def size(self) -> int:
        """Length of the file in bytes."""

    def truncate(self, length: int) -> None:
        """Set the length."""

    def allocate(self, offset: int, length: int) -> None:
        """Find room, so that writes within the range do not meet a full disk; the file may grow to
        it, by zeros.

        An error (see `is_full`) leaves the file as usable as it was. A file system that cannot
        promise room promises none, and says nothing: a write finds out.
        """

    def write_directly(self) -> None:
        """Have later writes leave nothing in the page cache, as far as the file system can: of a
        large file, which no caller reads at once.

        Each is on its way to the disk when it returns; durable only after `sync`. Costs a copy of
        the bytes. What does not begin at a block, and all behind it, is written as before; so is
        all behind a `pread`, which takes any range.
        """

    def is_at(self, path: str) -> bool:
        """True if `path` still names this very file (same device and inode)."""

    def close(self) -> None:
        """Close; idempotent. Releases a lock taken on it."""


class KernelSyncs(Protocol):
    """Syncs that no thread of this process waits for, of one user; on the event loop.

    Where `ready` is False the caller's own thread does it.
    """

    def load(self) -> None:
        """Load what it needs. Blocking: 25 ms of CPU. Not on the event loop, nor after `close`."""

    @property
    def ready(self) -> bool:
        """True if a sync may be begun now. False before `load`, and in a forked child."""

    def begin(self, file: DiskFile, done: Callable[[OSError | None], None]) -> bool:
        """Begin what `sync` of the file does; False: refused, and nothing was done.

        `done` is called later on this loop, with what `sync` would have raised. It is called again
        if it raises. Needs `ready`. An error raised here means that it is unknown whether anything
        was begun; `done` is not called then.
        """

    def close(self) -> None:
        """Give back what it has, once nothing is under way. Idempotent."""


class Disk(Protocol):
    """A file system.

    Paths are absolute or relative to the process, as the operating system has them.
    """

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> DiskFile:
        """Open a file; `create` makes it if absent, `exclusive` refuses one that is there
        (FileExistsError).
        """

    def lock(self, path: str) -> DiskFile:
        """Create if absent and lock exclusively without waiting; BlockingIOError if it is locked
        (see `owner_of`).

        A lock that is released without being closed is free, too.
        """

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`, replacing what is there.

        Durable after `sync_directory`.
        """

    def link(self, source: str, target: str) -> None:
        """Give `source` a second name; FileExistsError if it is taken.

        Durable after `sync_directory`.
        """

    def unlink(self, path: str) -> None:
        """Remove a name; FileNotFoundError if absent. Durable after `sync_directory`."""

    def make_private(self, path: str) -> None:
        """Let only its owner read or change a file, as far as its file system has such rights.

        Raises OSError.
        """

    def make_directory(self, path: str) -> None:
        """Make a directory; FileExistsError if something has the name.

        Durable after `sync_directory` of its parent.
        """

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted; FileNotFoundError if absent."""

    def exists(self, path: str) -> bool:
        """True if something has this name. Raises OSError where that cannot be found out."""

    def is_directory(self, path: str) -> bool:
        """True if the name is a directory. Raises OSError where that cannot be found out."""

    def size(self, path: str) -> int:
        """Length in bytes; FileNotFoundError if absent."""

    def modified_ms(self, path: str) -> int:
        """Last modification, milliseconds since 1970 UTC; FileNotFoundError if absent."""

    def identity(self, path: str) -> tuple[int, int]:
        """Device and inode: the same for one file or directory by whatever path.

        FileNotFoundError if absent.
        """

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; OSError if not empty."""

    def sync_directory(self, path: str) -> None:
        """fsync a directory: makes creations, renames and removals in it durable."""

    def kernel_syncs(self, path: str) -> KernelSyncs | None:
        """Of files in a directory, where no call waits for another machine; None: not here.

        The result is for one user on one event loop.
        """


def is_full(error: BaseException) -> bool:
    """Whether this is a disk's, or a quota's, way to say that it has no room."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_read_only(error: BaseException) -> bool:
    """Whether this is a file system's way to say that it takes no changes, whatever user asks."""
    return isinstance(error, OSError) and error.errno == errno.EROFS


def remove_if_there(disk: Disk, path: str) -> None:
    """Unlink, whether it is there or not. Raises OSError."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        pass


def create_own(disk: Disk, path: str) -> DiskFile:
    """Create a file for writing, under a name that only the caller uses. Raises OSError.

    A file that is there is replaced: an earlier try of the caller failed, and so did its removal.
    """
    try:
        return disk.open(path, write=True, create=True, exclusive=True)
    except FileExistsError:
        disk.unlink(path)
        return disk.open(path, write=True, create=True, exclusive=True)


def remove_content(disk: Disk, directory: str) -> None:
    """Remove what is in a directory, if it is there. Not durable. Raises OSError.

    Another process may be removing it, too.
    """
    if not disk.exists(directory):
        return
    with suppress(FileNotFoundError):
        for name in disk.list_directory(directory):
            path = f"{directory}/{name}"
            if disk.is_directory(path):
                remove_content(disk, path)
                with suppress(FileNotFoundError):
                    disk.remove_directory(path)
            else:
                remove_if_there(disk, path)


def make_directories(disk: Disk, path: str) -> None:
    """Make a directory and what is missing above it; durable when it returns. Raises OSError.

    One that is there may have been created by a process that died before it synced the parent. So
    the parent of the lowest one that is there is synced as well, and nothing durable is ever put
    into what a crash can take away.
    """
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    if disk.is_directory(path):
        try:
            disk.sync_directory(parent)
        except OSError as error:
            # A folder that this process may not open, or that knows no syncs (a mount point's
            # parent): this process has not created the one below it.
            if error.errno not in _NOT_OURS:
                raise
        return
    make_directories(disk, parent)
    try:
        disk.make_directory(path)
    except FileExistsError:
        # Another thread was first; its sync may still be under way, so ours is done as well.
        if not disk.is_directory(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    disk.sync_directory(parent)


def _status(path: str) -> os.stat_result | None:
    """None: nothing has the name. What cannot be seen may be there."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _take_away(pending: list[Buffer], written: int) -> None:
    """Remove the first so many bytes, and buffers that are empty then."""
    done = 0
    while done < len(pending) and written >= len(pending[done]):
        written -= len(pending[done])
        done += 1
    del pending[:done]
    if written:
        pending[0] = memoryview(pending[0])[written:]


class OsFile:
    """A DiskFile on the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity: tuple[int, int] | None = None
        self._direct: DirectWriter | None = None

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        pending = list(buffers)
        direct = self._direct
        if direct is not None:
            written = direct.write(pending, offset)
            offset += written
            _take_away(pending, written)
            if pending:
                self._end_direct_writes()
        while pending:
            written = os.pwritev(self._descriptor, pending[:_IOV_MAX], offset)
            offset += written
            _take_away(pending, written)

    def pread(self, offset: int, length: int) -> bytes:
        # The flag is for reads, too, and those would have to be of whole blocks.
        self._end_direct_writes()
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing:
            data = os.pread(self._descriptor, missing, offset + length - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for other ways to do the same."""
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def allocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, offset, length)
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise

    def write_directly(self) -> None:
        with suppress(OSError):
            self._direct = DirectWriter(self._descriptor)

    def _end_direct_writes(self) -> None:
        direct = self._direct
        if direct is not None:
            # In this order: readers come here beside each other, and beside a write.
            direct.end()
            self._direct = None

    def is_at(self, path: str) -> bool:
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return False
        if self._identity is None:
            mine = os.fstat(self._descriptor)
            self._identity = (mine.st_ino, mine.st_dev)
        return self._identity == (there.st_ino, there.st_dev)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._direct = None
        if descriptor >= 0:
            os.close(descriptor)


class OsLock(OsFile):
    """A file that is locked: by `flock`, which a forked child shares as long as it has the
    descriptor, too.

    So closing unlocks first, whatever copies of the descriptor there are, and a child closes its
    copy when it begins: when the owner dies, the lock is free. The file names the holder, for
    people (lock_owner.py).
    """

    held: ClassVar[set[tuple[int, int]]] = set()
    """Device and inode of those that this process has."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._has = False
        forks.in_child(self, OsLock._forget)

    def take(self, path: str) -> None:
        """Lock, and say whose it is. Raises LockedError if it is locked already, OSError."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = describe_owner(self._content(), ours=self._key() in OsLock.held)
            raise LockedError(path, owner) from None
        self._has = True
        OsLock.held.add(self._key())
        try:
            os.utime(self._descriptor)
            text = render_owner(os.fstat(self._descriptor).st_mtime)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        except OSError:
            pass  # The lock counts without it.

    def _key(self) -> tuple[int, int]:
        there = os.fstat(self._descriptor)
        return there.st_dev, there.st_ino

    def _content(self) -> bytes:
        try:
            return os.pread(self._descriptor, OWNER_BYTES_MAX, 0)
        except OSError:
            return b""

    def close(self) -> None:
        if self._descriptor >= 0:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            finally:
                self._forget()

    def _forget(self) -> None:
        if self._descriptor >= 0:
            if self._has:
                OsLock.held.discard(self._key())
            super().close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class OsDisk:
    """The Disk of the operating system."""

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0) | os.O_CLOEXEC
        return self._opened(os.open(path, flags, 0o644))

    def _opened(self, descriptor: int) -> OsFile:
        """The file of a descriptor."""
        return OsFile(descriptor)

    def lock(self, path: str) -> OsFile:
        while True:
            with forks.no_fork():
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                lock = OsLock(descriptor)
            try:
                lock.take(path)
                # Its owner may have removed it between the two: the lock of a file without a name
                # excludes no process.
                if lock.is_at(path):
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_private(self, path: str) -> None:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            os.chmod(path, mode & stat.S_IRWXU)

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return _status(path) is not None

    def is_directory(self, path: str) -> bool:
        status = _status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def identity(self, path: str) -> tuple[int, int]:
        there = os.stat(path)
        return there.st_dev, there.st_ino

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def kernel_syncs(self, path: str) -> KernelSyncs | None:
        # A disk that derives from this one may sync in its own way.
        if type(self) is not OsDisk or not is_of_one_host(path):
            return None
        return AioSyncs()
