"""Small appends a second when a thousand callers each wait for their own.

Floor: write + fdatasync of the bytes of one append of every caller (record headers as the
skeleton's), since no group commit of waiting callers can put more into one sync.

The bar is checked with all callers on one segment. An engine may log appends of one segment that
share a frame as one operation. With a segment for each caller it cannot, and that figure stands
below, without a bar of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import synced_write_rate
from bench.loads import LoadResult, concurrent_callers
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import HEADER, Skeleton

QUESTION = "1,000 callers, 100 B, each awaited"
CALLERS = 1000
APPEND_BYTES = 100
SHARE_OF_SKELETON = 0.5


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 45 s else."""
    measured = rounds.interleaved(
        __name__,
        rounds.count_of(quick=quick),
        directory,
        sides=(*rounds.SIDES, "spread"),
        callers=CALLERS,
        appends_each=100 if quick else 600,
    )
    engine, skeleton = Samples.of(measured["engine"]), Samples.of(measured["skeleton"])
    ratio = engine.median / skeleton.median
    row = Row(
        name="one segment",
        unit="appends/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=engine,
        ratio=ratio,
        bar="≥ 50 % of the skeleton",
        met=ratio >= SHARE_OF_SKELETON,
        extra=extras_of(measured["engine"]),
    )
    spread = Samples.of(measured["spread"])
    other = Row(
        name="1,000 segments",
        unit="appends/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=spread,
        ratio=spread.median / skeleton.median,
        extra=extras_of(measured["spread"]),
    )
    return CaseResult(case="concurrent_callers", question=QUESTION, rows=[row, other])


def floor_round(directory: str, callers: int, appends_each: int) -> Measured:
    """Appends per second the disk alone would take."""
    record = APPEND_BYTES + HEADER.size
    piece = callers * record
    return {
        "value": synced_write_rate(Path(directory), piece, min(appends_each, 500) * piece) / record
    }


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
    """Appends per second of the engine, default settings, all callers on one segment."""
    return asyncio.run(_measure_engine(directory, callers, appends_each, segments=1))


def spread_round(directory: str, callers: int, appends_each: int) -> Measured:
    """Appends per second of the engine, default settings, each caller on a segment of its own."""
    return asyncio.run(_measure_engine(directory, callers, appends_each, segments=callers))


async def _measure_engine(
    directory: str, callers: int, appends_each: int, *, segments: int
) -> Measured:
    async with open_store(Path(directory) / "store") as store:
        names = [f"{SEGMENT}-{index:04}" for index in range(segments)]
        for name in names:
            await store.create_segment(name)
        data = bytes(APPEND_BYTES)

        async def press(each: int) -> LoadResult:
            # Appends are numbered caller by caller, `each` in a row.
            def append(number: int) -> Awaitable[object]:
                return store.append(names[number // each % segments], data)

            return await concurrent_callers(append, callers, each)

        await press(10)
        result = await press(appends_each)
        return {"value": result.rate, **latency_ms(result.latencies)}


if __name__ == "__main__":
    from bench.suite import main

    main("concurrent_callers")
