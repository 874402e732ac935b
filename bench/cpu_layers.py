"""Where the CPU of an append goes, by layer: `python -m bench.cpu_layers` prints a table.

No case of the suite: it has no floor to compare with, and no bar. Each load runs once, in a process
of its own, with default settings unless it says otherwise. It is warmed up before. What counts is
the CPU from its first call to its last acknowledgement, flushes behind it included as far as they
fall into that time. How a layer is found, and how wrong that may be: bench/cpu_sampler.py. The row
of other threads is the process's CPU less the main thread's: the log's writer, uploads, RocksDB.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import segmentstore
from bench import child, idle_segments, machine, recovery
from bench.child import Measured
from bench.cpu_sampler import LAYERS, CpuSampler, standard_error
from bench.engine import SEGMENT, Store, open_store
from bench.loads import concurrent_callers, pipelined
from bench.report import number
from bench.workspace import BenchError, subfolder, work_folder

_MODULE: Final = "bench.cpu_layers"
"""As a child imports it: its own name is another where it is the command."""
CALLERS: Final = 1000
WINDOW: Final = 1024
SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 65_536
LARGE_WINDOW: Final = 64
ACTIVE: Final = 5_000
"""Segments in memory, of those that are mostly idle."""
LOADS: Final = {
    "callers": "1,000 callers, 100 B, one segment",
    "producer": "one producer, 100 B, 1,024 in flight",
    "large": "one producer, 64 KiB, 64 in flight",
    "idle": "appends to idle segments",
    "replay": "replay, an operation",
}
"""Load, and what the table calls it."""
_QUICK: Final[Mapping[str, dict[str, int]]] = {
    "callers": {"appends_each": 600},
    "producer": {"count": 1_000_000},
    "large": {"count": 12_000},
    "idle": {"segments": 30_000, "appends": 20_000},
    "replay": {"operations": 200_000},
}
_FULL: Final[Mapping[str, dict[str, int]]] = {
    "callers": {"appends_each": 2_000},
    "producer": {"count": 2_000_000},
    "large": {"count": 40_000},
    "idle": {"segments": 100_000, "appends": 60_000},
    "replay": {"operations": 800_000},
}


def run(directory: Path, *, quick: bool) -> dict[str, Measured]:
    """What each load came to: operations, CPU seconds, samples by layer. A minute quick, five else.

    Raises BenchError if a load fails.
    """
    measured: dict[str, Measured] = {}
    for load, parameters in (_QUICK if quick else _FULL).items():
        with subfolder(directory, load) as folder:
            arguments = {"directory": str(folder), **parameters}
            if load == "replay":
                child.call(recovery.__name__, "fill_engine", arguments)
            measured[load] = child.call(_MODULE, f"{load}_round", arguments)
    return measured


def table(measured: Mapping[str, Measured]) -> str:
    """Markdown: µs of CPU for an operation, and per cent of the process's, by layer and load."""
    columns = [_column(each) for each in measured.values()]
    titles = " | ".join(LOADS[load] for load in measured)
    lines = [f"| µs of CPU for one, share | {titles} |", "| --- |" + " --- |" * len(columns)]
    lines += [f"| {name} | {' | '.join(each[name] for each in columns)} |" for name in columns[0]]
    return "\n".join(lines)


def _column(measured: Measured) -> dict[str, str]:
    process_s, main_s, samples = measured["process_s"], measured["main_s"], measured["samples"]
    taken = sum(samples.values())

    def cell(seconds: float) -> str:
        each = number(seconds / measured["operations"] * 1e6)
        return f"{each} ({seconds / process_s:.0%})" if seconds else ""

    cells = {
        layer: cell(main_s * samples.get(layer, 0) / taken if taken else 0.0) for layer in LAYERS
    }
    cells["other threads"] = cell(process_s - main_s)
    cells["all"] = cell(process_s)
    cells["samples; error of a fifth"] = f"{taken}; ± {standard_error(0.2, taken):.1%}"
    return cells


def callers_round(directory: str, appends_each: int) -> Measured:
    """1,000 callers of one segment, each awaiting its append before the next."""

    async def press(store: Store) -> Measured:
        append = _appends_of(store, SMALL_BYTES)
        await concurrent_callers(append, CALLERS, 10)
        with CpuSampler() as sampler:
            await concurrent_callers(append, CALLERS, appends_each)
        return _measured(sampler, CALLERS * appends_each)

    return _with_store(directory, press)


def producer_round(directory: str, count: int) -> Measured:
    """One producer of small appends."""
    return _pipelined_round(directory, count, SMALL_BYTES, WINDOW)


def large_round(directory: str, count: int) -> Measured:
    """One producer of 64 KiB appends."""
    return _pipelined_round(directory, count, LARGE_BYTES, LARGE_WINDOW)


def _pipelined_round(directory: str, count: int, append_bytes: int, window: int) -> Measured:
    async def press(store: Store) -> Measured:
        append = _appends_of(store, append_bytes)
        await pipelined(append, 10 * window, window)
        with CpuSampler() as sampler:
            await pipelined(append, count, window)
        return _measured(sampler, count)

    return _with_store(directory, press)


def idle_round(directory: str, segments: int, appends: int) -> Measured:
    """1,000 appends in flight to random segments, of which only ACTIVE are in memory. The collector
    is tuned, as by the command line.
    """
    segmentstore.tune_gc()

    async def press(store: Store) -> Measured:
        names = [idle_segments.segment_name(number) for number in range(segments)]
        await idle_segments.create_segments(store, names)
        await store.flush()
        rng = random.Random(segments)
        await idle_segments.append_to(store, rng.choices(names, k=appends // 4))
        targets = rng.choices(names, k=appends)
        with CpuSampler() as sampler:
            await idle_segments.append_to(store, targets)
        return _measured(sampler, appends)

    return _with_store(directory, press, active_segments_max=ACTIVE)


def replay_round(directory: str, operations: int) -> Measured:
    """From `open` to the first acknowledged append, of a log of separate operations of 100 B."""
    # Not the time that imports take.
    importlib.import_module("segmentstore.opening")

    async def measure() -> Measured:
        with CpuSampler() as sampler:
            # Abandoned with the process: a close is no part of a replay.
            store = await open_store(Path(directory) / "store", **recovery.HELD_BACK).__aenter__()
            await store.append(recovery.segment_name(0), bytes(SMALL_BYTES))
        return _measured(sampler, operations)

    return asyncio.new_event_loop().run_until_complete(measure())


def _with_store(
    directory: str, press: Callable[[Store], Awaitable[Measured]], **options: int
) -> Measured:
    async def measure() -> Measured:
        async with open_store(Path(directory) / "store", **options) as store:
            await store.create_segment(SEGMENT)
            return await press(store)

    return asyncio.run(measure())


def _appends_of(store: Store, append_bytes: int) -> Callable[[int], Awaitable[object]]:
    data = bytes(append_bytes)
    return lambda _: store.append(SEGMENT, data)


def _measured(sampler: CpuSampler, operations: int) -> Measured:
    return {"operations": operations, **sampler.shares()._asdict()}


def main() -> None:
    """Command line; exits with 2 if a load could not be measured."""
    parser = argparse.ArgumentParser(description="Divide the CPU of an append among the layers.")
    parser.add_argument("--quick", action="store_true", help="fewer operations")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples there as well")
    arguments = parser.parse_args()
    try:
        with work_folder() as folder:
            facts = machine.facts(folder)
            measured = run(folder, quick=arguments.quick)
    except BenchError as error:
        print(f"cpu_layers: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(table(measured))
    print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    if arguments.json is not None:
        content = {"quick": arguments.quick, "machine": facts, "loads": measured}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
