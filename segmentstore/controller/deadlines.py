"""Deadlines: what is to be done at a time, by key; one timer for all of it.

What fails is done again after a back-off, until it succeeds or its key is cancelled.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, NamedTuple

from segmentstore.contracts.backoff import backoff_s
from segmentstore.contracts.errors import describe
from segmentstore.contracts.owned_tasks import own_task

_log = logging.getLogger(__name__)

FIRST_S: Final = 60.0
"""When a Controller does for the first time what it does from time to time: before its period is
over it may have been ended, again and again.
"""
_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 30.0
_LOGGED_FROM: Final = 3
"""Failures in a row; fewer are ordinary while a container is opened anew."""


class _Deadline(NamedTuple):
    due_s: float
    number: int
    action: Callable[[], Awaitable[None]]
    failures: int


class Deadlines:
    """Times are those of the loop. Actions of different keys run side by side."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._deadlines: dict[Hashable, _Deadline] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Task[None], Hashable] = {}
        self._failing: dict[Hashable, str] = {}
        """What failed at least `_LOGGED_FROM` times in a row, and its last error."""
        self._stopped = False

    def schedule(
        self, key: Hashable, after_s: float, action: Callable[[], Awaitable[None]]
    ) -> None:
        """Do `action` in so many seconds, in place of what the key stood for. Nothing once
        stopped.
        """
        self._schedule(key, after_s, action, 0)

    def ensure(self, key: Hashable, after_s: float, action: Callable[[], Awaitable[None]]) -> None:
        """As `schedule`, but nothing where the key stands for something, or that is being done."""
        if key not in self._deadlines and key not in self._running.values():
            self._schedule(key, after_s, action, 0)

    def cancel(self, key: Hashable) -> None:
        """Not any more. An action that has begun goes on."""
        self._deadlines.pop(key, None)
        self._failing.pop(key, None)

    def failing(self) -> list[str]:
        """A sentence for each action that has failed several times, and is tried again."""
        return [f"{_shown(key)} fails: {error}" for key, error in self._failing.items()]

    async def stop(self) -> None:
        """Begin no more actions, and wait for those that have begun."""
        self._clear()
        if self._running:
            await asyncio.wait(self._running)

    def cut_off(self) -> None:
        """Begin no more actions, and cancel those that have begun; `stop` waits for their end."""
        self._clear()
        for task in self._running:
            task.cancel()

    def _clear(self) -> None:
        self._stopped = True
        self._deadlines.clear()
        self._failing.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(
        self,
        key: Hashable,
        after_s: float,
        action: Callable[[], Awaitable[None]],
        failures: int,
    ) -> None:
        if self._stopped:
            return
        self._number += 1
        due_s = asyncio.get_running_loop().time() + after_s
        self._deadlines[key] = _Deadline(due_s, self._number, action, failures)
        heapq.heappush(self._heap, (due_s, self._number, key))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._begin_due)

    def _begin_due(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now_s:
            _, number, key = heapq.heappop(self._heap)
            deadline = self._deadlines.get(key)
            if deadline is None or deadline.number != number:
                continue  # cancelled, or replaced by a later one
            del self._deadlines[key]
            task = own_task(self._do(key, deadline), name="controller-deadline")
            self._running[task] = key
            task.add_done_callback(self._running.pop)
        self._set_timer()

    async def _do(self, key: Hashable, deadline: _Deadline) -> None:
        try:
            await deadline.action()
        except Exception as error:  # noqa: BLE001 - whatever it is, the action is still due
            failures = deadline.failures + 1
            if failures >= _LOGGED_FROM and failures & (failures - 1) == 0:
                _log.warning("%s failed %d times: %s", _shown(key), failures, describe(error))
            if key not in self._deadlines and not self._stopped:
                if failures >= _LOGGED_FROM:
                    self._failing[key] = describe(error)
                delay_s = backoff_s(self._rng, failures, _RETRY_MIN_S, _RETRY_MAX_S)
                self._schedule(key, delay_s, deadline.action, failures)
        else:
            self._failing.pop(key, None)


def _shown(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
