"""Counts the calls that each turn of the event loop makes: work per turn, measured without a clock.

A turn is one callback of the loop, or one step of a task. Counted are calls of Python functions,
resumed generators and coroutines, and calls of functions in C, on the loop's thread alone. The
count is the same on a slow machine and on a fast one. What it does not see: a loop without a call
in it, and the size of what one C function works on, as `sorted` of a long list.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Self
from unittest import mock

Kind = tuple[str, str]
"""Of turns: the phase, and the name of the task or callback without its numbers."""
_SAMPLE_MASK: Final = 255
"""One call in 256 is sampled."""
_UNNAMED: Final = {"Task", "None"}
"""The second is what Python 3.13 calls those of a task factory."""
_ID: Final = re.compile(r"[ -]\d+\b")


@dataclass(slots=True)
class Turn:
    """The longest turn of one kind."""

    calls: int = 0
    turns: int = 0
    """How many of this kind there were."""
    functions: Counter[str] = field(default_factory=Counter)
    """Of the longest one, what was called: a sample."""


class TurnWatch:
    """Entered on the thread of the loop, in or around it; the collector is off meanwhile."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        """`names` has other names for tasks and callbacks: equal ones are one kind."""
        self._names = names or {}
        self.phase = ""
        """What the test is doing: turns are kept apart by it."""
        self.longest: dict[Kind, Turn] = {}
        self._calls = 0
        self._sample: list[str] = []
        self._collects = False
        self._patch = mock.patch.object(asyncio.Handle, "_run", self._counted(asyncio.Handle._run))

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        self._patch.start()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._patch.stop()
        if self._collects:
            gc.enable()

    def over(self, calls_max: int) -> dict[Kind, Turn]:
        """The kinds of turns with more calls than that."""
        return {kind: turn for kind, turn in self.longest.items() if turn.calls > calls_max}

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event in {"call", "c_call"}:
            self._calls += 1
            if not self._calls & _SAMPLE_MASK:
                self._sample.append(_name_of(frame, argument))

    def _counted(self, plain_run: Callable[[asyncio.Handle], None]) -> Callable[..., None]:
        def run(handle: asyncio.Handle) -> None:
            name, begun, self._sample = label(handle), self._calls, []
            name = self._names.get(name, name)
            try:
                plain_run(handle)
            finally:
                self._note(name, self._calls - begun)

        return run

    def _note(self, name: str, calls: int) -> None:
        turn = self.longest.setdefault((self.phase, name), Turn())
        turn.turns += 1
        if calls > turn.calls:
            turn.calls = calls
            turn.functions = Counter(self._sample)


def described(kind: Kind, turn: Turn) -> str:
    """A turn in words."""
    most = ", ".join(f"{name} ({count})" for name, count in turn.functions.most_common(3))
    sampled = f"; sampled calls: {most}" if most else ""
    return f"{kind[0]}: a turn of {kind[1]!r} makes {turn.calls:,} calls{sampled}"


def label(handle: asyncio.Handle) -> str:
    """The task's name, or the callback's, without numbers."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        name = _ID.sub("", owner.get_name())
        if name in _UNNAMED:
            name = str(getattr(owner.get_coro(), "__qualname__", name))
        return name
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def _name_of(frame: FrameType, argument: object) -> str:
    if argument is None:
        return frame.f_code.co_qualname
    return f"{getattr(argument, '__qualname__', argument)} in {frame.f_code.co_qualname}"
