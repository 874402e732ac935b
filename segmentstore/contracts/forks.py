"""What a forked child does with what its parent has open: nothing, and it keeps none of it alive.

A child made by `os.fork` (the start method "fork" of multiprocessing) has its parent's descriptors
and none of its threads. Rules of this file:

- what must not outlive its owner in a child (locks, listening sockets, pipes) registers how the
  child releases it. Closing a descriptor in the child leaves the parent's alone; LOCK_UN there
  would not, and no handler calls it;
- what opens such a descriptor does so under `no_fork`, until it is registered: no fork falls
  between the two;
- in the child `generation` has grown. Objects of the store remember the one they were made in:
  comparing the two costs an append nothing, where the operating system's process id would;
- a handler takes no lock and waits for nothing: any lock may have been held by a thread that is not
  in the child.

A child that was made behind Python's back (by C code that forks unknown to the interpreter) is not
seen.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from segmentstore.contracts.errors import ForkedStoreError

T = TypeVar("T")

generation = 0
"""Number of forks between the first process and this one."""
process_id = os.getpid()
"""Of this process."""

_mutex = threading.RLock()
_handlers: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def no_fork() -> AbstractContextManager[object]:
    """While it is entered, no thread of this process forks.

    For a few system calls that do not wait.
    """
    return _mutex


def in_child(owner: T, abandon: Callable[[T], None]) -> None:
    """Have `abandon(owner)` called in each forked child, as long as `owner` lives; what it raises
    is dropped.
    """
    _handlers[owner] = abandon


def release_descriptor(descriptor: int) -> None:
    """For a handler: what is open at a descriptor is the parent's alone from now on.

    The number stays taken in the child. An object that still has it closes it later, and would
    close another's file if it were free. Raises OSError.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)


def keep_for_ever(owner: object) -> None:
    """For a handler: see to it that the child never collects an object, at its end either.

    Some libraries speak to threads, or over connections, that are the parent's when an object of
    theirs goes.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Birth:
    """The process in which something was made."""

    __slots__ = ("generation", "process_id")

    def __init__(self) -> None:
        self.generation = generation
        self.process_id = process_id

    @property
    def here(self) -> bool:
        """Whether it was this very process."""
        return self.generation == generation

    def check(self) -> None:
        """Raise ForkedStoreError in a forked child."""
        if self.generation != generation:
            raise self.error()

    def error(self) -> ForkedStoreError:
        """What a call in a forked child gets."""
        return ForkedStoreError(self.process_id)


def _begin_child() -> None:
    global _mutex, generation, process_id  # noqa: PLW0603 - of a process there is one
    _mutex = threading.RLock()
    generation += 1
    process_id = os.getpid()
    handlers = list(_handlers.items())
    _handlers.clear()
    for owner, abandon in handlers:
        with suppress(Exception):
            abandon(owner)


def _before_fork() -> None:
    _mutex.acquire()


def _after_fork() -> None:
    _mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_child)
