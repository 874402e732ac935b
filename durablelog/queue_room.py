"""QueueRoom: how much waits in a bounded queue, and the callers that wait for room in it.

They go on first come, first served. What a caller asked for is reserved from the grant until the
callbacks of its future have run, so that no later one takes it. Pure, but for futures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from durablelog.frame_requests import REQUEST_BYTES


class QueueRoom:
    """Of one queue, which holds `bytes_max` at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.queued = 0
        """Bytes that were ever put into the queue, which counts them, and those reserved."""
        self.left = 0
        """Bytes that have left it so far."""
        self.end = bytes_max
        """The queue takes nothing that makes `queued` more than this; -1 once it is closed."""
        self.held_elsewhere = 0
        """Bytes of appends that wait for their segments, and come into the queue then."""
        self._callers: deque[tuple[int, asyncio.Future[None]]] = deque()
        """What they asked for, and their futures."""
        self._closed = False

    def request(self, size: int) -> asyncio.Future[None] | None:
        """None: the queue takes an append of `size` bytes now, or nothing any more. Otherwise a
        future that is done when it does.

        The bytes are reserved until the callbacks of the future have run: those of a task that
        awaits it included. O(1).
        """
        if self._closed or (not self._callers and size <= self._free()):
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The first of its callbacks: the loop runs those of the caller right behind it.
        future.add_done_callback(partial(self._ended, size))
        self._callers.append((size, future))
        return future

    def grant(self) -> None:
        """Reserve room for callers, the first ones first, as far as there is some. O(granted)."""
        callers = self._callers
        while callers:
            size, future = callers[0]
            if not future.done():
                if size > self._free():
                    return
                self.queued += size + REQUEST_BYTES
                future.set_result(None)
            callers.popleft()

    def note_left(self, left: int) -> None:
        """So many bytes have left the queue by now, since it was made."""
        self.left = left
        if not self._closed:
            self.end = self._bytes_max + left

    def close(self, refusal: Callable[[], BaseException]) -> None:
        """All who wait get the refusal: the queue takes nothing more. Idempotent."""
        self._closed = True
        self.end = -1
        callers, self._callers = self._callers, deque()
        for _, future in callers:
            if not future.done():
                future.set_exception(refusal())

    def _free(self) -> int:
        """Size of the largest append that the queue takes."""
        return self.end - self.queued - self.held_elsewhere

    def _ended(self, size: int, future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            if future.exception() is not None:
                return
            self.queued -= size + REQUEST_BYTES
        # It may have been in front of others, or not use what it asked for.
        asyncio.get_running_loop().call_soon(self.grant)
