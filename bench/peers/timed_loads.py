"""The loads, by time instead of count: peers differ by a factor of a hundred.

Each begins with a part that is not measured. What is counted are acknowledgements in the measured
part, while the callers go on. Latencies are of a sample.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bench.child import Measured
from bench.loads import CALLERS_SAMPLED
from bench.peers.peer import PeerLog
from bench.peers.usage import Meter
from bench.report import latency_ms

TimedAppend = Callable[[int], Awaitable[object]]
"""Called with the number of the caller."""

FILL_RECORD_BYTES: Final = 1024
FILL_BATCH: Final = 100
_FILL_IN_FLIGHT: Final = 16
_CHECK_S: Final = 0.02
_LONGER: Final = 6
"""So many times as long as was asked for is waited for acknowledgements: a peer may give those of
many appends at once.
"""
_SAMPLE: Final = 64
"""One clock call in so many appends of one producer, which has to be a power of two."""


class _Window:
    """The measured part: `measure` ends it, and then the callers."""

    def __init__(self) -> None:
        self.measured = False
        self.ended = False
        self.latencies: list[float] = []

    async def measure(
        self,
        counts: Sequence[int],
        in_flight: int,
        warm_s: float,
        seconds: float,
        processes: Sequence[int],
    ) -> Measured:
        """At least `seconds`, and until twice as many are acknowledged as are in flight."""
        await asyncio.sleep(warm_s)
        self.measured = True
        before, meter = sum(counts), Meter(processes)
        await asyncio.sleep(seconds)
        last = time.perf_counter() + seconds * _LONGER
        while (  # noqa: ASYNC110 - counts are of thousands of tasks
            sum(counts) - before < 2 * in_flight and time.perf_counter() < last
        ):
            await asyncio.sleep(_CHECK_S)
        figures = meter.figures(sum(counts) - before)
        self.measured, self.ended = False, True
        return {**figures, **latency_ms(sorted(self.latencies))}


async def timed_callers(
    append: TimedAppend, callers: int, warm_s: float, seconds: float, processes: Sequence[int]
) -> Measured:
    """`callers` tasks, each awaiting one append before the next."""
    window, counts = _Window(), [0] * callers

    async def plain(caller: int) -> None:
        while not window.ended:
            await append(caller)
            counts[caller] += 1

    async def sampled(caller: int) -> None:
        while not window.ended:
            begun = time.perf_counter()
            await append(caller)
            counts[caller] += 1
            if window.measured:
                window.latencies.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(window.measure(counts, callers, warm_s, seconds, processes))
        for caller in range(callers):
            tasks.create_task((sampled if caller < CALLERS_SAMPLED else plain)(caller))
    return measuring.result()


async def timed_producer(
    append: TimedAppend, window_max: int, warm_s: float, seconds: float, processes: Sequence[int]
) -> Measured:
    """One producer with up to `window_max` appends that are not acknowledged; it awaits the oldest
    when there are as many.
    """
    window, counts = _Window(), [0]
    mask = _SAMPLE - 1 if window_max > _SAMPLE else 0
    pending: deque[tuple[float, Awaitable[object]]] = deque()

    async def produce() -> None:
        number = 0
        while not window.ended:
            sampled = window.measured and not number & mask
            pending.append((time.perf_counter() if sampled else 0.0, append(0)))
            number += 1
            if len(pending) >= window_max:
                called, oldest = pending.popleft()
                await oldest
                counts[0] += 1
                if called:
                    window.latencies.append(time.perf_counter() - called)
        for _, rest in pending:
            await rest

    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(
            window.measure(counts, window_max, warm_s, seconds, processes)
        )
        tasks.create_task(produce())
    return measuring.result()


async def fill(log: PeerLog, batches: int, in_flight_max: int) -> None:
    """Append so many batches of FILL_BATCH records of random bytes to the first log, not measured.

    At most `in_flight_max` records wait for their acknowledgement.
    """
    batch = [os.urandom(FILL_RECORD_BYTES) for _ in range(FILL_BATCH)]
    in_flight = min(_FILL_IN_FLIGHT, max(1, in_flight_max // FILL_BATCH))
    pending: deque[Awaitable[object]] = deque()
    for _ in range(batches):
        pending.append(log.append_batch(0, batch))
        if len(pending) >= in_flight:
            await pending.popleft()
    for rest in pending:
        await rest
