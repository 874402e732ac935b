"""Where time, chance, threads, locks and disks come from: one object, handed in through
constructors.

Production code never asks the process for these; a simulated world hands in its own `Runtime` and
an event loop with virtual time. Durations are measured with `asyncio.get_running_loop().time()`.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from segmentstore.contracts import forks
from segmentstore.contracts.disk import Disk, OsDisk
from segmentstore.contracts.processes import Processes, SystemProcesses
from segmentstore.contracts.serial_thread import SerialThread, no_thread

P = ParamSpec("P")
T = TypeVar("T")


class Clock(Protocol):
    """Wall time. May jump and go backwards: nothing that must be right depends on it."""

    def time_ms(self) -> int:
        """Milliseconds since 1970 UTC."""


class SystemClock:
    """The operating system's clock."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


class _ThreadPool(ThreadPoolExecutor):
    """Its threads are not in a forked child: there it takes no work, or the child would do its
    parent's.
    """

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(max_workers=threads, thread_name_prefix=name)
        self._birth = forks.Birth()
        # The first thread, at once: under load, later, the system may have none to give.
        try:
            self.submit(int)
        except RuntimeError as error:
            raise no_thread(name) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self._birth.check()
        return super().submit(fn, *args, **kwargs)

    def _adjust_thread_count(self) -> None:
        """Begin another thread for work that is queued. Without one, those that are there do it."""
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


class BootTime(NamedTuple):
    """A moment of one boot of one machine.

    Two of one boot give the time between them, whatever the wall clock did.
    """

    boot_id: bytes
    """16 bytes; another one after each boot, and on each machine."""
    elapsed_ms: int
    """Since the machine was started; never goes back, and goes on while it is suspended."""


def boot_time() -> BootTime:
    """This moment, of the operating system."""
    return BootTime(_boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


@cache
def _boot_id() -> bytes:
    try:
        # Containers may have a start of their own for the same clock: the namespace says which one.
        parts = (
            pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(),
            str(pathlib.Path("/proc/self/ns/time").readlink()),
        )
    except OSError:
        # Not to be distinguished from another boot: what is noted under it is of use to this
        # process alone.
        return os.urandom(16)
    return hashlib.blake2b("/".join(parts).encode(), digest_size=16).digest()


def thread_executor(name: str, threads: int) -> Executor:
    """A bounded pool of real threads; `threads=1` gives a serial executor, a SerialThread.

    The first thread begins at once, the others as work waits, if the system has them. Raises
    TierUnavailableError where it has none. Work for it raises ForkedStoreError in a forked child.
    """
    return SerialThread(name) if threads == 1 else _ThreadPool(name, threads)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world as the engine sees it.

    Blocking work goes to an executor made by `executor(name, threads)`; its owner shuts it down.
    Results come back to the loop by `loop.call_soon_threadsafe`, `LoopCalls` or
    `loop.run_in_executor`. What such work shares is guarded by locks from `lock()`, entered with
    `with`.
    """

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.SystemRandom)
    disk: Disk = field(default_factory=OsDisk)
    boot: Callable[[], BootTime] = boot_time
    processes: Processes = field(default_factory=SystemProcesses)
    executor: Callable[[str, int], Executor] = thread_executor
    lock: Callable[[], AbstractContextManager[object]] = threading.Lock
