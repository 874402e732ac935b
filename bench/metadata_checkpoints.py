"""What a checkpoint and a restart cost, by the number of segments, in the log and by reference.

A store gets its segments, each with one chunk. Then, some times: 1,000 random segments change, all
is flushed, and a checkpoint is made. The loop's longest block is the longest time that a callback
held it, in CPU time of its thread: what other work on the machine takes is not in it. Afterwards
the store is opened again, in a fresh process: with its local catalog, and without. Floor: the same
number of bytes, written and synced; and read.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import random
import shutil
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from bench import child
from bench.child import Measured
from bench.engine import Store, open_store, sum_of
from bench.loads import pipelined
from bench.process import resident_bytes
from bench.report import CaseResult, Row, Samples
from bench.workspace import subfolder

QUESTION = "a checkpoint with 1,000 segments changed, and a restart, by the number of segments"
SIZES = (1_000, 10_000, 100_000)
LARGE = 1_000_000
"""`SEGMENTSTORE_BENCH_LARGE=1` adds it: it takes some ten minutes."""
CHANGED = 1_000
CHECKPOINTS = 20
UPLOADED_SHARE_MAX = 0.05
APPEND_BYTES = 100
_WINDOW = 1024
_CREATE_TOGETHER = 1000
_TICK_S = 0.001
_COPY_WAITS = 10_000
NEVER = 1 << 40
ALL_IN_MEMORY = {"active_segments_max": NEVER, "active_metadata_bytes_max": NEVER}
WAYS: dict[str, dict[str, int]] = {
    "inline": {"inline_checkpoint_bytes_max": NEVER, **ALL_IN_MEMORY},
    "by reference": ALL_IN_MEMORY,
}


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About half a minute quick, ten minutes else; one round of each size, both ways in turns."""
    sizes = SIZES[:2] if quick else SIZES
    if os.environ.get("SEGMENTSTORE_BENCH_LARGE"):
        sizes = (*sizes, LARGE)
    rows: list[Row] = []
    for segments in sizes:
        for way in WAYS:
            with subfolder(directory, f"{way}-{segments}".replace(" ", "-")) as folder:
                rows += _rows_of(segments, way, folder, 3 if quick else CHECKPOINTS)
    return CaseResult(case="metadata_checkpoints", question=QUESTION, rows=rows)


def _rows_of(segments: int, way: str, folder: Path, checkpoints: int) -> list[Row]:
    def call(function: str, **arguments: object) -> Measured:
        return child.call(__name__, function, {"directory": str(folder), **arguments})

    made = call("engine_round", segments=segments, way=way, checkpoints=checkpoints)
    total = int(made["all_bytes"])
    floor = call("floor_round", log_bytes=int(made["bytes"]), catalog_bytes=total)
    opened = call("open_round", segments=segments, way=way)
    name = f"{segments:,} segments {way}"
    share = made["bytes"] / total
    bounded = way == "by reference" and segments >= 100_000
    rows = [
        Row(
            name=f"{name}: checkpoint",
            unit="ms",
            floor=Samples((floor["write_ms"],)),
            engine=Samples(tuple(made["times_ms"])),
            extra={key: made[key] for key in ("cpu_ms", "block_ms", "resident_mib")},
        ),
        Row(
            name=f"{name}: bytes of a checkpoint",
            unit="bytes",
            engine=Samples(tuple(made["sizes"])),
            ratio=share,
            bar=f"≤ {UPLOADED_SHARE_MAX:.0%} of all" if bounded else "",
            met=share <= UPLOADED_SHARE_MAX if bounded else None,
            extra={key: made[key] for key in ("log_bytes", "tier2_bytes", "all_bytes")},
        ),
        _restart(f"{name}: restart", floor, opened),
    ]
    if way == "by reference":
        shutil.rmtree(folder / "store" / "catalog")
        rows.append(
            _restart(
                f"{name}: restart, catalog lost",
                floor,
                call("open_round", segments=segments, way=way),
            )
        )
    return rows


def _restart(name: str, floor: Measured, opened: Measured) -> Row:
    return Row(
        name=name,
        unit="ms",
        floor=Samples((floor["read_ms"],)),
        engine=Samples((opened["value"],)),
        extra={key: opened[key] for key in ("cpu_ms", "block_ms", "resident_mib")},
    )


def floor_round(directory: str, log_bytes: int, catalog_bytes: int) -> Measured:
    """Milliseconds to write and sync as much as a checkpoint does, and to read all there is."""
    path = Path(directory) / "floor"
    data = bytes(catalog_bytes)
    with path.open("wb") as file:
        begun = time.perf_counter()
        file.write(data[:log_bytes])
        file.flush()
        os.fdatasync(file.fileno())
        written = time.perf_counter() - begun
        file.write(data[log_bytes:])
    begun = time.perf_counter()
    path.read_bytes()
    read = time.perf_counter() - begun
    return {"value": written * 1e3, "write_ms": written * 1e3, "read_ms": read * 1e3}


def engine_round(directory: str, segments: int, way: str, checkpoints: int) -> Measured:
    """Checkpoints of a store with so many segments; medians of time, CPU and bytes, the longest
    block of all, bytes of the first checkpoint by reference, or of any inline.
    """

    async def measure() -> Measured:
        location = Path(directory) / "store"
        async with open_store(location, **_settings(way)) as store:
            names = await fill(store, segments)
            before = _sent(store)
            await store.checkpoint()
            await _copied(store, way, before)
            everything = _sent(store) - before
            choose = random.Random(segments)
            figures: list[Measured] = []
            for _ in range(checkpoints):
                changed = choose.sample(names, min(CHANGED, segments))
                await append_to(store, changed)
                await store.flush()
                figures.append(await measured_checkpoint(store, way))
            resident = resident_bytes() / (1 << 20)
        return {
            "value": _mean(figures, "ms"),
            "times_ms": [each["ms"] for each in figures],
            "sizes": [each["log"] + each["tier2"] for each in figures],
            "bytes": _mean(figures, "log") + _mean(figures, "tier2"),
            "log_bytes": _mean(figures, "log"),
            "tier2_bytes": _mean(figures, "tier2"),
            "cpu_ms": _mean(figures, "cpu_ms"),
            "block_ms": max(each["block_ms"] for each in figures),
            "all_bytes": everything,
            "resident_mib": resident,
        }

    return asyncio.run(measure())


def open_round(directory: str, segments: int, way: str) -> Measured:
    """Milliseconds from opening the store to its first acknowledged append."""

    async def measure() -> Measured:
        location = Path(directory) / "store"
        # Not the time that imports take.
        importlib.import_module("segmentstore")
        async with AsyncExitStack() as stack:
            with Blocks() as blocks:
                begun, cpu = time.perf_counter(), time.process_time()
                store = await stack.enter_async_context(open_store(location, **_settings(way)))
                await store.append(segment_name(segments - 1), bytes(APPEND_BYTES))
                taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
            resident = resident_bytes() / (1 << 20)
        return {
            "value": taken * 1e3,
            "cpu_ms": cpu * 1e3,
            "block_ms": blocks.longest_ms,
            "resident_mib": resident,
        }

    return asyncio.run(measure())


class Blocks:
    """The longest turn of the running loop while it is entered, in CPU time of its thread."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        gc.collect()
        self._task = asyncio.get_running_loop().create_task(self._tick())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _tick(self) -> None:
        at = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_ms = max(self.longest_ms, (now - at) * 1e3)
            at = now
            await asyncio.sleep(_TICK_S)
            now = time.thread_time()
            self.longest_ms = max(self.longest_ms, (now - at) * 1e3)
            at = now


def _settings(way: str) -> dict[str, object]:
    # Checkpoints come when they are asked for.
    return {"checkpoint_operations": NEVER, "checkpoint_bytes": NEVER, **WAYS[way]}


def segment_name(number: int) -> str:
    """Of the segment with this number."""
    return f"bench/segment-{number:07}"


async def fill(store: Store, segments: int, checkpoint_each: int = NEVER) -> list[str]:
    """Create so many segments, with one chunk in Tier 2 each; gives their names. A checkpoint after
    `checkpoint_each` lets segments leave memory before others have to wait for it.
    """
    names = [segment_name(number) for number in range(segments)]
    for first in range(0, segments, _CREATE_TOGETHER):
        some = names[first : first + _CREATE_TOGETHER]
        await asyncio.gather(*map(store.create_segment, some))
        # Before they become idle.
        await append_to(store, some)
        if (first + len(some)) % checkpoint_each == 0:
            await store.flush()
            await store.checkpoint()
    await store.flush()
    return names


async def append_to(store: Store, names: list[str]) -> None:
    """One append to each."""
    data = bytes(APPEND_BYTES)

    def append(number: int) -> Awaitable[object]:
        return store.append(names[number], data)

    await pipelined(append, len(names), min(_WINDOW, len(names)))


async def measured_checkpoint(store: Store, way: str) -> Measured:
    """Make a checkpoint: its time, CPU time, longest block, and bytes to the log and to Tier 2."""
    log, sent = _logged(store), _sent(store)
    with Blocks() as blocks:
        begun, cpu = time.perf_counter(), time.process_time()
        await store.checkpoint()
        taken = time.perf_counter() - begun
        await _copied(store, way, sent)
        cpu = time.process_time() - cpu
    return {
        "ms": taken * 1e3,
        "cpu_ms": cpu * 1e3,
        "block_ms": blocks.longest_ms,
        "log": _logged(store) - log,
        "tier2": _sent(store) - sent,
    }


async def _copied(store: Store, way: str, before: int) -> None:
    """Metadata in the log are copied to Tier 2 by a task of its own."""
    for _ in range(_COPY_WAITS if way == "inline" else 0):
        if _sent(store) > before:
            break
        await asyncio.sleep(_TICK_S)


def _sent(store: Store) -> int:
    return sum_of(store.stats(), "tier2", "bytes_sent")


def _logged(store: Store) -> int:
    return sum_of(store.stats(), "log", "bytes_appended")


def _mean(figures: list[Measured], key: str) -> float:
    return float(sum(each[key] for each in figures)) / len(figures)


if __name__ == "__main__":
    from bench.suite import main

    main("metadata_checkpoints")
