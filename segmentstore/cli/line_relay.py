"""LineRelay: lines for a file that may not take them just now, as a pipe whose reader is stopped
(loop).

Rules of this file:

- a write blocks no loop: the system says that a pipe takes PIPE_BUF bytes, and no more are written
  at a time;
- lines wait up to KEPT_BYTES_MAX; then the oldest are dropped, for a reader is not there;
- lines of several sources do not mix: each is put whole, written whole, and dropped whole.
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

KEPT_BYTES_MAX: Final = 4 << 20
"""Of lines that wait."""
LINE_BYTES_MAX: Final = 1 << 20
"""A longer line of a source becomes several."""
_READ_BYTES: Final = 64 << 10


class LineRelay:
    """To one file descriptor, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: deque[bytes] = deque()
        self._kept_bytes = 0
        """Of `_lines`."""
        self._begun = memoryview(b"")
        """What is left of lines that are written in part."""
        self._waits = False

    def put(self, lines: bytes) -> None:
        """Write whole lines now, or when there is room. They stay together."""
        self._lines.append(lines)
        self._kept_bytes += len(lines)
        self._write()
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._lines) > 1:
            self._take()

    def put_from_thread(self, lines: bytes) -> None:
        """As `put`, soon, from any thread; nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.put, lines)

    def close(self) -> None:
        """Wait for no more room. Idempotent."""
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._descriptor)

    def _take(self) -> bytes:
        lines = self._lines.popleft()
        self._kept_bytes -= len(lines)
        return lines

    def _write(self) -> None:
        try:
            while (self._begun or self._lines) and self._has_room():
                self._begun = self._begun or memoryview(self._take())
                written = os.write(self._descriptor, self._begun[: select.PIPE_BUF])
                self._begun = self._begun[written:]
        except OSError:
            # A reader that has left does not end the hosts.
            self._lines.clear()
            self._kept_bytes, self._begun = 0, memoryview(b"")
        if not self._begun and not self._lines:
            self.close()
        elif not self._waits:
            # A plain file is never waited for: it has always room.
            with suppress(OSError):
                self._loop.add_writer(self._descriptor, self._write)
                self._waits = True

    def _has_room(self) -> bool:
        return bool(select.select((), (self._descriptor,), (), 0)[1])


class LineJoiner:
    """What one source says, as whole lines, whatever the pieces in which it comes."""

    def __init__(self, relay: LineRelay) -> None:
        self._relay = relay
        self._begun = bytearray()
        """A line that has not ended."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        end = data.rfind(b"\n") + 1
        if end:
            self._relay.put(bytes(self._begun) + data[:end])
            self._begun.clear()
        self._begun += data[end:]
        if len(self._begun) >= LINE_BYTES_MAX:
            self.end()

    def end(self) -> None:
        """No more come of the line that has begun."""
        if self._begun:
            self._relay.put(bytes(self._begun) + b"\n")
            self._begun.clear()


class RelayedPipe:
    """A pipe for another process, whose reader is this one: all lines that come go to a relay.

    It lasts until `close`, whatever processes have it.
    """

    def __init__(self, relay: LineRelay) -> None:
        self._lines = LineJoiner(relay)
        self._loop = asyncio.get_running_loop()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._loop.add_reader(self._reading, self._read)

    def close(self) -> None:
        """Pass on what has come, and take no more. Once."""
        while self._read():
            pass
        self._lines.end()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        os.close(self.writing)

    def _read(self) -> bool:
        """Whether something was there."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return False
        self._lines.feed(data)
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
