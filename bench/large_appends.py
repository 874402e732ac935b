"""Bytes a second with large appends, against raw sequential write + fdatasync of 1 MiB pieces.

The engine runs with default settings: what its storage writer moves to Tier 2 on the same disk
meanwhile is in the figure. The floor is 1 MiB pieces for both sizes, as the bar says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import MIB, synced_write_rate
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import Skeleton

QUESTION = "64 KiB and 1 MiB appends"
LOADS = {
    "64 KiB, 64 in flight": (65_536, 64, 512 * MIB),
    "1 MiB, 8 in flight": (MIB, 8, 512 * MIB),
    "64 KiB, 64 in flight, 4 GiB": (65_536, 64, 4096 * MIB),
}
"""Bytes of an append, how many one producer keeps in flight, and all of them. The last one is more
than memory holds: what Tier 2 does not take in time has to stay elsewhere.
"""
SHARE_OF_FLOOR = 0.6


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s quick, three minutes else."""
    rows = []
    for name, (append_bytes, window, total_bytes) in LOADS.items():
        measured = rounds.interleaved(
            __name__,
            rounds.count_of(quick=quick),
            directory,
            append_bytes=append_bytes,
            window=window,
            total_bytes=total_bytes // (4 if quick else 1),
        )
        engine, floor = Samples.of(measured["engine"]), Samples.of(measured["floor"])
        ratio = engine.median / max(floor.rounds)
        rows.append(
            Row(
                name=name,
                unit="MB/s",
                floor=floor,
                skeleton=Samples.of(measured["skeleton"]),
                engine=engine,
                ratio=ratio,
                bar="≥ 60 % of raw 1 MiB pieces",
                met=ratio >= SHARE_OF_FLOOR,
                extra=extras_of(measured["engine"]),
            )
        )
    return CaseResult(case="large_appends", question=QUESTION, rows=rows)


def floor_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes (10^6) per second of 1 MiB pieces; the parameters of the other sides are not
    checked.
    """
    del append_bytes, window
    return {"value": synced_write_rate(Path(directory), MIB, total_bytes) / 1e6}


def skeleton_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes per second of the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        data = os.urandom(append_bytes)
        result = await pipelined(
            lambda _: skeleton.append(data), total_bytes // append_bytes, window
        )
        await skeleton.close()
        return {"value": result.rate * append_bytes / 1e6, **latency_ms(result.latencies)}

    return asyncio.run(measure())


def engine_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes per second of the engine, one segment."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            data = os.urandom(append_bytes)

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            result = await pipelined(append, total_bytes // append_bytes, window)
            return {"value": result.rate * append_bytes / 1e6, **latency_ms(result.latencies)}

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("large_appends")
