"""Standard input and output without blocking the event loop, and with Ctrl-C as an ordinary end.

The adapter of the process's own streams: blocking reads and writes run in a one-thread executor,
and a read that waits for a person can be woken.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Self

from segmentstore.cli.exit_codes import CommandError
from segmentstore.contracts.runtime import thread_executor

_READ_BYTES = 256 * 1024
_LINE_BYTES_MAX = 64 << 20


class LineSplitter:
    """Bytes in pieces in, whole lines out, each with its newline. Pure."""

    def __init__(self, line_bytes_max: int = _LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._parts: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Lines completed by `data`. Raises CommandError when one grows over the bound."""
        end = data.rfind(b"\n") + 1
        lines: list[bytes] = []
        if end:
            whole = b"".join((*self._parts, data[:end]))
            lines = [line + b"\n" for line in whole[:-1].split(b"\n")]
            self._parts, self._length = [], 0
        if end < len(data):
            self._parts.append(data[end:])
            self._length += len(data) - end
            if self._length > self._line_bytes_max:
                raise CommandError(f"a line is longer than {self._line_bytes_max} bytes")
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no newline."""
        rest = b"".join(self._parts)
        self._parts, self._length = [], 0
        return [rest] if rest else []


class InputLines:
    """Lines of standard input, in batches, until it ends or `stop` is called."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._executor = thread_executor("stdin", 1)
        self._wake_read, self._wake_write = os.pipe()

    def stop(self) -> None:
        """End the input here: what was read is still given out.

        May be called from a signal handler.
        """
        os.write(self._wake_write, b"\0")

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Lines as they come, as many as there are at a time."""
        loop = asyncio.get_running_loop()
        splitter = LineSplitter()
        while data := await loop.run_in_executor(self._executor, self._read):
            if lines := splitter.feed(data):
                yield lines
        if lines := splitter.rest():
            yield lines

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._descriptor, self._wake_read], [], [])
        return b"" if self._wake_read in ready else os.read(self._descriptor, _READ_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        self._executor.shutdown(wait=True)
        os.close(self._wake_read)
        os.close(self._wake_write)


class OutputBytes:
    """Bytes to standard output, flushed part by part: a reader that follows wants them now."""

    def __init__(self) -> None:
        self._stream = sys.stdout.buffer
        self._executor = thread_executor("stdout", 1)

    async def write(self, data: bytes) -> None:
        """Write and flush. Raises BrokenPipeError when no process reads any more."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._write, data)

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()

    def close(self) -> None:
        """Release the thread; the stream stays open."""
        self._executor.shutdown(wait=False)


@contextmanager
def interrupt_calls(loop: asyncio.AbstractEventLoop, stop: InputLines) -> Iterator[None]:
    """While inside, Ctrl-C ends the input instead of the program; a second one is ignored until the
    end is reached.
    """
    loop.add_signal_handler(signal.SIGINT, stop.stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
