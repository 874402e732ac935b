"""W3: from the moment at which an append is due to the reader at the tail that has its bytes.

Open loop, as in bench/tail_reader.py: a stall is charged to all appends that were due in it. Writer
and reader are in one process, a server between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB, preallocated, synced_writes
from bench.loads import percentile
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import open_log
from bench.peers.usage import Meter
from bench.tail_reader import TailTimeline, append_at_rate

RATES: Final = (1_000, 10_000)
APPEND_BYTES: Final = 100
_SECONDS_MIN: Final = 1.0
_FLOOR_SYNCS: Final = 500
_WARM_APPENDS: Final = 20


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One for each rate."""
    del sizes
    return [
        Cell(
            name=f"W3 tail at {rate:,}/s",
            unit="ms",
            module=__name__,
            parameters={"rate": rate},
            lower_is_better=True,
        )
        for rate in RATES
    ]


def floor_round(directory: str, **_: object) -> Measured:
    """p50 of a write + fdatasync of one append."""
    file = preallocated(Path(directory) / "floor", MIB)
    try:
        seconds = sorted(synced_writes(file, MIB, APPEND_BYTES, _FLOOR_SYNCS))
    finally:
        file.close()
    return {"value": percentile(seconds, 0.5) * 1e3}


def peer_round(run: PeerRun, rate: int) -> Measured:
    """p50 as `value`, in ms."""
    return asyncio.run(_measure(run, rate))


async def _measure(run: PeerRun, rate: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    appends = int(rate * max(run.sizes.seconds, _SECONDS_MIN))
    timeline = TailTimeline(appends, APPEND_BYTES)
    data = bytes(APPEND_BYTES)
    warm_bytes = _WARM_APPENDS * APPEND_BYTES
    warmed = asyncio.Event()

    async def follow() -> None:
        offset = -warm_bytes
        async for part in log.read(0, follow=True):
            offset += len(part)
            if offset >= 0:
                warmed.set()
                timeline.read_up_to(offset)
            if offset >= appends * APPEND_BYTES:
                return

    follower = asyncio.create_task(follow())
    # The reader is there, and all code has run once.
    await asyncio.sleep(0)
    for _ in range(_WARM_APPENDS):
        await log.append(0, data)
    await warmed.wait()
    meter = Meter(run.processes)
    await append_at_rate(lambda: log.append(0, data), timeline, rate)
    await follower
    figures = meter.figures(appends)
    await log.delete()
    await log.close()
    summary = timeline.summary()
    p50, p99 = summary["end_to_end_p50_ms"], summary["end_to_end_p99_ms"]
    return {**figures, "value": p50, "p50_ms": p50, "p99_ms": p99}
