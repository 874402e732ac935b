"""Whether writers, readers of the tail and readers who catch up leave each other alone.

Three patterns in one store: appends of 1 KiB, 500 a second by the clock, each charged from when it
was due; a reader that follows them at the tail. The third reads a cold segment as fast as it can,
again and again. Each is measured by itself (the column "floor") and beside the two others (the
column "engine"), in processes of their own that take turns. The bar is the writer's: its slowest
hundredth may take half as long again beside the others.

The cold segment's objects are in the kernel's cache, so that the reader is never slower than the
processor: that is the worst it can do to the others. What it does on the loop (CRC32C of what it
got) is the bench's.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench import child
from bench.child import Measured
from bench.engine import SEGMENT, Store, open_store
from bench.floor import MIB
from bench.report import CaseResult, Row, Samples, extras_of
from bench.tail_reader import TailTimeline, append_at_rate
from bench.workspace import require_free_bytes, subfolder
from segmentstore.contracts.checksum import crc32c

QUESTION = "writes, tail reads and catch-up reads side by side"
APPENDS_PER_S = 500
APPEND_BYTES = 1024
RATIO_MAX = 1.5
PATTERNS = {
    "writes": ("writes",),
    "tail": ("writes", "tail"),
    "catch_up": ("catch_up",),
    "all": ("writes", "tail", "catch_up"),
}
"""What runs together in a round."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 25 s quick, 2 min else; needs 1 GiB on disk."""
    total_bytes = (128 if quick else 512) * MIB
    seconds = 3 if quick else 8
    require_free_bytes(directory, 3 * total_bytes)
    measured: dict[str, list[Measured]] = {name: [] for name in PATTERNS}
    with subfolder(directory, "filled") as folder:
        filled = child.call(
            "bench.catch_up", "fill", {"directory": str(folder), "total_bytes": total_bytes}
        )
        for index in range(2 if quick else 5):
            for name, patterns in PATTERNS.items():
                arguments = {
                    "directory": str(folder),
                    "name": f"{name}-{index}",
                    "patterns": patterns,
                    "length": filled["length"],
                    "seconds": seconds,
                }
                measured[name].append(child.call(__name__, "round_of", arguments))
    writes, everything = measured["writes"], measured["all"]
    return CaseResult(
        case="isolation",
        question=QUESTION,
        rows=[
            _row(
                "p99 of an append", "ms", "append_p99_ms", writes, everything, ratio_max=RATIO_MAX
            ),
            _row("p50 of an append", "ms", "append_p50_ms", writes, everything),
            _row(
                "p99 from append to tail reader", "ms", "tail_p99_ms", measured["tail"], everything
            ),
            _row("catch-up read", "MB/s", "catch_up_mb_per_s", measured["catch_up"], everything),
        ],
        notes=["floor: the pattern alone (the tail reader: with the writer); engine: all together"],
    )


def _row(
    name: str,
    unit: str,
    key: str,
    alone: list[Measured],
    beside: list[Measured],
    *,
    ratio_max: float | None = None,
) -> Row:
    floor, engine = Samples.of(alone, key), Samples.of(beside, key)
    ratio = engine.median / floor.median
    return Row(
        name=name,
        unit=unit,
        floor=floor,
        engine=engine,
        ratio=ratio,
        bar="" if ratio_max is None else f"≤ {ratio_max} x alone",
        met=None if ratio_max is None else ratio <= ratio_max,
        extra={} if ratio_max is None else extras_of(beside),
    )


def round_of(
    directory: str, name: str, patterns: list[str], length: int, seconds: float
) -> Measured:
    """Milliseconds and megabytes per second of the patterns asked for, together, for `seconds`."""

    async def measure() -> Measured:
        folder = Path(directory)
        async with open_store(folder / "store", tier2=(folder / "tier2").as_uri()) as store:
            stop = asyncio.Event()
            reading = (
                asyncio.create_task(_catch_up(store, length, stop))
                if "catch_up" in patterns
                else None
            )
            result: Measured = {}
            if "writes" in patterns:
                result |= await _write(
                    store, name, int(seconds * APPENDS_PER_S), follow="tail" in patterns
                )
            else:
                await asyncio.sleep(seconds)
            stop.set()
            if reading is not None:
                result["catch_up_mb_per_s"] = await reading
            return result

    return asyncio.run(measure())


async def _write(store: Store, name: str, appends: int, *, follow: bool) -> Measured:
    await store.create_segment(name)
    timeline = TailTimeline(appends, APPEND_BYTES)
    data = bytes(APPEND_BYTES)

    async def follow_the_tail() -> None:
        offset = 0
        async for chunk in store.reader(name, follow=True):
            offset += len(chunk)
            timeline.read_up_to(offset)
            if offset >= appends * APPEND_BYTES:
                return

    follower = asyncio.create_task(follow_the_tail()) if follow else None
    await append_at_rate(lambda: store.append(name, data), timeline, APPENDS_PER_S)
    if follower is not None:
        await follower
    else:
        timeline.read = timeline.acknowledged
    summary = timeline.summary()
    result = {
        "append_p50_ms": summary["acknowledged_p50_ms"],
        "append_p99_ms": summary["acknowledged_p99_ms"],
    }
    if follow:
        result["tail_p99_ms"] = summary["end_to_end_p99_ms"]
    return result


async def _catch_up(store: Store, length: int, stop: asyncio.Event) -> float:
    """Megabytes per second of reading the cold segment from its beginning to its end, until asked
    to stop.
    """
    total, checksum = 0, 0
    begun = time.perf_counter()
    while not stop.is_set():
        received = 0
        async for chunk in store.reader(SEGMENT):
            checksum = crc32c(chunk, checksum)
            received += len(chunk)
            if received >= length or stop.is_set():
                break
        total += received
    return total / (time.perf_counter() - begun) / 1e6


if __name__ == "__main__":
    from bench.suite import main

    main("isolation")
