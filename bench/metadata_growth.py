"""What checkpoints and restarts cost as a store grows, with all metadata in each checkpoint, and
with the catalog and idle segments.

For each number of segments there are two stores: `inline` writes a whole record of its container
with each checkpoint, and `catalog` has default settings. They take turns, each turn in a fresh
process. It opens the store, appends to one segment, and makes checkpoints, each after 1,000 random
segments changed. The block is the longest time that a callback held the event loop during a
checkpoint, in CPU time of its thread. Floor: the same number of bytes, written and synced, or read.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from bench import child, floor, metadata_checkpoints
from bench.child import Measured
from bench.engine import Store, open_store
from bench.metadata_checkpoints import (
    APPEND_BYTES,
    CHANGED,
    NEVER,
    Blocks,
    append_to,
    fill,
    measured_checkpoint,
    segment_name,
)
from bench.metadata_plot import plot
from bench.process import resident_bytes
from bench.report import CaseResult, Row, Samples
from bench.workspace import BenchError, subfolder

QUESTION = "a checkpoint with 1,000 segments changed, and a restart, as a store grows"
SIZES = (1_000, 3_000, 10_000, 30_000)
LARGE = (100_000, 300_000, 1_000_000)
"""`SEGMENTSTORE_BENCH_LARGE=1` adds them."""
WAYS: dict[str, dict[str, int]] = {
    # A container whose segments have to leave memory names a snapshot, whatever their bytes.
    "inline": metadata_checkpoints.WAYS["inline"],
    "catalog": {},
}
ROUNDS = 3
CHECKPOINTS = 2
"""In each round."""
_CHECKPOINT_EACH = 10_000
"""Segments of a store that gets them."""
_INLINE_BYTES_MIN = 60
"""Of a segment in a checkpoint that has all of them."""
_FLOOR_WRITES = 3
_READ_BYTES = 1 << 20
_TIMEOUT_S = 3600.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Two minutes; half a minute quick. The larger sizes take some 20 minutes more."""
    sizes = (SIZES[0], SIZES[2]) if quick else SIZES
    if os.environ.get("SEGMENTSTORE_BENCH_LARGE"):
        sizes = (*sizes, *LARGE)
    rows: list[Row] = []
    for segments in sizes:
        with subfolder(directory, f"growth-{segments}") as folder:
            rows += _rows_of(segments, folder, 1 if quick else ROUNDS)
    return CaseResult(case="metadata_growth", question=QUESTION, rows=rows)


def _rows_of(segments: int, folder: Path, rounds: int) -> list[Row]:
    def call(function: str, store: str, **rest: object) -> Measured:
        arguments = {"directory": str(folder / store), **rest}
        return child.call(__name__, function, arguments, timeout_s=_TIMEOUT_S)

    measured: dict[str, list[Measured]] = {way: [] for way in WAYS}
    floors: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for way in WAYS:
        (folder / way).mkdir()
        call("fill_round", way, way=way, segments=segments)
    for number in range(rounds):
        for way in WAYS:
            # What the other way left dirty is not to be written at this one's expense.
            os.sync()
            turn = call("engine_round", way, way=way, segments=segments, seed=number)
            measured[way].append(turn)
            sizes = {key: turn[key] for key in ("checkpoint_bytes", "metadata_bytes")}
            floors[way].append(call("floor_round", way, **sizes))
    return [row for way in WAYS for row in _rows(segments, way, measured[way], floors[way])]


def _rows(segments: int, way: str, measured: list[Measured], floors: list[Measured]) -> list[Row]:
    def samples(key: str) -> Samples:
        return Samples(tuple(each[key] for turn in measured for each in turn["checkpoints"]))

    name = f"{segments:,} segments, {way}"
    write, read = Samples.of(floors, "write_ms"), Samples.of(floors, "read_ms")
    taken, opened = samples("ms"), Samples.of(measured, "open_ms")
    return [
        Row(
            name=f"{name}: checkpoint",
            unit="ms",
            floor=write,
            engine=taken,
            ratio=taken.median / min(write.rounds),
            extra={"cpu_ms": samples("cpu_ms").median},
        ),
        Row(
            name=f"{name}: bytes",
            unit="bytes",
            engine=samples("bytes"),
            extra={"log": samples("log").median, "tier2": samples("tier2").median},
        ),
        Row(name=f"{name}: block", unit="ms", engine=samples("block_ms")),
        Row(
            name=f"{name}: restart",
            unit="ms",
            floor=read,
            engine=opened,
            ratio=opened.median / min(read.rounds),
            extra={
                key: Samples.of(measured, f"open_{key}").median
                for key in ("cpu_ms", "block_ms", "resident_mib")
            },
        ),
    ]


def fill_round(directory: str, way: str, segments: int) -> Measured:
    """A new store with so many segments, closed behind a checkpoint."""

    async def measure() -> Measured:
        begun = time.perf_counter()
        async with _opened(directory, way) as store:
            await fill(store, segments, _CHECKPOINT_EACH if way == "catalog" else NEVER)
            await store.checkpoint()
        return {"value": time.perf_counter() - begun}

    return asyncio.run(measure())


def engine_round(directory: str, way: str, segments: int, seed: int) -> Measured:
    """From opening the store to its first acknowledged append, and some checkpoints."""

    async def measure() -> Measured:
        # Not the time that imports take: the first opening of a process loads the engine.
        async with open_store(Path(directory) / f"empty-{seed}"):
            pass
        async with AsyncExitStack() as stack:
            with Blocks() as blocks:
                begun, cpu = time.perf_counter(), time.process_time()
                store = await stack.enter_async_context(_opened(directory, way))
                await store.append(segment_name(segments // 2), bytes(APPEND_BYTES))
                taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
            resident = resident_bytes() / (1 << 20)
            rng = random.Random(seed)
            # The first one after an opening encodes what later ones copy.
            await _changed_checkpoint(store, way, segments, rng)
            checkpoints = [
                await _changed_checkpoint(store, way, segments, rng) for _ in range(CHECKPOINTS)
            ]
        last = checkpoints[-1]
        if way == "inline" and last["log"] < segments * _INLINE_BYTES_MIN:
            raise BenchError(f"a checkpoint of {segments:,} segments has {last['log']:,} bytes")
        return {
            "value": taken * 1e3,
            "open_ms": taken * 1e3,
            "open_cpu_ms": cpu * 1e3,
            "open_block_ms": blocks.longest_ms,
            "open_resident_mib": resident,
            "checkpoints": checkpoints,
            "checkpoint_bytes": int(last["bytes"]),
            "metadata_bytes": int(last["log"]) if way == "inline" else _catalog_bytes(directory),
        }

    return asyncio.run(measure())


def floor_round(directory: str, checkpoint_bytes: int, metadata_bytes: int) -> Measured:
    """Milliseconds to write and sync what a checkpoint has, and to read what an opening reads."""
    path = Path(directory) / "floor"
    length = max(checkpoint_bytes, metadata_bytes)
    file = floor.preallocated(path, length)
    try:
        writes = floor.synced_writes(file, length, checkpoint_bytes, _FLOOR_WRITES)
    finally:
        file.close()
    os.truncate(path, metadata_bytes)
    _, read = floor.read_rate([path], _READ_BYTES)
    path.unlink()
    return {"value": min(writes) * 1e3, "write_ms": min(writes) * 1e3, "read_ms": read * 1e3}


def _opened(directory: str, way: str) -> AbstractAsyncContextManager[Store]:
    # Checkpoints come when they are asked for; nothing else is written to Tier 2 meanwhile.
    settings = {
        "checkpoint_operations": NEVER,
        "checkpoint_bytes": NEVER,
        "consolidation": False,
        **WAYS[way],
    }
    return open_store(Path(directory) / "store", **settings)


async def _changed_checkpoint(
    store: Store, way: str, segments: int, rng: random.Random
) -> Measured:
    changed = rng.sample(range(segments), min(CHANGED, segments))
    await append_to(store, [segment_name(number) for number in changed])
    await store.flush()
    figures = await measured_checkpoint(store, way)
    return {**figures, "bytes": figures["log"] + figures["tier2"]}


def _catalog_bytes(directory: str) -> int:
    """Of the catalog's files; those that are linked count once."""
    files = floor.files_under(Path(directory) / "store" / "catalog")
    return sum(
        {status.st_ino: status.st_size for status in (path.stat() for path in files)}.values()
    )


if __name__ == "__main__":
    from bench.suite import main

    main("metadata_growth", plot=plot)
