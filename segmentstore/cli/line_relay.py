"""LineRelay: lines for a file that may not take them just now, as a pipe whose reader is stopped
(loop).

A write blocks no loop: the system says that a pipe takes PIPE_BUF bytes, and no more are written at
a time. Lines wait up to KEPT_MAX; then the oldest are dropped, for a reader is not there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import sys
from collections import deque
from contextlib import suppress
from typing import Final, TextIO

KEPT_MAX: Final = 1000
"""Pieces of lines."""
_READ_BYTES: Final = 64 << 10


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

    def put_from_thread(self, line: bytes) -> None:
        """As `put`, soon, from any thread; nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.put, line)

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


class RelayedPipe:
    """A pipe for other processes, whose reader is this one: all that comes goes to a relay.

    It lasts until `close`, whatever processes have it.
    """

    def __init__(self, relay: LineRelay) -> None:
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._loop.add_reader(self._reading, self._read)

    def pass_on(self) -> None:
        """All that has come by now."""
        while self._read():
            pass

    def close(self) -> None:
        """Pass on what has come, and take no more. Once."""
        self.pass_on()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        os.close(self.writing)

    def _read(self) -> bool:
        """Whether something was there."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return False
        self._relay.put(data)
        return True


class RelayedLog(logging.StreamHandler[TextIO]):
    """The log of this process on stderr. From the first line on that the loop has logged, none
    waits for a reader.
    """

    def __init__(self) -> None:
        super().__init__()
        self._relay: LineRelay | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or have the loop do so."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._relay is None:
                super().emit(record)
            else:
                self._relay.put_from_thread(self._encoded(record))
            return
        if self._relay is None:
            self._relay = LineRelay(sys.stderr.fileno())
        self._relay.put(self._encoded(record))

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + self.terminator).encode(errors="backslashreplace")
