"""What a store costs whose segments are mostly idle: in the catalog, and not in memory.

A store gets its segments, 1,000 at a time, and each gets one append; all is flushed. Then 1,000
callers append to random segments, one append in flight each. Nearly each of these segments is idle,
and comes into memory by it. Then the store is opened again, in fresh processes: at once, then
flushed and with a checkpoint, then without its local catalog. The garbage collector is tuned, as by
the command line. Floor: as many operations of their size by one producer who awaits nothing,
written to a bare file and synced.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import random
import shutil
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from operator import itemgetter
from pathlib import Path

import segmentstore
from bench import child, one_producer
from bench.child import Measured
from bench.engine import Store, open_store, sum_of
from bench.loads import pipelined
from bench.metadata_checkpoints import Blocks
from bench.process import resident_bytes
from bench.report import CaseResult, Row, Samples
from bench.workspace import subfolder
from segmentstore.contracts.loop_turns import longest_turns

QUESTION = "a store whose segments are mostly idle, by the number of segments"
SIZES = (100_000,)
LARGE = 1_000_000
"""`SEGMENTSTORE_BENCH_LARGE=1` adds it: it takes some ten minutes."""
ACTIVE = 25_000
CALLERS = 1_000
APPENDS = 100_000
_APPEND_BYTES = 100
_RESIDENT_MIB_MAX = 400
_BLOCK_MS_MAX = 20
_CREATED_PER_S = 20_000
_APPENDED_PER_S = 20_000
_PARTS_SHOWN = 6
_FIRST_APPEND_S = 2
_FIRST_APPEND_LOST_S = 20


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About a minute quick, with 50,000 segments."""
    sizes: tuple[int, ...] = (50_000,) if quick else SIZES
    if os.environ.get("SEGMENTSTORE_BENCH_LARGE"):
        sizes = (*sizes, LARGE)
    rows: list[Row] = []
    for segments in sizes:
        with subfolder(directory, f"idle-{segments}") as folder:
            rows += _rows_of(segments, folder, APPENDS // 5 if quick else APPENDS)
    return CaseResult(case="idle_segments", question=QUESTION, rows=rows)


def _rows_of(segments: int, folder: Path, appends: int) -> list[Row]:
    def call(function: str, **arguments: object) -> Measured:
        return child.call(__name__, function, {"directory": str(folder), **arguments})

    floor_arguments = {"directory": str(folder), "count": appends, "window": CALLERS}
    floor = child.call(one_producer.__name__, "floor_round", floor_arguments)
    made = call("engine_round", segments=segments, appends=appends)
    loaded = call("open_round", segments=segments)
    call("settle_round")
    whole = call("open_round", segments=segments)
    shutil.rmtree(folder / "store" / "catalog")
    lost = call("open_round", segments=segments)
    name = f"{segments:,} segments, {ACTIVE:,} active"
    return [
        _rate(f"{name}: create", made["created_per_s"], _CREATED_PER_S, floor["value"]),
        _rate(f"{name}: append to an idle one", made["value"], _APPENDED_PER_S, floor["value"]),
        _blocks(f"{name}: longest turn of the engine", made),
        bounded(f"{name}: resident", "MiB", made["resident_mib"], _RESIDENT_MIB_MAX),
        _restart(f"{name}: restart behind the load", loaded),
        bounded(f"{name}: restart to first append", "s", whole["value"], _FIRST_APPEND_S, whole),
        bounded(f"{name}: restart, catalog lost", "s", lost["value"], _FIRST_APPEND_LOST_S, lost),
    ]


def _rate(name: str, rate: float, least: int, floor: float) -> Row:
    return Row(
        name=name,
        unit="1/s",
        floor=Samples((floor,)),
        engine=Samples((rate,)),
        ratio=rate / least,
        bar=f"≥ {least:,}",
        met=rate >= least,
    )


def bounded(name: str, unit: str, value: float, most: int, of: Measured | None = None) -> Row:
    """A row whose value is to be `most` at most; `of` has what else was measured."""
    return Row(
        name=name,
        unit=unit,
        engine=Samples((value,)),
        ratio=value / most,
        bar=f"≤ {most:,}",
        met=value <= most,
        extra=_details(of) if of else {},
    )


def _details(measured: Measured) -> dict[str, float]:
    return {key: measured[key] for key in ("cpu_s", "block_ms", "resident_mib", "replayed")}


def _restart(name: str, measured: Measured) -> Row:
    seconds = Samples((measured["value"],))
    return Row(name=name, unit="s", engine=seconds, extra=_details(measured))


def _blocks(name: str, measured: Measured) -> Row:
    row = bounded(name, "ms", measured["block_ms"], _BLOCK_MS_MAX)
    longest = sorted(
        ((key, value) for key, value in measured.items() if key.endswith("_ms")),
        key=itemgetter(1),
        reverse=True,
    )
    return dataclasses.replace(row, extra=dict(longest[:_PARTS_SHOWN]))


def engine_round(directory: str, segments: int, appends: int) -> Measured:
    """Rates of creations, and of appends to idle segments; the longest turn of the engine in all of
    it; memory at the end.
    """
    segmentstore.tune_gc()

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store", active_segments_max=ACTIVE) as store:
            names = [segment_name(number) for number in range(segments)]
            created_s = await create_segments(store, names)
            await append_to(store, names)
            await store.flush()
            rng = random.Random(segments)
            await append_to(store, rng.choices(names, k=appends // 4))
            before = _activations(store)
            begun = time.perf_counter()
            await append_to(store, rng.choices(names, k=appends))
            took = time.perf_counter() - begun
            activations = _activations(store) - before
            resident = resident_bytes() / (1 << 20)
            turns = longest_turns()
        return {
            "value": appends / took,
            "created_per_s": segments / created_s,
            "activations": activations,
            "block_ms": max(turns.values()) * 1e3,
            **{f"{part.replace(' ', '_')}_ms": seconds * 1e3 for part, seconds in turns.items()},
            "resident_mib": resident,
        }

    return asyncio.run(measure())


def open_round(directory: str, segments: int) -> Measured:
    """Seconds from opening the store to its first acknowledged append, to an idle segment."""
    segmentstore.tune_gc()

    async def measure() -> Measured:
        # Not the time that imports take.
        importlib.import_module("segmentstore.opening")
        async with AsyncExitStack() as stack:
            with Blocks() as blocks:
                begun, cpu = time.perf_counter(), time.process_time()
                store = await stack.enter_async_context(
                    open_store(Path(directory) / "store", active_segments_max=ACTIVE)
                )
                await store.append(segment_name(segments // 2), bytes(_APPEND_BYTES))
                taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
            replayed = sum_of(store.stats(), "recovery", "operations")
            resident = resident_bytes() / (1 << 20)
        return {
            "value": taken,
            "cpu_s": cpu,
            "block_ms": blocks.longest_ms,
            "resident_mib": resident,
            "replayed": replayed,
        }

    return asyncio.run(measure())


def settle_round(directory: str) -> Measured:
    """Flush everything, and have a checkpoint that says so."""

    async def settle() -> Measured:
        async with open_store(Path(directory) / "store", active_segments_max=ACTIVE) as store:
            await store.flush()
            await store.checkpoint()
        return {"value": 0.0}

    return asyncio.run(settle())


async def create_segments(store: Store, names: Sequence[str]) -> float:
    """Create these, CALLERS at a time; the seconds it took."""
    begun = time.perf_counter()
    for first in range(0, len(names), CALLERS):
        await asyncio.gather(*map(store.create_segment, names[first : first + CALLERS]))
    return time.perf_counter() - begun


async def append_to(store: Store, names: Sequence[str]) -> None:
    """One append to each, CALLERS in flight."""
    data = bytes(_APPEND_BYTES)

    def append(number: int) -> Awaitable[object]:
        return store.append(names[number], data)

    await pipelined(append, len(names), CALLERS)


def _activations(store: Store) -> int:
    return sum_of(store.stats(), "active_segments", "activations")


def segment_name(number: int) -> str:
    """Of one segment; in the order of the numbers."""
    return f"bench/segment-{number:07}"


if __name__ == "__main__":
    from bench.suite import main

    main("idle_segments")
