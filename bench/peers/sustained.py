"""W7: 256 callers of 100 B for minutes, with a figure for each second.

`value` is the median second, beside it are the slowest and the fastest. What runs in the background
(a flush, a compaction, a checkpoint) shows here.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench.child import Measured
from bench.loads import CALLERS_SAMPLED
from bench.peers import callers
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import open_log
from bench.peers.usage import Meter
from bench.report import latency_ms

CALLERS: Final = 256
APPEND_BYTES: Final = 100


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One, of one round."""
    return [
        Cell(
            name=f"W7 sustained for {sizes.sustained_s:,} s",
            unit="appends/s",
            module=__name__,
            parameters={"seconds": sizes.sustained_s},
            rounds_max=1,
        )
    ]


def floor_round(directory: str, **_: object) -> Measured:
    """As of 256 callers of W1."""
    return callers.floor_round(directory, CALLERS)


def peer_round(run: PeerRun, seconds: int) -> Measured:
    """The median second as `value`, all of them as `series`."""
    return asyncio.run(_measure(run, seconds))


async def _measure(run: PeerRun, seconds: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    data, counts, latencies = bytes(APPEND_BYTES), [0] * CALLERS, list[float]()
    end = time.perf_counter() + seconds

    async def press(caller: int) -> None:
        sampled = caller < CALLERS_SAMPLED
        while (begun := time.perf_counter()) < end:
            await log.append(0, data)
            counts[caller] += 1
            if sampled:
                latencies.append(time.perf_counter() - begun)

    async def watch() -> list[float]:
        series, before, last = list[float](), 0, time.perf_counter()
        while len(series) < seconds:
            await asyncio.sleep(1.0)
            now, count = time.perf_counter(), sum(counts)
            series.append((count - before) / (now - last))
            before, last = count, now
        return series

    meter = Meter(run.processes)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        for caller in range(CALLERS):
            tasks.create_task(press(caller))
    figures = meter.figures(sum(counts))
    await log.delete()
    await log.close()
    series = watching.result()
    return {
        **figures,
        **latency_ms(sorted(latencies)),
        "value": statistics.median(series),
        "slowest": min(series),
        "fastest": max(series),
        "series": series,
    }
