"""What the engine keeps of its rate when Tier 1 is BookKeeper instead of a file: 1,000 callers of
100 B, each awaited.

The same load, settings and process as `concurrent_callers`; only `tier1` differs. The file log
writes once and syncs once, BookKeeper's bookies three times each, on the same cores and the same
disk. Both sides press on for some seconds before anything counts: a Java machine that has just
started is not what a store runs on.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from bench import child, rounds
from bench.bookkeeper_frames import ratios_of
from bench.bookkeeper_service import NOTE, bookkeeper_service
from bench.child import Measured
from bench.concurrent_callers import APPEND_BYTES, CALLERS, floor_round
from bench.engine import SEGMENT, open_store
from bench.loads import LoadResult, concurrent_callers
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.workspace import subfolder

QUESTION = "1,000 callers, 100 B, each awaited: Tier 1 on BookKeeper against a file"
SHARE_OF_FILE = 0.5


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 60 s quick, 120 s else."""
    each = 300 if quick else 600
    measured: dict[str, list[Measured]] = {"floor": [], "file": [], "bookkeeper": []}
    with subfolder(directory, "bookkeeper") as folder, bookkeeper_service(folder) as cluster:
        for index in range(rounds.count_of(quick=quick)):
            for side, found in measured.items():
                with subfolder(folder, f"{side}-{index}") as place:
                    if side == "floor":
                        found.append(floor_round(str(place), CALLERS, each))
                        continue
                    tier1 = cluster.url(f"/bench-{index}") if side == "bookkeeper" else ""
                    arguments = {
                        "directory": str(place),
                        "tier1": tier1,
                        "callers": CALLERS,
                        "appends_each": each,
                    }
                    found.append(child.call(__name__, "engine_round", arguments))
    ratios = ratios_of(measured["bookkeeper"], measured["file"])
    ratio = statistics.median(ratios)
    row = Row(
        name="one segment",
        unit="appends/s",
        floor=Samples.of(measured["floor"]),
        skeleton=Samples.of(measured["file"]),
        engine=Samples.of(measured["bookkeeper"]),
        ratio=ratio,
        bar="≥ 50 % of the file log",
        met=ratio >= SHARE_OF_FILE,
        extra={
            **{f"file_{key}": value for key, value in extras_of(measured["file"]).items()},
            **extras_of(measured["bookkeeper"]),
        },
    )
    notes = [NOTE, "skeleton: the same store on the file log; ratio: median of the rounds'"]
    return CaseResult(case="bookkeeper_engine", question=QUESTION, rows=[row], notes=notes)


def engine_round(directory: str, tier1: str, callers: int, appends_each: int) -> Measured:
    """Appends per second of a store with default settings on that Tier 1."""

    async def work() -> Measured:
        options: dict[str, Any] = {"tier1": tier1} if tier1 else {}
        async with open_store(Path(directory) / "store", **options) as store:
            await store.create_segment(SEGMENT)
            data = bytes(APPEND_BYTES)

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            async def press(each: int) -> LoadResult:
                return await concurrent_callers(append, callers, each)

            await press(appends_each)
            result = await press(appends_each)
            return {"value": result.rate, **latency_ms(result.latencies)}

    return asyncio.run(work())


if __name__ == "__main__":
    from bench.suite import main

    main("bookkeeper_engine")
