"""LoopCalls: calls into an event loop from another thread, for one that makes very many.

`loop.call_soon_threadsafe` writes to a pair of sockets, and the loop reads that until nothing is
left: three system calls and an exception each time. An eventfd takes two
(docs/decisions/0087-wake-ups-of-a-group.md).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


def _ignore(_error: BaseException) -> None:
    pass


class LoopCalls:
    """Of the loop that makes it. `call` is for any thread, the rest for the loop's.

    Where the system has or gives no eventfd, or the loop cannot watch one, it is
    `call_soon_threadsafe`, and a close drops nothing.
    """

    def __init__(self, on_lost: Callable[[BaseException], object] = _ignore) -> None:
        """`on_lost` gets what has raised in a call: one taken for it may not have begun, and none
        is made again.
        """
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._closed = False
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._descriptor = self._watch()

    def _watch(self) -> int | None:
        if not hasattr(os, "eventfd"):
            return None
        try:
            descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            # No file descriptor is left. An opening meets that again, with a file to name.
            return None
        try:
            self._loop.add_reader(descriptor, self._run, descriptor)
        except (NotImplementedError, OSError):
            # What asyncio documents of loops without it, the simulated one and that of Windows; or
            # the system watches as many as it may (/proc/sys/fs/epoll/max_user_watches).
            os.close(descriptor)
            return None
        return descriptor

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it, behind all that was given before; never once this is closed."""
        if self._descriptor is None:
            self._loop.call_soon_threadsafe(function, *arguments)
            return
        with self._mutex:
            # Under the lock: the number of a closed descriptor may be another file's.
            if not self._closed:
                self._waiting.append((function, arguments))
                os.eventfd_write(self._descriptor, 1)

    def _run(self, descriptor: int) -> None:
        taking = False
        try:
            # First: what comes later wakes the loop again.
            with suppress(BlockingIOError):
                os.eventfd_read(descriptor)
            taking = True
            while self._waiting:
                function, arguments = self._waiting.popleft()
                function(*arguments)
        except BaseException as error:
            if taking:
                self._on_lost(error)
            raise
        finally:
            if self._waiting:
                # One has raised, which the loop's exception handler gets: the others follow.
                os.eventfd_write(descriptor, 1)

    def close(self) -> None:
        """Drop what is not called yet. Idempotent."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._waiting.clear()
        if self._descriptor is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
