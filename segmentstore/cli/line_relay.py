"""LineRelay: lines for a file that may not take them just now, as a pipe whose reader is stopped
(loop).

A write blocks no loop: the system says that a pipe takes PIPE_BUF bytes, and no more are written at
a time. Lines wait up to KEPT_MAX; then the oldest are dropped, for a reader is not there.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from contextlib import suppress
from typing import Final

KEPT_MAX: Final = 1000
"""Pieces of lines."""


class LineRelay:
    """To one file descriptor, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque(maxlen=KEPT_MAX)
        self._waits = False

    def put(self, line: bytes) -> None:
        """Write it now, or when there is room."""
        size = select.PIPE_BUF
        self._pieces.extend(line[begin : begin + size] for begin in range(0, len(line), size))
        self._write()

    def close(self) -> None:
        """Wait for no more room. Idempotent."""
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._descriptor)

    def _write(self) -> None:
        try:
            while self._pieces and select.select((), (self._descriptor,), (), 0)[1]:
                os.write(self._descriptor, self._pieces.popleft())
        except OSError:
            self._pieces.clear()  # a reader that has left does not end the hosts
        if not self._pieces:
            self.close()
        elif not self._waits:
            # A plain file is never waited for: it has always room.
            with suppress(OSError):
                self._loop.add_writer(self._descriptor, self._write)
                self._waits = True
