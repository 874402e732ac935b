"""What very many segments cost a process that has them in eight containers.

They are made, and random ones of them get an append each. All is flushed. Then the store is opened
again in a fresh process, up to its first acknowledged append, with its local catalogs. Each
container has as many active segments as by default. The garbage collector is tuned, as by the
command line. No floor: memory and the time of a restart have none.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import segmentstore
from bench import child
from bench.child import Measured
from bench.engine import open_store
from bench.idle_segments import append_to, bounded, create_segments, segment_name
from bench.process import resident_bytes
from bench.report import CaseResult, Row, Samples
from bench.workspace import subfolder

QUESTION = "very many segments in eight containers of one process"
CONTAINERS = 8
SEGMENTS = 1_000_000
LARGE = 10_000_000
"""`SEGMENTSTORE_BENCH_LARGE=1` has it in place of the million: `make bench-ten-million`. It takes
half an hour.
"""
APPENDS = 50_000
_PART = 100_000
"""Names that the load has at a time."""
_RESIDENT_MIB_MAX = 400
_RESTART_S_MAX = 5


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Half a minute quick, with 100,000 segments; some three minutes else."""
    segments = LARGE if os.environ.get("SEGMENTSTORE_BENCH_LARGE") else SEGMENTS
    if quick:
        segments = SEGMENTS // 10
    with subfolder(directory, "containers") as folder:
        place = {"directory": str(folder), "segments": segments}
        made = child.call(__name__, "engine_round", place)
        again = child.call(__name__, "open_round", place)
    name = f"{segments:,} segments, {CONTAINERS} containers"
    return CaseResult(
        case="segments_in_containers",
        question=QUESTION,
        rows=[
            Row(name=f"{name}: create", unit="1/s", engine=Samples((made["value"],))),
            Row(name=f"{name}: append", unit="1/s", engine=Samples((made["appended_per_s"],))),
            bounded(f"{name}: resident", "MiB", made["resident_mib"], _RESIDENT_MIB_MAX),
            bounded(f"{name}: restart to first append", "s", again["value"], _RESTART_S_MAX),
            bounded(f"{name}: resident then", "MiB", again["resident_mib"], _RESIDENT_MIB_MAX),
        ],
    )


def engine_round(directory: str, segments: int) -> Measured:
    """Rates of creations and of appends to random segments; the most memory that any part took."""
    segmentstore.tune_gc()

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store", containers=CONTAINERS) as store:
            created_s, resident = 0.0, 0
            for first in range(0, segments, _PART):
                numbers = range(first, min(segments, first + _PART))
                created_s += await create_segments(store, [*map(segment_name, numbers)])
                resident = max(resident, resident_bytes())
            rng = random.Random(segments)
            names = [segment_name(rng.randrange(segments)) for _ in range(APPENDS)]
            begun = time.perf_counter()
            await append_to(store, names)
            appended_s = time.perf_counter() - begun
            resident = max(resident, resident_bytes())
            await store.flush()
            await store.checkpoint()
        return {
            "value": segments / created_s,
            "appended_per_s": APPENDS / appended_s,
            "resident_mib": max(resident, resident_bytes()) / (1 << 20),
        }

    return asyncio.run(measure())


def open_round(directory: str, segments: int) -> Measured:
    """Seconds from opening the store to its first acknowledged append, to an idle segment."""
    segmentstore.tune_gc()

    async def measure() -> Measured:
        # Not the time that imports take.
        importlib.import_module("segmentstore.opening")
        async with AsyncExitStack() as stack:
            begun = time.perf_counter()
            store = await stack.enter_async_context(
                open_store(Path(directory) / "store", containers=CONTAINERS)
            )
            await store.append(segment_name(segments // 2), b"x")
            taken = time.perf_counter() - begun
            resident = resident_bytes() / (1 << 20)
        return {"value": taken, "resident_mib": resident}

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("segments_in_containers")
