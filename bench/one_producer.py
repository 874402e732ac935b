"""Small appends a second from one producer that pipelines, with a bounded window.

Floor: write + fdatasync of one full window of records, as in one group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import synced_write_rate
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import HEADER, Skeleton

QUESTION = "one producer pipelining 100 B, 1,024 in flight"
WINDOW = 1024
APPEND_BYTES = 100
SHARE_OF_SKELETON = 0.5


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 45 s else."""
    measured = rounds.interleaved(
        __name__,
        rounds.count_of(quick=quick),
        directory,
        count=150_000 if quick else 1_000_000,
        window=WINDOW,
    )
    engine, skeleton = Samples.of(measured["engine"]), Samples.of(measured["skeleton"])
    ratio = engine.median / skeleton.median
    row = Row(
        name="1,024 in flight",
        unit="appends/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=engine,
        ratio=ratio,
        bar="≥ 50 % of the skeleton",
        met=ratio >= SHARE_OF_SKELETON,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="one_producer", question=QUESTION, rows=[row])


def floor_round(directory: str, count: int, window: int) -> Measured:
    """Appends per second the disk alone would take."""
    record = APPEND_BYTES + HEADER.size
    piece = window * record
    return {
        "value": synced_write_rate(Path(directory), piece, min(count // window, 500) * piece)
        / record
    }


def skeleton_round(directory: str, count: int, window: int) -> Measured:
    """Appends per second of the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        data = bytes(APPEND_BYTES)
        await pipelined(lambda _: skeleton.append(data), 10 * window, window)
        result = await pipelined(lambda _: skeleton.append(data), count, window)
        await skeleton.close()
        return {"value": result.rate, **latency_ms(result.latencies)}

    return asyncio.run(measure())


def engine_round(directory: str, count: int, window: int) -> Measured:
    """Appends per second of the engine, default settings, one segment."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            data = bytes(APPEND_BYTES)

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            await pipelined(append, 10 * window, window)
            result = await pipelined(append, count, window)
            return {"value": result.rate, **latency_ms(result.latencies)}

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("one_producer")
