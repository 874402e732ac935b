"""The event loops that the engine makes for itself: uvloop's where it is installed, else asyncio's.

An embedding program brings its own loop, of either kind. What runs in a loop of the engine's is the
command line with its servers, and the blocking API.

uvloop's clock stands still within a turn and has whole milliseconds. Latencies, rates and the
lengths of turns are measured by the loop's clock. So this one reads the system's each time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import cache
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A fresh loop, of the fastest kind that is installed.

    It is asyncio's own where a person asked for its debug mode (PYTHONASYNCIODEBUG, or `-X dev`):
    uvloop has the smaller one.
    """
    if sys.flags.dev_mode or os.environ.get("PYTHONASYNCIODEBUG") or not has_uvloop():
        return asyncio.new_event_loop()
    return new_uvloop()


@cache
def has_uvloop() -> bool:
    """Whether uvloop is installed; it is not loaded by that."""
    return importlib.util.find_spec("uvloop") is not None


def new_uvloop() -> asyncio.AbstractEventLoop:
    """A fresh loop of uvloop's, with a clock that goes on within a turn.

    Raises ImportError where it is not installed.
    """
    return _loop_class()()


@cache
def _loop_class() -> type[asyncio.AbstractEventLoop]:
    import uvloop  # noqa: PLC0415 - an extra, and 20 ms

    class ClockedLoop(uvloop.Loop):
        """The clock is the one that libuv's timers use, read anew. Handlers of signals end with the
        loop, as asyncio's do: uvloop leaves its own, which then does nothing.
        """

        time = staticmethod(time.monotonic)  # noqa: TID251 - it is the loop

        def close(self) -> None:
            super().close()
            if threading.current_thread() is threading.main_thread():
                for number in signal.valid_signals():
                    if getattr(signal.getsignal(number), "__self__", None) is self:
                        signal.signal(number, _handler_without(number))

    return ClockedLoop


def _handler_without(number: int) -> signal.Handlers | Callable[[int, FrameType | None], Any]:
    """What asyncio puts in place of a handler that is removed."""
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on a loop of `new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
