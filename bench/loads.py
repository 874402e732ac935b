"""The loads: how callers press on something that appends.

The same for skeleton and engine, on the plain asyncio loop.

An `append` here is called at once and gives an awaitable; that it enqueues when called is the
engine's promise. Latencies are taken of a sample, so that the clock does not become part of what is
measured.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

Append = Callable[[int], Awaitable[object]]
"""Called with a running number; what it appends, and where, is the case's affair."""

CALLERS_SAMPLED = 16
_MANY = 20_000


class LoadResult(NamedTuple):
    """What a load came to."""

    appends: int
    seconds: float
    """From the first call to the last acknowledgement."""
    latencies: list[float]
    """Seconds from call to acknowledgement of the sampled appends, sorted."""

    @property
    def rate(self) -> float:
        """Appends per second."""
        return self.appends / self.seconds


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted values lie; the nearest rank, no
    interpolation.
    """
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def concurrent_callers(append: Append, callers: int, appends_each: int) -> LoadResult:
    """`callers` tasks, each awaiting one append before the next."""
    latencies: list[float] = []

    async def plain(caller: int) -> None:
        for number in range(caller * appends_each, (caller + 1) * appends_each):
            await append(number)

    async def sampled(caller: int) -> None:
        for number in range(caller * appends_each, (caller + 1) * appends_each):
            begun = time.perf_counter()
            await append(number)
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(
        *((sampled if caller < CALLERS_SAMPLED else plain)(caller) for caller in range(callers))
    )
    seconds = time.perf_counter() - begun
    return LoadResult(callers * appends_each, seconds, sorted(latencies))


async def pipelined(append: Append, count: int, window: int) -> LoadResult:
    """One producer with up to `window` appends un-acknowledged; it awaits the oldest when the
    window is full.
    """
    latencies: list[float] = []
    # One clock call in 64 appends where there are many: a call costs as much as a tenth of the
    # skeleton's append.
    mask = 63 if count >= _MANY else 0
    pending: deque[tuple[float, Awaitable[object]]] = deque()
    begun = time.perf_counter()
    for number in range(count):
        pending.append((0.0 if number & mask else time.perf_counter(), append(number)))
        if len(pending) >= window:
            called, oldest = pending.popleft()
            await oldest
            if called:
                latencies.append(time.perf_counter() - called)
    for _, rest in pending:
        await rest
    seconds = time.perf_counter() - begun
    return LoadResult(count, seconds, sorted(latencies))


async def one_at_a_time(append: Append, count: int) -> list[float]:
    """Seconds of each of `count` appends, each awaited before the next; in the order they were
    made.
    """
    seconds = []
    for number in range(count):
        begun = time.perf_counter()
        await append(number)
        seconds.append(time.perf_counter() - begun)
    return seconds
