"""Speed of replaying a log of small separate operations, up to the first acknowledged append.

An engine may log appends of one segment that share a frame as one operation, and replay would then
look faster than it is. So the store is filled round robin over more segments than appends are ever
un-acknowledged: no two appends of a segment can be in one frame. Tier 2 and checkpoints are held
back, and the process ends without closing the store. Each round opens a copy; that the store
replayed at least as many operations as there were appends is checked. The rate is those appends by
the time from `open` to the first acknowledgement.

Floor: reading the log's files. Skeleton: reading and scanning a log of as many records, checksums
verified. The log's pages are warm for all three, as after the crash of a process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.engine import open_store, sum_of
from bench.floor import MIB, files_under, read_rate
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of
from bench.skeleton import HEADER, Skeleton, scan
from bench.workspace import BenchError, copy_store, subfolder

QUESTION = "recovery of separate operations of 100 B, to the first acknowledged append"
APPEND_BYTES = 100
WINDOW = 1024
SEGMENTS = 2 * WINDOW
assert SEGMENTS > WINDOW, "or two appends of a segment could share a frame, and be one operation"
OPERATIONS_PER_S = 100_000
REPLAYED = ("recovery", "operations")
"""The count in `store.stats()`, one a container."""
HELD_BACK: dict[str, int | float] = {
    "flush_bytes": 64 << 20,
    "flush_age_s": 86_400.0,
    "unflushed_bytes_max": 4 << 30,
    "unflushed_target_bytes": 4 << 30,
    "checkpoint_bytes": 4 << 30,
    "checkpoint_operations": 1 << 40,
}
"""Options under which nothing leaves the log."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 15 s and 100 k operations quick, 50 s and 400 k else."""
    operations = 100_000 if quick else 400_000
    measured: dict[str, list[Measured]] = {side: [] for side in rounds.SIDES}
    with subfolder(directory, "filled") as filled:
        for side in ("skeleton", "engine"):
            child.call(
                __name__, f"fill_{side}", {"directory": str(filled), "operations": operations}
            )
        for index in range(rounds.count_of(quick=quick)):
            for side in rounds.SIDES:
                with subfolder(directory, f"{side}-{index}") as folder:
                    copy_store(filled, folder)
                    os.sync()
                    arguments = {"directory": str(folder), "operations": operations}
                    measured[side].append(child.call(__name__, f"{side}_round", arguments))
    engine = Samples.of(measured["engine"])
    skeleton = Samples.of(measured["skeleton"])
    row = Row(
        name=f"{operations:,} operations",
        unit="operations/s",
        floor=Samples.of(measured["floor"]),
        skeleton=skeleton,
        engine=engine,
        ratio=engine.median / skeleton.median,
        bar=f"≥ {OPERATIONS_PER_S:,}/s",
        met=engine.median >= OPERATIONS_PER_S,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="recovery", question=QUESTION, rows=[row])


def fill_engine(directory: str, operations: int) -> Measured:
    """Leave a store behind as a crash would, with `operations` acknowledged appends in its log
    alone.
    """

    async def work() -> None:
        store = await open_store(Path(directory) / "store", **HELD_BACK).__aenter__()
        for index in range(SEGMENTS):
            await store.create_segment(segment_name(index))
        data = bytes(APPEND_BYTES)

        def append(number: int) -> Awaitable[object]:
            return store.append(segment_name(number % SEGMENTS), data)

        await pipelined(append, operations, WINDOW)

    # Not asyncio.run: it would cancel the store's tasks, and a store that is asked to stop may tidy
    # up.
    asyncio.new_event_loop().run_until_complete(work())
    return {}


def fill_skeleton(directory: str, operations: int) -> Measured:
    """Leave a skeleton's file behind with `operations` records."""

    async def work() -> None:
        # Room for the gap at the end that the last batch may not cross, or the file would be
        # recycled.
        file_bytes = operations * (HEADER.size + APPEND_BYTES) + 2 * MIB
        skeleton = Skeleton(Path(directory) / "skeleton", file_bytes)
        data = bytes(APPEND_BYTES)
        await pipelined(lambda _: skeleton.append(data), operations, WINDOW)
        await skeleton.close()

    asyncio.run(work())
    return {}


def floor_round(directory: str, operations: int) -> Measured:
    """Operations per second of reading the bytes of the store's files."""
    _, seconds = read_rate(files_under(Path(directory) / "store"), MIB)
    return {"value": operations / seconds}


def skeleton_round(directory: str, operations: int) -> Measured:
    """Operations per second of reading and scanning the skeleton's file."""
    begun = time.perf_counter()
    found = scan((Path(directory) / "skeleton").read_bytes())
    seconds = time.perf_counter() - begun
    if len(found) != operations:
        message = f"{len(found)} records found of {operations}"
        raise BenchError(message)
    return {"value": operations / seconds}


def engine_round(directory: str, operations: int) -> Measured:
    """Appends replayed per second, from before `open` to the first acknowledged append."""

    async def measure() -> Measured:
        begun = time.perf_counter()
        async with open_store(Path(directory) / "store", **HELD_BACK) as store:
            opened = time.perf_counter() - begun
            offset = await store.append(segment_name(0), bytes(APPEND_BYTES))
            seconds = time.perf_counter() - begun
            replayed = sum_of(store.stats(), *REPLAYED)
        expected_offset = -(-operations // SEGMENTS) * APPEND_BYTES
        if replayed < operations or offset != expected_offset:
            message = (
                f"{replayed} of {operations} operations replayed, next offset {offset}, not "
                f"{expected_offset}"
            )
            raise BenchError(message)
        return {
            "value": operations / seconds,
            "replayed": replayed,
            "open_s": opened,
            "first_append_s": seconds,
        }

    return asyncio.run(measure())


def segment_name(index: int) -> str:
    """Of one segment; in the order of the numbers."""
    return f"bench/segment-{index:04}"


if __name__ == "__main__":
    from bench.suite import main

    main("recovery")
