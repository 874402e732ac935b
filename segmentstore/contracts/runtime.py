"""Where time, chance, threads, locks and disks come from: one object, handed in through constructors.

Production code never asks the process for these; a simulated world hands in its own `Runtime` and
an event loop with virtual time. Durations are measured with `asyncio.get_running_loop().time()`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from segmentstore.contracts.disk import Disk, OsDisk


class Clock(Protocol):
    """Wall time. May jump and go backwards: nothing that must be right depends on it."""

    def time_ms(self) -> int:
        """Milliseconds since 1970 UTC."""


class SystemClock:
    """The operating system's clock."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


def thread_executor(name: str, threads: int) -> Executor:
    """A bounded pool of real threads; `threads=1` gives a serial lane."""
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world as the engine sees it.

    Blocking work goes to an executor made by `executor(name, threads)`; its owner shuts it down.
    Results come back to the loop by `loop.call_soon_threadsafe` or `loop.run_in_executor`. What such work
    shares is guarded by locks from `lock()`, entered with `with`.
    """

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.SystemRandom)
    disk: Disk = field(default_factory=OsDisk)
    executor: Callable[[str, int], Executor] = thread_executor
    lock: Callable[[], AbstractContextManager[object]] = threading.Lock
