"""Housekeepers: flushing, checkpoints, and time in which nothing is asked for."""

from __future__ import annotations

from recovery.harness.workloads.bench import ClientBench
from segmentstore.contracts.errors import SegmentNotFoundError

_IDLE_S = 300.0
"""Long enough for ages of un-flushed bytes and lags of deletion to run out."""


async def flush_often(bench: ClientBench) -> None:
    """Flushes one segment or all, sometimes several times at once."""
    while bench.goes_on():
        await bench.pause(0.3)
        if bench.rng(0.6):
            await bench.try_to(bench.store.flush(bench.any_segment()), SegmentNotFoundError)
        elif bench.rng(0.7):
            await bench.try_to(bench.store.flush())
        else:
            await bench.together(
                bench.store.flush(),
                bench.store.flush(bench.any_segment()),
                bench.store.flush(),
                tolerated=(SegmentNotFoundError,),
            )


async def take_checkpoints(bench: ClientBench) -> None:
    """Asks for checkpoints, sometimes two at once."""
    while bench.goes_on():
        await bench.pause(0.3)
        if bench.rng(0.8):
            await bench.try_to(bench.store.checkpoint())
        else:
            await bench.together(bench.store.checkpoint(), bench.store.checkpoint())


async def idle(bench: ClientBench) -> None:
    """Mostly sleeps; then checks whether the store is still there, and writes a little."""
    for _ in range(bench.random.randrange(1, 4)):
        await bench.pause(bench.random.choice((1.0, 30.0, _IDLE_S)))
        name = bench.any_segment()
        info = await bench.store.info(name)
        if not info.sealed and name in bench.segments.get("plain", ()):
            await bench.try_to(bench.store.append(name, (bench.length(),)))
