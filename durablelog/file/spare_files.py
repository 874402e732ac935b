"""Files freed by truncation and kept to be written over: a few, so that the disk need not find
blocks again.

Blocking; used on the log's second executor alone, and by the writer thread once that one has ended
its work. Rules:

- only a file that this very opening began by a roll becomes a spare. An owner that has been fenced
  may still hold its own files open and write to them late, never to one of ours. And every frame
  such a file holds is of our epoch and below the truncation point, hence below the `first_sequence`
  of the file it becomes;
- only a file as large as the smallest ordinary one becomes a spare. A file that was begun for want
  of room may have had room for one frame, and the next frame would be written without any;
- a spare lies under a temporary name, which any opening removes; so a crash at any point costs the
  spare alone.
"""

from __future__ import annotations

import os
from typing import Final

from durablelog.file.group_writer import PreparedFile
from durablelog.file.log_layout import spare_name
from durablelog.file.log_scanner import LogFile
from segmentstore.contracts.disk import Disk

SPARES_MAX: Final = 2
"""One to be prepared from while another is written is what a log in a steady state uses; more would
only fill the disk.
"""


class SpareFiles:
    """The spares of one opening."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._paths: list[str] = []

    def __len__(self) -> int:
        return len(self._paths)

    def keep(self, file: LogFile, epoch: int, bytes_min: int) -> bool:
        """Make a spare of a file that the durable state has left behind; False if it is not fit or
        not wanted.

        `epoch` is the owner's; a smaller file than `bytes_min` is not fit. The caller syncs the
        folder. Raises OSError.
        """
        if not file.rolled or len(self._paths) >= SPARES_MAX or self._size(file) < bytes_min:
            return False
        path = os.path.join(self._directory, spare_name(epoch, file.number))
        self._disk.rename(file.path, path)
        self._paths.append(path)
        return True

    def _size(self, file: LogFile) -> int:
        opened = self._disk.open(file.path)
        try:
            return opened.size()
        finally:
            opened.close()

    def take(self, path: str) -> PreparedFile | None:
        """A spare under its new temporary name `path`, ready for `GroupWriter.roll`; None if there
        is none.

        Raises OSError.
        """
        while self._paths:
            try:
                self._disk.rename(self._paths.pop(), path)
                file = self._disk.open(path, write=True)
                return PreparedFile(path, file, allocated=file.size())
            except FileNotFoundError:
                # A new owner tidied up; that we are fenced shows at the next acknowledgement.
                continue
        return None

    def give_up(self) -> list[str]:
        """The paths of all spares, which the caller removes."""
        paths, self._paths = self._paths, []
        return paths
