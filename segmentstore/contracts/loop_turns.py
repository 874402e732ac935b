"""How long the engine has held the event loop without a break, by part.

A *turn* is one callback of the loop, or one step of a task: from one of its waits to the next. A
turn in progress keeps all others waiting. So each part should have only short ones, whatever the
number of segments. Here the longest is kept, for `stats()`.

Turns of the engine's tasks are measured (contracts/owned_tasks.py), by the name of the task without
its ids. So are callbacks with `@timed_turn`. Steps of a program's own tasks are not. A turn that
runs within another one counts for both.

The only clock is the event loop's own. A loop in virtual time stands still within a turn: there all
are 0. Each loop has its own numbers, which end with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import lru_cache, wraps
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

S = TypeVar("S")
T = TypeVar("T")

PARTS_MAX: Final = 100
"""Of one loop; what comes beyond is counted as OTHER."""
OTHER: Final = "other"
_ID: Final = re.compile(r"[ -]\d+\b|[:#].*", re.DOTALL)


class _Part:
    """The longest turn of one part on one loop."""

    __slots__ = ("longest_s",)

    def __init__(self) -> None:
        self.longest_s = 0.0


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Part]] = WeakKeyDictionary()


def longest_turns() -> dict[str, float]:
    """Seconds of the longest turn of each part on the running loop, since its first one.

    Nothing where no loop runs.
    """
    try:
        parts = _loops.get(asyncio.get_running_loop(), {})
    except RuntimeError:
        return {}
    return {name: part.longest_s for name, part in sorted(parts.items())}


def timed_turn(name: str) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
    """Decorate a method that is a callback of the loop: its calls count for this part."""

    def decorate(callback: Callable[[S], None]) -> Callable[[S], None]:
        latest: tuple[ref[asyncio.AbstractEventLoop], _Part] | None = None

        @wraps(callback)
        def timed(self: S) -> None:
            nonlocal latest
            loop, known = asyncio.get_running_loop(), latest
            if known is None or known[0]() is not loop:
                known = latest = ref(loop), _part(loop, name)
            part, begun = known[1], loop.time()
            try:
                callback(self)
            finally:
                seconds = loop.time() - begun
                if seconds > part.longest_s:  # noqa: PLR1730 - `max` costs twice as much
                    part.longest_s = seconds

        return timed

    return decorate


def timed_steps(
    work: Coroutine[Any, Any, T], name: str, loop: asyncio.AbstractEventLoop
) -> Coroutine[Any, Any, T]:
    """The same coroutine, for a task with this name: its steps count for the part of that name."""
    return _TimedSteps(work, _part(loop, part_of(name)), loop.time)


@lru_cache(1024)
def part_of(name: str) -> str:
    """The name of a task without numbers of containers, segments and the like."""
    return _ID.sub("", name)


def _part(loop: asyncio.AbstractEventLoop, name: str) -> _Part:
    parts = _loops.get(loop)
    if parts is None:
        parts = _loops[loop] = {}
    part = parts.get(name)
    if part is None:
        part = parts.setdefault(name if len(parts) < PARTS_MAX - 1 else OTHER, _Part())
    return part


class _TimedSteps(Coroutine[Any, Any, T]):
    """A coroutine that passes each step on to another, and times it.

    It is no native coroutine: those cannot be intercepted. Tasks accept whatever has these methods.
    What they and debuggers read of a native one, as its frame, is the other's: representations and
    stacks of tasks are the same. Only a traceback has one more entry.
    """

    __slots__ = ("_part", "_send", "_time", "_work")

    def __init__(
        self, work: Coroutine[Any, Any, T], part: _Part, time: Callable[[], float]
    ) -> None:
        self._work = work
        self._send = work.send
        self._part = part
        self._time = time

    def send(self, value: Any) -> Any:
        """Go on to the next wait. Raises StopIteration at the end, as a native one."""
        time, part = self._time, self._part
        begun = time()
        try:
            return self._send(value)
        finally:
            seconds = time() - begun
            if seconds > part.longest_s:  # noqa: PLR1730 - `max` costs twice as much
                part.longest_s = seconds

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """Go on to the next wait, with an exception."""
        time, part = self._time, self._part
        begun = time()
        try:
            if value is None and traceback is None:
                return self._work.throw(kind)
            return self._work.throw(kind, value, traceback)
        finally:
            # Its traceback has this frame, and so all that the task had, as a cycle.
            kind = value = traceback = None
            seconds = time() - begun
            if seconds > part.longest_s:  # noqa: PLR1730 - `max` costs twice as much
                part.longest_s = seconds

    def close(self) -> None:
        """End it where it waits."""
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        # Its name, code and frame, for asyncio and debuggers.
        return getattr(self._work, name)
