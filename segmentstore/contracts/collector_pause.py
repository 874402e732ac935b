"""A pause of Python's cyclic garbage collector while much is loaded that stays.

The collector passes over everything that lives each time that a quarter more was made. Where all of
it stays, as the metadata of a container do, the passes find nothing. They were half of an opening
with 300,000 segments, and held the event loop for half a second each.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_mutex = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """The collector is off within this block, and as it was behind the last of several.

    For blocks of seconds at most: what the embedding program leaves to the collector waits.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _pauses, _was_enabled  # noqa: PLW0603 - the collector is the process's
    with _mutex:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1


def _leave() -> None:
    global _pauses  # noqa: PLW0603
    with _mutex:
        if not _pauses:
            return  # The child of a fork within the block.
        _pauses -= 1
        if not _pauses and _was_enabled:
            gc.enable()


def _begin_child() -> None:
    """In a forked child no thread goes on loading."""
    global _mutex, _pauses  # noqa: PLW0603
    _mutex = threading.Lock()
    if _pauses and _was_enabled:
        gc.enable()
    _pauses = 0


os.register_at_fork(after_in_child=_begin_child)
