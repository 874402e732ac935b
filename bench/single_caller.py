"""How long one caller waits who makes one append at a time.

The three sides take turns in one process, a hundred operations each, so that a change of the disk's
speed during the run affects all of them. p50 is compared with p50 over all turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from bench import child
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import MIB, preallocated, synced_writes
from bench.loads import one_at_a_time, percentile
from bench.report import CaseResult, Row, Samples, extras_of
from bench.skeleton import HEADER, Skeleton
from bench.workspace import subfolder

QUESTION = "one caller, 100 B, one at a time"
APPEND_BYTES = 100
TURN = 100
FILE_BYTES = 16 * MIB
TIMES_FLOOR = 1.5
PLUS_MS = 0.1


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 3 s quick, 10 s else."""
    with subfolder(directory, "turns") as folder:
        measured = child.call(
            __name__, "turns_round", {"directory": str(folder), "turns": 5 if quick else 30}
        )
    floor, skeleton, engine = (_summary(measured[side]) for side in ("floor", "skeleton", "engine"))
    allowed_ms = TIMES_FLOOR * floor["value"] + PLUS_MS
    row = Row(
        name="p50",
        unit="ms",
        floor=Samples.of([floor]),
        skeleton=Samples.of([skeleton]),
        engine=Samples.of([engine]),
        ratio=engine["value"] / floor["value"],
        bar=f"≤ 1.5 x floor + 0.1 ms = {allowed_ms:.3f} ms",
        met=engine["value"] <= allowed_ms,
        extra=extras_of([engine]),
    )
    return CaseResult(case="single_caller", question=QUESTION, rows=[row])


def turns_round(directory: str, turns: int) -> Measured:
    """Seconds of every operation of each side."""

    async def measure() -> Measured:
        folder = Path(directory)
        data = bytes(APPEND_BYTES)
        seconds: dict[str, list[float]] = {"floor": [], "skeleton": [], "engine": []}
        file = preallocated(folder / "floor", FILE_BYTES)
        skeleton = Skeleton(folder / "skeleton", FILE_BYTES)
        async with open_store(folder / "store") as store:
            await store.create_segment(SEGMENT)

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            await one_at_a_time(append, TURN)
            for _ in range(turns):
                seconds["floor"] += synced_writes(
                    file, FILE_BYTES, APPEND_BYTES + HEADER.size, TURN
                )
                seconds["skeleton"] += await one_at_a_time(lambda _: skeleton.append(data), TURN)
                seconds["engine"] += await one_at_a_time(append, TURN)
        await skeleton.close()
        file.close()
        return dict(seconds)

    return asyncio.run(measure())


def _summary(seconds: list[float]) -> Measured:
    ordered = sorted(seconds)
    return {"value": percentile(ordered, 0.5) * 1e3, "p99_ms": percentile(ordered, 0.99) * 1e3}


if __name__ == "__main__":
    from bench.suite import main

    main("single_caller")
