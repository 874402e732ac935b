"""SimulatedKernelSyncs: the kernel's workers that sync for a process, as a job beside its threads.

The job makes the effect and meets the faults of any sync. So crashes, errors and seconds of latency
come between a beginning and its report, and whatever the process does meanwhile. Rules of this
file:

- it is ready from the beginning. Now and then it is not for a while, or refuses one sync: then the
  process has to do it by itself, and both ways alternate;
- its draws come from a generator of its own;
- a report comes on the process's loop, and once more if it raises, as that of the real one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from segmentstore.contracts.disk import DiskFile

_NONE_FREE: Final = 0.05
_NONE_FREE_MAX: Final = 12
"""How often it is asked in vain then, at the most."""
_REFUSED: Final = 0.08

Done = Callable[[OSError | None], None]


class SimulatedKernelSyncs:
    """KernelSyncs of one log. `reach` counts what happens, by the name of a fault point."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        rng: random.Random,
        reach: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._random = rng
        self._reach = reach
        self._under_way = 0
        self._in_vain = 0
        self._closed = False

    def load(self) -> None:
        """There is nothing to load."""

    @property
    def ready(self) -> bool:
        if not self._in_vain and self._random.random() < _NONE_FREE:
            self._reach("kernel-sync.none-free")
            self._in_vain = self._random.randrange(1, _NONE_FREE_MAX)
        elif self._in_vain:
            self._in_vain -= 1
        return not self._in_vain

    def begin(self, file: DiskFile, done: Done) -> bool:
        assert not self._closed
        if self._random.random() < _REFUSED:
            self._reach("kernel-sync.refused")
            return False
        self._reach("kernel-sync.begun")
        self._under_way += 1
        self._workers.submit(self._sync, file, done)
        return True

    def _sync(self, file: DiskFile, done: Done) -> None:
        error: OSError | None = None
        try:
            file.sync()
        except OSError as failure:
            error = failure
        self._under_way -= 1
        self._loop.call_soon(self._report, done, error)

    def _report(self, done: Done, error: OSError | None) -> None:
        try:
            done(error)
        except BaseException:
            self._loop.call_soon(self._report, done, error)
            raise

    def close(self) -> None:
        assert not self._under_way, "a sync is under way behind the close of its log"
        self._closed = True
        self._workers.shutdown(wait=False)
