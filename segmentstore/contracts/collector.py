"""Python's cyclic garbage collector, in a process that holds the metadata of a store.

The collector passes over everything that lives each time that a quarter more was created. The
metadata are some ten objects for each active segment, and never garbage in a cycle: the passes find
nothing. They were half of an opening with 300,000 segments, and half of the creation of segments,
and held the event loop for 0.1 s with 25,000 of them (docs/decisions/0068).

So it pauses while much is loaded that stays. In a process that has called `tune_gc`, what survives
two collections is *frozen*: it is not passed over any more until the next full collection.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_MAX: Final = 1_000
"""New objects at which a tuned collector passes over them. More do not stay in the processor's
cache."""
COLLECTIONS_MAX: Final = 4
"""After which it passes over their survivors once more, and freezes them: some 3 ms. Freed objects
count against new ones, so there are often two or three times as many as these two numbers say.
"""
BLOCKS_MIN: Final = 4_000_000
"""Allocated blocks below which it makes no full collection. Metadata have some 2.3 for each frozen
object."""

_NEVER: Final = 1 << 30
_COUNTED_EVERY: Final = 64
"""Freezes after which the blocks are counted: some 0.2 ms for each million."""
_SURVIVORS: Final = 1
"""The generation of objects that have survived one collection."""
_IS_INCREMENTAL: Final = sys.version_info >= (3, 14)
"""Python passes over old objects in small steps from then on, by itself."""

_mutex = threading.Lock()
_pauses = 0
_was_enabled = False
_freezing: _Freezing | None = None
"""Set in a tuned process."""


class _Freezing:
    """The callback of a tuned collector, which calls it in any thread."""

    def __init__(self) -> None:
        self._freezes = 0
        self._blocks_max = BLOCKS_MIN
        self._is_due = False
        """Whether the next collection of all survivors is a full one."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < _SURVIVORS:
            return
        if info["generation"] > _SURVIVORS:
            gc.freeze()
            self._blocks_max = max(BLOCKS_MIN, 2 * _allocated_blocks())
            self._is_due = False
            gc.set_threshold(YOUNG_MAX, COLLECTIONS_MAX, _NEVER)
        elif not self._is_due:
            gc.freeze()
            self._freezes += 1
            if self._freezes % _COUNTED_EVERY == 0 and _allocated_blocks() > self._blocks_max:
                # A callback cannot collect.
                self._is_due = True
                gc.unfreeze()
                gc.set_threshold(YOUNG_MAX, COLLECTIONS_MAX, 0)


def _allocated_blocks() -> int:
    """Blocks of memory that objects have, a measure of how many are frozen.

    To count the frozen objects is to pass over them: 72 ms for 840,000. The allocator keeps a count
    for each 16 KiB. Where it is replaced (PYTHONMALLOC) and has none, the objects are counted.
    """
    return sys.getallocatedblocks() or gc.get_freeze_count()


def tune_gc() -> None:
    """Have the garbage collector of this process pass over old objects rarely, as suits a store.

    For a program that mostly serves a store; the command line does it. It holds for the whole
    process and all its objects. A cycle that becomes garbage when its objects are old is freed by
    the next full collection. That is due once objects have twice as many blocks of memory as behind
    the last one, and at least four million. `gc.collect()` frees none of them, unless
    `gc.unfreeze()` precedes it. Does nothing if the collector is disabled, or tuned already. From
    Python 3.14 on it sets thresholds alone. O(1).
    """
    global _freezing  # noqa: PLW0603 - the collector is the process's
    with _mutex:
        if _freezing is not None or not gc.isenabled():
            return
        _freezing = _Freezing()
        gc.set_threshold(YOUNG_MAX, COLLECTIONS_MAX, _NEVER)
        if not _IS_INCREMENTAL:
            gc.callbacks.append(_freezing)


def collect_all() -> None:
    """A full collection, of frozen objects too if the collector is tuned. O(objects)."""
    if _freezing is not None:
        gc.unfreeze()
    gc.collect()


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
            if _freezing is not None and not _IS_INCREMENTAL:
                # What was loaded stays.
                gc.freeze()
            gc.enable()


def _begin_child() -> None:
    """In a forked child no thread goes on loading."""
    global _mutex, _pauses  # noqa: PLW0603
    _mutex = threading.Lock()
    if _pauses and _was_enabled:
        gc.enable()
    _pauses = 0


os.register_at_fork(after_in_child=_begin_child)
