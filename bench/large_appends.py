"""Bytes a second with large appends, against raw sequential write + fdatasync of 1 MiB pieces.

The engine runs with default settings, and its storage writer moves the bytes to Tier 2 meanwhile.
Once that is on the disk of the log: each byte is written twice, so the disk could do half of the
floor. Once it is in a memory file system, and the disk has the log alone. The floor is 1 MiB pieces
for both sizes, as the bar says.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.floor import MIB, synced_write_rate
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import Skeleton
from bench.workspace import BenchError

QUESTION = "64 KiB and 1 MiB appends"
LOADS = {
    "64 KiB, 64 in flight": (65_536, 64, 512 * MIB),
    "1 MiB, 8 in flight": (MIB, 8, 512 * MIB),
    "64 KiB, 64 in flight, 4 GiB": (65_536, 64, 4096 * MIB),
}
"""Bytes of an append, how many one producer keeps in flight, and all of them. The last one is more
than memory holds: what Tier 2 does not take in time has to stay elsewhere.
"""
SHARE_OF_FLOOR = 0.6
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a folder in it gets a name of its own
"""Of a file system in memory, on Linux."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 30 s quick, four minutes else."""
    rows = []
    for name, (append_bytes, window, total_bytes) in LOADS.items():
        measured = rounds.interleaved(
            __name__,
            rounds.count_of(quick=quick),
            directory,
            sides=(*rounds.SIDES, "elsewhere"),
            append_bytes=append_bytes,
            window=window,
            total_bytes=total_bytes // (4 if quick else 1),
        )
        rows.append(_row(f"{name}; Tier 2 on the same disk", measured, "engine", 2))
        rows.append(_row(f"{name}; Tier 2 in memory", measured, "elsewhere", 1))
    return CaseResult(case="large_appends", question=QUESTION, rows=rows)


def _row(name: str, measured: dict[str, list[Measured]], side: str, writes: int) -> Row:
    """`writes` is how often the disk gets each byte."""
    engine, floor = Samples.of(measured[side]), Samples.of(measured["floor"])
    ratio = engine.median / (max(floor.rounds) / writes)
    return Row(
        name=name,
        unit="MB/s",
        floor=floor,
        skeleton=Samples.of(measured["skeleton"]),
        engine=engine,
        ratio=ratio,
        bar=f"≥ 60 % of {'half of ' if writes > 1 else ''}raw 1 MiB pieces",
        met=ratio >= SHARE_OF_FLOOR,
        extra=extras_of(measured[side]),
    )


def floor_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes (10^6) per second of 1 MiB pieces; the parameters of the other sides are not
    checked.
    """
    del append_bytes, window
    return {"value": synced_write_rate(Path(directory), MIB, total_bytes) / 1e6}


def skeleton_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes per second of the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        data = os.urandom(append_bytes)
        result = await pipelined(
            lambda _: skeleton.append(data), total_bytes // append_bytes, window
        )
        await skeleton.close()
        return {"value": result.rate * append_bytes / 1e6, **latency_ms(result.latencies)}

    return asyncio.run(measure())


def engine_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """Megabytes per second of the engine, one segment, with Tier 2 beside the log."""
    return asyncio.run(_measure(directory, append_bytes, window, total_bytes))


def elsewhere_round(directory: str, append_bytes: int, window: int, total_bytes: int) -> Measured:
    """The same with Tier 2 in memory. Raises BenchError if there is no room for it."""
    if not MEMORY_FOLDER.is_dir() or shutil.disk_usage(MEMORY_FOLDER).free < 2 * total_bytes:
        message = f"{MEMORY_FOLDER} is to have room for {2 * total_bytes // MIB} MiB of Tier 2"
        raise BenchError(message)
    with tempfile.TemporaryDirectory(prefix="segmentstore-bench-", dir=MEMORY_FOLDER) as folder:
        tier2 = Path(folder).as_uri()
        return asyncio.run(_measure(directory, append_bytes, window, total_bytes, tier2=tier2))


async def _measure(
    directory: str, append_bytes: int, window: int, total_bytes: int, **options: object
) -> Measured:
    async with open_store(Path(directory) / "store", **options) as store:
        await store.create_segment(SEGMENT)
        data = os.urandom(append_bytes)

        def append(_: int) -> Awaitable[object]:
            return store.append(SEGMENT, data)

        result = await pipelined(append, total_bytes // append_bytes, window)
        return {"value": result.rate * append_bytes / 1e6, **latency_ms(result.latencies)}


if __name__ == "__main__":
    from bench.suite import main

    main("large_appends")
