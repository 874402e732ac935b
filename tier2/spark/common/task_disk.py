"""The disk of a task that writes in bulk: what is written and synced leaves the page cache.

A job rewrites more than there is memory. Left in the cache, its objects would push out what the
live owner's readers want next. And each page of a new file is memory the kernel has to find first:
on a virtual machine that costs more than the copying.
"""

from __future__ import annotations

import os

from segmentstore.contracts.disk import OsDisk, OsFile


class BulkFile(OsFile):
    """A file that is written once and not read soon."""

    def sync(self) -> None:
        super().sync()
        # Clean pages go at once. A hint: where a file system knows none of it, nothing is lost but
        # memory.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class BulkDisk(OsDisk):
    """The disk of the operating system, whose files are BulkFile."""

    def _opened(self, descriptor: int) -> OsFile:
        return BulkFile(descriptor)
