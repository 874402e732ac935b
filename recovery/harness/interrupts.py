"""Ctrl-C while many runs are made: the first one asks to stop after what is under way, and loses no
figure.

Rules of this file:

- the process that was asked counts the signal (`deferred`) and passes it on to its workers: it may
  have come to it alone;
- worker processes count it too and raise nothing (`settle_worker` is their initializer), so none
  ends with a traceback;
- a worker that is being started has the signal blocked until then (`starting_workers`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGINT: Final = frozenset((signal.SIGINT,))


class _Asked:
    """Of this process."""

    times = 0


def stop_asked() -> bool:
    """Whether runs shall end as soon as they can be checked."""
    return _Asked.times > 0


@contextmanager
def deferred(say: Callable[[], None]) -> Iterator[None]:
    """Count Ctrl-C instead of raising KeyboardInterrupt; `say` is called at the first, the second
    raises it after all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(*_: object) -> None:
        _Asked.times += 1
        if _Asked.times > 1:
            raise KeyboardInterrupt
        for worker in multiprocessing.active_children():
            if worker.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGINT)
        say()

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _Asked.times = 0


@contextmanager
def starting_workers() -> Iterator[None]:
    """Around what starts worker processes: they inherit the blocked signal, and their initializer
    unblocks it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGINT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def settle_worker() -> None:
    """The initializer of a worker process."""

    def asked(*_: object) -> None:
        _Asked.times += 1

    signal.signal(signal.SIGINT, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGINT)
