"""What an append costs when there are many segments, and whether open files stay bounded.

The same number of appends of 100 B, pipelined: into one segment, and round robin over many, ten
each, which is the order that helps least. All of them may be active, as with a larger
`active_segments_max` than by default. Beside that they get one append each where a quarter of them
may be: each is idle again when its turn comes. The collector is tuned, as by the command line.
Making the segments is timed apart; a flush of everything follows, since that is when files are
opened. Floor and skeleton know no segments and stand there for the scale.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path

import segmentstore
from bench import child, one_producer, rounds
from bench.child import Measured
from bench.engine import open_store
from bench.loads import pipelined
from bench.process import Watch
from bench.report import CaseResult, Row, Samples, extras_of
from bench.workspace import subfolder

QUESTION = "many segments with 10 appends of 100 B each, against one segment"
APPENDS_EACH = 10
APPEND_BYTES = 100
WINDOW = 1024
TIMES_SLOWER = 2.0
OPEN_FILES_MAX = 512
"""What counts as bounded: half of the usual limit of a process, whatever the number of segments."""
_CREATE_TOGETHER = 1000
_NEVER = 1 << 40


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About half a minute and 10 k segments quick, some minutes and 100 k else."""
    many = 10_000 if quick else 100_000
    count = many * APPENDS_EACH
    measured: dict[str, list[Measured]] = {
        side: [] for side in ("floor", "skeleton", "one", "many", "idle")
    }
    for index in range(rounds.count_of(quick=quick)):
        for side in ("floor", "skeleton"):
            with subfolder(directory, f"{side}-{index}") as folder:
                arguments = {"directory": str(folder), "count": count, "window": WINDOW}
                measured[side].append(child.call(one_producer.__name__, f"{side}_round", arguments))
        for side, segments, active, appends in (
            ("one", 1, many, count),
            ("many", many, many, count),
            ("idle", many, many // 4, many),
        ):
            with subfolder(directory, f"{side}-{index}") as folder:
                arguments = {
                    "directory": str(folder),
                    "segments": segments,
                    "active": active,
                    "count": appends,
                }
                measured[side].append(child.call(__name__, "engine_round", arguments))
    one, spread, idle = (
        Samples(tuple(1e6 / rate for rate in Samples.of(measured[side]).rounds))
        for side in ("one", "many", "idle")
    )
    floor, skeleton = (
        Samples(tuple(1e6 / rate for rate in Samples.of(measured[side]).rounds))
        for side in ("floor", "skeleton")
    )
    files = Samples.of(measured["many"], "open_files_max")
    slower = spread.median / one.median
    rows = [
        Row(name="1 segment", unit="us/append", floor=floor, skeleton=skeleton, engine=one),
        Row(
            name=f"{many:,} segments, all active",
            unit="us/append",
            floor=floor,
            skeleton=skeleton,
            engine=spread,
            ratio=slower,
            bar="≤ 2 x one segment",
            met=slower <= TIMES_SLOWER,
            extra=extras_of(measured["many"]),
        ),
        Row(
            name=f"{many:,} segments, {many // 4:,} active",
            unit="us/append",
            floor=floor,
            skeleton=skeleton,
            engine=idle,
            ratio=idle.median / one.median,
        ),
        Row(
            name=f"open files with {many:,} segments",
            unit="files",
            engine=files,
            bar=f"≤ {OPEN_FILES_MAX}",
            met=max(files.rounds) <= OPEN_FILES_MAX,
        ),
    ]
    return CaseResult(case="many_segments", question=QUESTION, rows=rows)


def engine_round(directory: str, segments: int, active: int, count: int) -> Measured:
    """Appends per second into `segments` segments, round robin, of which `active` may be in memory;
    open files at most, the flush behind it included.
    """
    segmentstore.tune_gc()

    async def measure() -> Measured:
        names = [f"bench/segment-{index:06}" for index in range(segments)]
        data = bytes(APPEND_BYTES)
        bounds = {"active_segments_max": active, "active_metadata_bytes_max": _NEVER}
        async with open_store(Path(directory) / "store", **bounds) as store, Watch() as watch:
            begun = time.perf_counter()
            for first in range(0, segments, _CREATE_TOGETHER):
                await asyncio.gather(
                    *map(store.create_segment, names[first : first + _CREATE_TOGETHER])
                )
            created = time.perf_counter() - begun

            def append(number: int) -> Awaitable[object]:
                return store.append(names[number % segments], data)

            result = await pipelined(append, count, WINDOW)
            begun = time.perf_counter()
            await store.flush()
            flushed = time.perf_counter() - begun
        return {
            "value": result.rate,
            "create_s": created,
            "flush_s": flushed,
            "open_files_max": max(watch.files),
            "resident_max_mib": max(watch.resident) / (1 << 20),
        }

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("many_segments")
