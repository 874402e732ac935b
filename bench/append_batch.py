"""Records a second through atomic batches: 256 callers, 100 records of 100 B a call.

Floor: write + fdatasync of 1 MiB pieces, which is where the skeleton closes a batch. The bar (1 M
records/s where the skeleton does 4 M) is a ratio: a quarter of the skeleton of the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import MIB, synced_write_rate
from bench.loads import concurrent_callers
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import Skeleton

QUESTION = "append_batch of 100 x 100 B, 256 callers"
CALLERS = 256
RECORDS = 100
RECORD_BYTES = 100
_PREFIX_BYTES = 4
SHARE_OF_SKELETON = 0.25


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 30 s else."""
    measured = rounds.interleaved(
        __name__,
        rounds.count_of(quick=quick),
        directory,
        callers=CALLERS,
        batches_each=20 if quick else 100,
    )
    engine, skeleton = Samples.of(measured["engine"]), Samples.of(measured["skeleton"])
    ratio = engine.median / skeleton.median
    row = Row(
        name="256 callers",
        unit="records/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=engine,
        ratio=ratio,
        bar="≥ 25 % of the skeleton",
        met=ratio >= SHARE_OF_SKELETON,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="append_batch", question=QUESTION, rows=[row])


def floor_round(directory: str, callers: int, batches_each: int) -> Measured:
    """Records per second the disk alone would take."""
    record = RECORD_BYTES + _PREFIX_BYTES
    total = min(callers * batches_each * RECORDS * record, 256 * MIB)
    return {"value": synced_write_rate(Path(directory), MIB, total) / record}


def skeleton_round(directory: str, callers: int, batches_each: int) -> Measured:
    """Records per second of the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        records = [bytes(RECORD_BYTES)] * RECORDS
        await concurrent_callers(lambda _: skeleton.append_batch(records), callers, 2)
        result = await concurrent_callers(
            lambda _: skeleton.append_batch(records), callers, batches_each
        )
        await skeleton.close()
        return {"value": result.rate * RECORDS, **latency_ms(result.latencies)}

    return asyncio.run(measure())


def engine_round(directory: str, callers: int, batches_each: int) -> Measured:
    """Records per second of the engine, default settings, one segment."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            records = [bytes(RECORD_BYTES)] * RECORDS

            def append(_: int) -> Awaitable[object]:
                return store.append_batch(SEGMENT, records)

            await concurrent_callers(append, callers, 2)
            result = await concurrent_callers(append, callers, batches_each)
            return {"value": result.rate * RECORDS, **latency_ms(result.latencies)}

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("append_batch")
