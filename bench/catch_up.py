"""Speed of reading a segment from Tier 2 when nothing of it is in memory or cache.

One store is filled and flushed once; each round then drops the cache folder and the kernel's pages
and reads the segment whole, in a fresh process. Floor: preads of the very same object files, whole,
in 1 MiB pieces, one thread. Skeleton: the same preads through an executor with a few in flight,
CRC32C of each.

What the fill leaves to be consolidated is consolidated before any round: `isolation` measures reads
beside other work. The engine's side includes the bench's own CRC32C over what it got (about 40 us a
MiB), which is compared at the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, flush_and_settle, open_store, read_through
from bench.floor import MIB, evict, files_under, read_rate
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of
from bench.workspace import require_free_bytes, subfolder
from segmentstore.contracts.checksum import crc32c

QUESTION = "catch-up read from Tier 2, cold"
PIECE_BYTES = MIB
PIECES_AHEAD = 4
WINDOW = 8
SHARE_OF_FLOOR = 0.6
_OBJECT_BYTES_MIN = 4096
"""Smaller files in the Tier-2 folder are the provider's own marks, not block objects."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s and 128 MiB quick, 60 s and 1 GiB else; needs three times the bytes on disk."""
    total_bytes = (128 if quick else 1024) * MIB
    require_free_bytes(directory, 3 * total_bytes)
    with subfolder(directory, "filled") as folder:
        filled = child.call(
            __name__, "fill", {"directory": str(folder), "total_bytes": total_bytes}
        )
        measured: dict[str, list[Measured]] = {side: [] for side in rounds.SIDES}
        for _ in range(rounds.count_of(quick=quick)):
            for side in rounds.SIDES:
                # Only what is on disk already can be evicted.
                os.sync()
                evict(files_under(folder))
                measured[side].append(
                    child.call(__name__, f"{side}_round", {"directory": str(folder), **filled})
                )
    engine, floor = Samples.of(measured["engine"]), Samples.of(measured["floor"])
    ratio = engine.median / max(floor.rounds)
    row = Row(
        name=f"{total_bytes // MIB:,} MiB in pieces of 1 MiB",
        unit="MB/s",
        floor=floor,
        skeleton=Samples.of(measured["skeleton"]),
        engine=engine,
        ratio=ratio,
        bar="≥ 60 % of raw preads",
        met=ratio >= SHARE_OF_FLOOR,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="catch_up", question=QUESTION, rows=[row])


def fill(directory: str, total_bytes: int) -> Measured:
    """Make a store whose one segment has `total_bytes` distinct bytes, all in Tier 2; its length
    and CRC32C.
    """
    folder = Path(directory)

    async def work() -> Measured:
        base = os.urandom(PIECE_BYTES)
        checksum = 0
        async with open_store(folder / "store", tier2=_tier2_of(folder)) as store:
            await store.create_segment(SEGMENT)

            def append(number: int) -> asyncio.Future[int]:
                nonlocal checksum
                # Each piece differs, so that a piece served at the wrong place shows in the
                # checksum.
                data = number.to_bytes(8, "big") + base[8:]
                checksum = crc32c(data, checksum)
                return asyncio.ensure_future(store.append(SEGMENT, data))

            await pipelined(append, total_bytes // PIECE_BYTES, WINDOW)
            await flush_and_settle(store)
        return {"length": total_bytes, "checksum": checksum}

    return asyncio.run(work())


def floor_round(directory: str, length: int, checksum: int) -> Measured:
    """Megabytes per second of raw preads of the object files."""
    del length, checksum
    total, seconds = read_rate(_objects(directory), PIECE_BYTES)
    return {"value": total / seconds / 1e6}


def skeleton_round(directory: str, length: int, checksum: int) -> Measured:
    """Megabytes per second of preads through an executor, checked, a few ahead."""
    del length, checksum
    pieces = [
        (path, offset)
        for path in _objects(directory)
        for offset in range(0, path.stat().st_size, PIECE_BYTES)
    ]

    def read(path: Path, offset: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, PIECE_BYTES, offset)
        finally:
            os.close(descriptor)

    async def measure() -> Measured:
        loop = asyncio.get_running_loop()
        total = 0
        begun = time.perf_counter()
        with ThreadPoolExecutor(PIECES_AHEAD) as pool:
            ahead: deque[asyncio.Future[bytes]] = deque()
            for path, offset in pieces:
                ahead.append(loop.run_in_executor(pool, read, path, offset))
                if len(ahead) >= PIECES_AHEAD:
                    data = await ahead.popleft()
                    crc32c(data)
                    total += len(data)
            for rest in ahead:
                data = await rest
                crc32c(data)
                total += len(data)
        return {"value": total / (time.perf_counter() - begun) / 1e6}

    return asyncio.run(measure())


def engine_round(directory: str, length: int, checksum: int) -> Measured:
    """Megabytes per second through `store.reader`, from a store opened with its cache missing."""
    folder = Path(directory)
    shutil.rmtree(folder / "store" / "cache", ignore_errors=True)

    async def measure() -> Measured:
        async with open_store(folder / "store", tier2=_tier2_of(folder)) as store:
            seconds, first = await read_through(store, SEGMENT, length, checksum)
        return {"value": length / seconds / 1e6, "first_bytes_ms": first * 1e3}

    return asyncio.run(measure())


def _tier2_of(folder: Path) -> str:
    return (folder / "tier2").as_uri()


def _objects(directory: str) -> list[Path]:
    return files_under(Path(directory) / "tier2", _OBJECT_BYTES_MIN)


if __name__ == "__main__":
    from bench.suite import main

    main("catch_up")
