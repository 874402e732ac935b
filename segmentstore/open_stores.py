"""The stores this process has open: what becomes of one that its program does not close, and of
one that is opened a second time.

Rules of this file:

- a store whose object is collected without `close` warns (ResourceWarning) and is closed, on its
  own event loop; what was taken is made durable first. Where that loop is closed, nothing can be
  awaited any more: the locks are released, and what the log has is recovered by the next owner, as
  after a crash. Acknowledged is durable either way;
- the object may be collected in any thread, in the middle of anything: then no lock of Python's is
  taken;
- an opening of a folder whose store is being closed in this process waits for that. One that is
  alive and is used is left alone, but for an interactive session
  (docs/decisions/0031-stores-that-are-never-closed.md).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from segmentstore.contracts import forks
from segmentstore.contracts.collector import collect_all
from segmentstore.store_parts import StoreParts

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 60.0
"""Longest that an opening waits for the end of a store of this process."""

_open: Final[weakref.WeakSet[OpenStore]] = weakref.WeakSet()


class OpenStore:
    """An open store as this process knows it. As long as its parts live, so does this."""

    def __init__(self, parts: StoreParts) -> None:
        self.parts = parts
        self.loop = asyncio.get_running_loop()
        self.dropped = False
        self._birth = forks.Birth()
        with forks.no_fork():
            _open.add(self)

    def watch(self, used: object, close: Callable[[], object] | None = None) -> None:
        """When `used`, by which the program has the store, is collected: warn, and close it.

        `close` is called if the store is open then, from any thread, and only begins; without it
        the store is closed on its loop.
        """
        finalizer = weakref.finalize(used, _drop, self, close)
        # At the end of the process everything is released.
        finalizer.atexit = False

    @property
    def ending(self) -> bool:
        """Whether it is closed, or will be without a call of `close`."""
        return self.dropped or self.parts.closing is not None

    @property
    def here(self) -> bool:
        """Whether this process opened it, and not one of which it is a fork."""
        return self._birth.here

    def begin_close(self) -> None:
        """Have it closed on its loop, or release its locks where there is none any more.

        From any thread.
        """
        try:
            self.loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            self.release_locks()

    def release_locks(self) -> None:
        """Its event loop is closed: give back the locks.

        The next opening of the store fences what may still run.
        """
        self.dropped = True
        self.parts.undo.abandon()

    async def ended(self) -> None:
        """Close it, unless it is being closed, and wait for the end; on any event loop.

        Raises TimeoutError.
        """
        closing = self.parts.close()
        try:
            future = asyncio.run_coroutine_threadsafe(closing, self.loop)
        except RuntimeError:
            closing.close()
            self.release_locks()
            return
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait((asyncio.wrap_future(future),))
        if not future.cancelled() and (error := future.exception()) is not None:
            _log.warning("%s: closing it failed: %s", self.parts.location, error)

    def _begin(self) -> None:
        self.parts.begin_close().add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Future[None]) -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            _log.warning("%s: closing it failed: %s", self.parts.location, error)


def register(parts: StoreParts) -> OpenStore:
    """Know of a store that was just opened on the running loop."""
    parts.registered = entry = OpenStore(parts)
    return entry


def registered(parts: StoreParts) -> OpenStore:
    """What this process knows an open store by."""
    entry = parts.registered
    assert isinstance(entry, OpenStore), "a store that was opened for a program"
    return entry


async def make_way(location: str) -> bool:
    """After StoreInUseError: end those stores of this process that are not used any more; whether
    to try again.
    """
    found = _in_folder(location)
    if not found:
        return False
    # What only waits to be collected is dropped by this, and no candidate any more if nothing had
    # to be awaited.
    count = len(found)
    del found
    collect_all()
    found = _in_folder(location)
    again = len(found) < count
    for entry in found:
        if entry.loop.is_closed():
            entry.release_locks()
        elif entry.ending or _is_interactive():
            if not entry.ending:
                text = (
                    f"store {location} was still open in this session: it is closed, and "
                    "opened again"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            try:
                await entry.ended()
            except TimeoutError:
                continue
        else:
            continue
        again = True
    return again


def _drop(entry: OpenStore, close: Callable[[], object] | None) -> None:
    if not entry.here or entry.ending:
        return
    entry.dropped = True
    try:
        text = f"store {entry.parts.location} was dropped without close(): it is closed now"
        warnings.warn(text, ResourceWarning, stacklevel=2)
    finally:
        if close is not None:
            close()
        else:
            entry.begin_close()


def _in_folder(location: str) -> list[OpenStore]:
    # Threads of blocking stores register theirs meanwhile.
    with forks.no_fork():
        known = list(_open)
    return [entry for entry in known if entry.here and _same(entry.parts.location, location)]


def _same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _is_interactive() -> bool:
    # The prompt is there in Python's own shell, in IPython and in notebooks, and in no program.
    return hasattr(sys, "ps1")
