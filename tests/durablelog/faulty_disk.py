"""A disk that fails on purpose: the operating system's, with one call that goes wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import cast

from durablelog.data_frame import FRAME_MAGIC
from durablelog.file.log_layout import FILE_SUFFIX
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import DiskFile, OsDisk, OsFile


class FaultyDisk(OsDisk):
    """Counts the calls that change something and lets one fail, once or (a crash) for good."""

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        """Syncs are counted but left out: enough where processes die and the machine does not."""
        self.calls: list[str] = []
        self.fail_at: dict[str, int] = {}
        """Kind of call to how many of them still succeed."""
        self.crash_at: int | None = None
        """Number of the call at which, and from which on, everything fails."""
        self.before_link: Callable[[], None] = lambda: None
        """What another process does just before a log file gets its name."""
        self.torn_bytes = 0
        """How much of a write that fails reaches the file all the same."""
        self.synced_after_failure: list[str] = []

    # "append" is a write of frames and "commit" its sync; "pwrite" and "sync" are all others.
    def fail_after(self, kind: str, calls: int) -> None:
        self.fail_at[kind] = calls

    def touch(self, kind: str, path: str) -> None:
        self.calls.append(f"{kind} {path.rsplit('/', 1)[-1]}")
        if self.crash_at is not None and len(self.calls) > self.crash_at:
            raise OSError(errno.EIO, "crashed")
        if kind in self.fail_at:
            self.fail_at[kind] -= 1
            if self.fail_at[kind] < 0:
                del self.fail_at[kind]
                raise OSError(errno.EIO, f"{kind} was made to fail")

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        return cast("OsFile", FaultyFile(self, path, file))

    def rename(self, source: str, target: str) -> None:
        self.touch("rename", target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.touch("link", target)
        if target.endswith(FILE_SUFFIX):
            self.before_link()
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self.touch("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.touch("sync_directory", path)
        if not self.quick:
            super().sync_directory(path)


class FaultyFile:
    """A file of a FaultyDisk."""

    def __init__(self, disk: FaultyDisk, path: str, file: DiskFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._finished = False
        self._appended = False

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._appended = bytes(buffers[0][:4]) == FRAME_MAGIC
        try:
            self._touch("append" if self._appended else "pwrite")
        except OSError:
            self._file.pwrite([b"".join(buffers)[: self._disk.torn_bytes]], offset)
            raise
        self._file.pwrite(buffers, offset)

    def sync(self) -> None:
        self._touch("commit" if self._appended else "sync")
        if not self._disk.quick:
            self._file.sync()

    def _touch(self, kind: str) -> None:
        if self._finished:
            self._disk.synced_after_failure.append(f"{kind} {self._path}")
        try:
            self._disk.touch(kind, self._path)
        except OSError:
            self._finished = True
            raise

    def pread(self, offset: int, length: int) -> bytes:
        return self._file.pread(offset, length)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, length: int) -> None:
        self._file.truncate(length)

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)

    def write_directly(self) -> None:
        self._file.write_directly()

    def is_at(self, path: str) -> bool:
        return self._file.is_at(path)

    def close(self) -> None:
        self._file.close()
