"""An event loop with virtual time, and executors that run at once: hours pass in milliseconds, repeatably.

When nothing is ready, the clock jumps to the next timer; when there is no timer either, nothing can ever
happen again, and the loop raises `DeadlockError` instead of hanging. Real threads and sockets do not
belong on it: hand `inline_executor` to the `Runtime`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_RESOLUTION_S = 1e-6


class DeadlockError(Exception):
    """Everything waits and nothing will come."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: tells the loop how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or self.loop is None:
            return ready
        if timeout is None:
            raise DeadlockError(f"nothing is ready and no timer is set at {self.loop.time():.6f} s")
        if timeout > 0:
            self.loop.jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose `time()` starts at 0 and moves only when everything waits."""

    def __init__(self) -> None:
        self._now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass; a little over, so that a timer is never missed by rounding."""
        self._now += seconds + _RESOLUTION_S


class InlineExecutor(Executor):
    """Runs what it is given before `submit` returns."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - an executor hands on whatever its work raised
            future.set_exception(error)
        return future


def inline_executor(name: str, threads: int) -> Executor:
    """What `Runtime.executor` is in a world without threads."""
    return InlineExecutor()


class LoopClock:
    """Wall time that follows the running virtual loop; `offset_ms` may be moved to make it jump."""

    def __init__(self, offset_ms: int = 1_700_000_000_000) -> None:
        self.offset_ms = offset_ms

    def time_ms(self) -> int:
        return self.offset_ms + int(asyncio.get_running_loop().time() * 1000)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
