"""Memory a store takes, idle, and while 10 GiB go into 1,000 segments at full speed.

Default settings. The peak is the kernel's own high-water mark of the process, which no sampling can
miss; the samples give the shape. Floor: a Python process with an event loop and nothing else.
Skeleton: the same load without segments, at most 1 GiB of it, since it keeps nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import open_store
from bench.floor import MIB
from bench.loads import pipelined
from bench.process import Watch, resident_bytes, resident_peak_bytes
from bench.report import CaseResult, Row, Samples, extras_of
from bench.skeleton import Skeleton
from bench.workspace import require_free_bytes

QUESTION = "resident memory, idle and under load"
APPEND_BYTES = 64 * 1024
WINDOW = 64
SEGMENTS = 1000
IDLE_MIB = 150
PEAK_MIB = 1024
_SKELETON_BYTES_MAX = 1 << 30
_IDLE_S = 1.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s and 1 GiB quick, some minutes and 10 GiB else; needs 2.5 times the bytes on
    disk.
    """
    total_bytes = (1 if quick else 10) << 30
    require_free_bytes(directory, total_bytes * 5 // 2)
    measured = rounds.interleaved(__name__, 1, directory, total_bytes=total_bytes)
    (floor,), (skeleton,), (engine,) = (measured[side] for side in rounds.SIDES)
    idle = Row(
        name="idle",
        unit="MiB",
        floor=Samples.of([floor]),
        skeleton=Samples.of([skeleton], "idle"),
        engine=Samples.of([engine], "idle"),
        bar=f"< {IDLE_MIB} MiB",
        met=engine["idle"] < IDLE_MIB,
    )
    peak = Row(
        name=f"{total_bytes >> 30} GiB into {SEGMENTS:,} segments, peak",
        unit="MiB",
        floor=Samples.of([floor]),
        skeleton=Samples.of([skeleton]),
        engine=Samples.of([engine]),
        bar=f"< {PEAK_MIB:,} MiB",
        met=engine["value"] < PEAK_MIB,
        extra=extras_of([engine]),
    )
    return CaseResult(case="memory", question=QUESTION, rows=[idle, peak])


def floor_round(directory: str, total_bytes: int) -> Measured:
    """MiB resident of a process like the others that does nothing."""
    del directory, total_bytes

    async def measure() -> Measured:
        await asyncio.sleep(0)
        return {"value": resident_bytes() / MIB}

    return asyncio.run(measure())


def skeleton_round(directory: str, total_bytes: int) -> Measured:
    """MiB resident at the peak of the load, and idle before it."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        idle = resident_bytes() / MIB
        data = os.urandom(APPEND_BYTES)
        count = min(total_bytes, _SKELETON_BYTES_MAX) // APPEND_BYTES
        await pipelined(lambda _: skeleton.append(data), count, WINDOW)
        await skeleton.close()
        return {"value": resident_peak_bytes() / MIB, "idle": idle}

    return asyncio.run(measure())


def engine_round(directory: str, total_bytes: int) -> Measured:
    """MiB resident at the peak of the load, idle before it, and what the load came to."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            # What starting set going (files prepared ahead, the cache's own threads) belongs to an
            # idle store.
            await asyncio.sleep(_IDLE_S)
            idle = resident_bytes() / MIB
            names = [f"bench/segment-{index:04}" for index in range(SEGMENTS)]
            for name in names:
                await store.create_segment(name)
            # Each append is a buffer of its own, so that whatever is kept too long shows as memory.
            base = os.urandom(APPEND_BYTES)

            def append(number: int) -> Awaitable[object]:
                return store.append(names[number % SEGMENTS], number.to_bytes(8, "big") + base[8:])

            async with Watch() as watch:
                result = await pipelined(append, total_bytes // APPEND_BYTES, WINDOW)
            middle = sorted(watch.resident)[len(watch.resident) // 2] / MIB
        return {
            # Read behind the close: what that takes counts as well.
            "value": resident_peak_bytes() / MIB,
            "idle": idle,
            "resident_median": middle,
            "open_files_max": max(watch.files),
            "mb_per_s": result.rate * APPEND_BYTES / 1e6,
            "seconds": result.seconds,
        }

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("memory")
