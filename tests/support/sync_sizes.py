"""A disk that notes how many bytes each sync had to write."""

from __future__ import annotations

from collections.abc import Sequence

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile


class CountingFile(OsFile):
    """One of the disk's; nothing may be unsynced when it is closed."""

    def __init__(self, descriptor: int, sizes: list[int]) -> None:
        super().__init__(descriptor)
        self._unsynced = 0
        self._sizes = sizes

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        super().pwrite(buffers, offset)
        self._unsynced += sum(map(len, buffers))

    def sync(self) -> None:
        super().sync()
        self._sizes.append(self._unsynced)
        self._unsynced = 0

    def close(self) -> None:
        assert not self._unsynced
        super().close()


class CountingDisk(OsDisk):
    """The real one."""

    def __init__(self) -> None:
        self.synced: list[int] = []
        """For each sync of a file, the bytes that were written since the one before."""

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        return CountingFile(file._descriptor, self.synced) if write else file
