"""Small appends a second when a thousand callers each wait for their own.

Floor: write + fdatasync of the bytes of one append of every caller (record headers as the skeleton's), since
no group commit of callers who wait can put more into one sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import synced_write_rate
from bench.loads import concurrent_callers
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import HEADER, Skeleton

QUESTION = "1,000 callers, 100 B, each awaited"
CALLERS = 1000
APPEND_BYTES = 100
SHARE_OF_SKELETON = 0.5


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 45 s else."""
    measured = rounds.interleaved(
        __name__, rounds.count_of(quick=quick), directory, callers=CALLERS, appends_each=100 if quick else 600
    )
    engine, skeleton = Samples.of(measured["engine"]), Samples.of(measured["skeleton"])
    ratio = engine.median / skeleton.median
    row = Row(
        name=QUESTION,
        unit="appends/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=engine,
        ratio=ratio,
        bar="≥ 50 % of the skeleton",
        met=ratio >= SHARE_OF_SKELETON,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="concurrent_callers", question=QUESTION, rows=[row])


def floor_round(directory: str, callers: int, appends_each: int) -> Measured:
    """Appends per second the disk alone would take."""
    record = APPEND_BYTES + HEADER.size
    piece = callers * record
    return {"value": synced_write_rate(Path(directory), piece, min(appends_each, 500) * piece) / record}


def skeleton_round(directory: str, callers: int, appends_each: int) -> Measured:
    """Appends per second of the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        data = bytes(APPEND_BYTES)
        await concurrent_callers(lambda _: skeleton.append(data), callers, 10)
        result = await concurrent_callers(lambda _: skeleton.append(data), callers, appends_each)
        await skeleton.close()
        return {"value": result.rate, **latency_ms(result.latencies)}

    return asyncio.run(measure())


def engine_round(directory: str, callers: int, appends_each: int) -> Measured:
    """Appends per second of the engine, default settings, one segment."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            data = bytes(APPEND_BYTES)

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            await concurrent_callers(append, callers, 10)
            result = await concurrent_callers(append, callers, appends_each)
            return {"value": result.rate, **latency_ms(result.latencies)}

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("concurrent_callers")
