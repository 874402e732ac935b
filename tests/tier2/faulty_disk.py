"""A Disk over the operating system's that fails when it is asked to, and can lose its power."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile

Trap = Callable[[str, str], OSError | None]
"""From (call, path) to the error it ends in, None to let it pass."""


class FaultyFile(OsFile):
    def __init__(self, disk: FaultyDisk, file: OsFile, path: str) -> None:
        super().__init__(file._descriptor)
        self._disk = disk
        self._path = path

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.reach("pwrite", self._path)
        super().pwrite(buffers, offset)

    def pread(self, offset: int, length: int) -> bytes:
        self._disk.reach("pread", self._path)
        return super().pread(offset, length)

    def sync(self) -> None:
        self._disk.reach("sync", self._path)
        super().sync()

    def allocate(self, offset: int, length: int) -> None:
        self._disk.reach("allocate", self._path)
        super().allocate(offset, length)

    def write_directly(self) -> None:
        self._disk.reach("write_directly", self._path)
        super().write_directly()


class FaultyDisk(OsDisk):
    """`calls` notes every call reached; `trap` may end one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.trap: Trap = _pass

    def fail_once(self, call: str, code: int = errno.EIO) -> None:
        """The next `call`, whatever its path, fails with this error number."""

        def trap(name: str, path: str) -> OSError | None:
            if name != call:
                return None
            self.trap = _pass
            return OSError(code, os.strerror(code), path)

        self.trap = trap

    def stop_at(self, call: str) -> None:
        """From the next `call` on, nothing is done any more: the process has died there."""
        dead = False

        def trap(name: str, path: str) -> OSError | None:
            nonlocal dead
            dead = dead or name == call
            return OSError(errno.EIO, "dead", path) if dead else None

        self.trap = trap

    def reach(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        error = self.trap(call, path)
        if error is not None:
            raise error

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        self.reach("open", path)
        return FaultyFile(
            self, super().open(path, write=write, create=create, exclusive=exclusive), path
        )

    def lock(self, path: str) -> OsFile:
        self.reach("lock", path)
        return super().lock(path)

    def rename(self, source: str, target: str) -> None:
        self.reach("rename", target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.reach("link", target)
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self.reach("unlink", path)
        super().unlink(path)

    def list_directory(self, path: str) -> list[str]:
        self.reach("list_directory", path)
        return super().list_directory(path)

    def sync_directory(self, path: str) -> None:
        self.reach("sync_directory", path)
        super().sync_directory(path)


def _pass(_call: str, _path: str) -> OSError | None:
    return None
