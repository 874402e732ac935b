"""DirectWriter: writes to a file that leave no copy of the bytes in the page cache (O_DIRECT).

Such a write takes whole blocks, from memory that begins where a page does. So the bytes are copied
into a buffer of that kind, in place of the kernel's copy. File systems may refuse it, at any write.
Blocking.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Final

from segmentstore.contracts.checksum import Buffer

BLOCK_BYTES: Final = 4096
"""A page, and no less than a sector of any disk in use."""
BUFFER_BYTES: Final = 1024 * 1024
"""Written by one call, at most: disks gain little from more."""
_REFUSED: Final = frozenset((errno.EINVAL, errno.EOPNOTSUPP))


class DirectWriter:
    """Of one open file, whose flags it changes until `end`."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError if the file system has no such writes, or there is no memory."""
        self._descriptor = descriptor
        # First: a file whose flags are changed takes no ordinary writes.
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))
        self._flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, self._flags | os.O_DIRECT)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the whole blocks of `buffers`, one after another, at `offset`; the bytes written.

        Fewer if the file system refuses, and none if `offset` is inside of a block. Raises OSError.
        """
        if offset % BLOCK_BYTES:
            return 0
        written = 0
        for filled in self._filled(buffers):
            whole = filled - filled % BLOCK_BYTES
            taken = self._write(whole, offset + written)
            written += taken
            if taken < filled:
                break
        return written

    def end(self) -> None:
        """Other writes of the file are ordinary ones again."""
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags)

    def _filled(self, buffers: Sequence[Buffer]) -> Iterator[int]:
        """Fill the buffer again and again; each time, the bytes in it."""
        filled = 0
        for data in buffers:
            rest = memoryview(data)
            while rest:
                taken, rest = rest[: BUFFER_BYTES - filled], rest[BUFFER_BYTES - filled :]
                self._buffer[filled : filled + len(taken)] = taken
                filled += len(taken)
                if filled == BUFFER_BYTES:
                    yield filled
                    filled = 0
        if filled:
            yield filled

    def _write(self, length: int, offset: int) -> int:
        if not length:
            return 0
        try:
            return os.pwrite(self._descriptor, self._buffer[:length], offset)
        except OSError as error:
            if error.errno in _REFUSED:
                return 0
            raise
