"""An event loop whose clock runs faster than the world's: for engines that talk to real servers and
wait in between.

Waiting (back-off, ages, time-outs of the loop) takes a fraction of its length; what threads and
sockets do takes as long as it does. So a time-out handed to such a loop means that much less of
real time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SPEED = 100.0
_BOUND_S = 240.0
"""Of real time; below the bound of a test."""


class _EagerSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / SPEED if timeout is not None and timeout > 0 else timeout)


class EagerLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_EagerSelector())

    def time(self) -> float:
        return super().time() * SPEED


def run_eagerly(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on such a loop, with a bound: a call that hangs fails its test instead of the
    whole run.
    """

    async def bounded() -> T:
        async with asyncio.timeout(_BOUND_S * SPEED):
            return await main

    with asyncio.Runner(loop_factory=EagerLoop) as runner:
        return runner.run(bounded())
