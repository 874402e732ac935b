"""Speed of moving large segments to S3: what a flush of all of them takes, from the store's opening
on.

A store is filled with flushing put off and closed: everything is in its log only. Each engine round
copies that folder, opens it with default settings, and waits until all is in Tier 2. Floor: the
same bytes by plain boto3, in parts of the size and concurrency that our uploads have.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.report import CaseResult, Row, Samples
from bench.s3_service import BUCKET, MIB, distinct, raw_client, raw_upload, s3_service, tier2_url
from bench.workspace import copy_store, require_free_bytes, subfolder

QUESTION = "flush of large segments to S3"
SEGMENTS = (4, 1)
"""How many share the bytes, row by row."""
PART_BYTES = 64 * MIB
UPLOADS = 4
SHARE_OF_FLOOR = 0.8
_PUT_OFF = {
    "flush_bytes": 1 << 32,
    "object_bytes": 1 << 32,
    "upload_bytes_max": 1 << 33,
    "unflushed_target_bytes": 1 << 40,
    "unflushed_bytes_max": 1 << 40,
    "flush_age_s": 1e6,
    "tail_bytes_max": 1 << 32,
}


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 25 s and 256 MiB quick, 100 s and 1 GiB else; needs four times the bytes on disk."""
    total_bytes = (256 if quick else 1024) * MIB
    require_free_bytes(directory, 5 * total_bytes)
    rows = []
    with subfolder(directory, "s3") as folder, s3_service(folder) as (endpoint, server):
        for segments in SEGMENTS:
            floor: list[Measured] = []
            engine: list[Measured] = []
            common = {"total_bytes": total_bytes, "endpoint": endpoint}
            filled = common | {"directory": str(folder / f"{segments}"), "segments": segments}
            child.call(__name__, "fill", filled)
            for index in range(rounds.count_of(quick=quick)):
                os.sync()
                floor.append(child.call(__name__, "floor_round", common))
                os.sync()
                arguments = common | {"directory": filled["directory"], "index": index}
                engine.append(child.call(__name__, "engine_round", arguments))
            shutil.rmtree(folder / f"{segments}")
            rows.append(_row(f"{total_bytes // MIB:,} MiB in {segments}", floor, engine))
    return CaseResult(case="s3_flush", question=QUESTION, rows=rows, notes=[f"server: {server}"])


def _row(name: str, floor: list[Measured], engine: list[Measured]) -> Row:
    measured = Samples.of(engine)
    ratio = measured.median / max(Samples.of(floor).rounds)
    return Row(
        name=name,
        unit="MB/s",
        floor=Samples.of(floor),
        engine=measured,
        ratio=ratio,
        bar="≥ 80 % of raw parallel multipart PUT",
        met=ratio >= SHARE_OF_FLOOR,
    )


def fill(directory: str, total_bytes: int, endpoint: str, segments: int) -> Measured:
    """A closed store whose log holds `total_bytes` that Tier 2 lacks."""

    async def work() -> None:
        base = os.urandom(MIB)
        folder = Path(directory) / "filled"
        async with open_store(folder, tier2=tier2_url(endpoint, "flush"), **_PUT_OFF) as store:
            for number in range(segments):
                await store.create_segment(f"{SEGMENT}-{number}")
            waiting: deque[Awaitable[int]] = deque()
            for number in range(total_bytes // MIB):
                waiting.append(
                    store.append(f"{SEGMENT}-{number % segments}", distinct(base, number))
                )
                if len(waiting) >= 16:
                    await waiting.popleft()
            for rest in waiting:
                await rest

    asyncio.run(work())
    return {"value": 0}


def floor_round(endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second of multipart uploads, `UPLOADS` parts at a time."""
    client = raw_client(endpoint)
    objects = max(1, total_bytes // (4 * PART_BYTES))
    data = os.urandom(total_bytes // objects)
    begun = time.perf_counter()
    with ThreadPoolExecutor(UPLOADS) as pool:
        for number in range(objects):
            raw_upload(client, f"raw/{begun}-{number}", data, len(data) // PART_BYTES, pool)
    seconds = time.perf_counter() - begun
    for number in range(objects):
        client.delete_object(Bucket=BUCKET, Key=f"raw/{begun}-{number}")
    return {"value": total_bytes / seconds / 1e6}


def engine_round(directory: str, endpoint: str, total_bytes: int, index: int) -> Measured:
    """Megabytes per second from the moment the store is open until everything is in Tier 2."""
    copy = Path(directory) / f"copy-{index}"
    copy_store(Path(directory) / "filled", copy)
    os.sync()
    del endpoint  # the store's own file names it

    async def work() -> Measured:
        async with open_store(copy, tail_bytes_max=1 << 32, consolidation=False) as store:
            begun = time.perf_counter()
            await store.flush()
            return {"value": total_bytes / (time.perf_counter() - begun) / 1e6}

    try:
        return asyncio.run(work())
    finally:
        shutil.rmtree(copy, ignore_errors=True)


if __name__ == "__main__":
    from bench.suite import main

    main("s3_flush")
