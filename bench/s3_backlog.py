"""Speed of a backlog over many segments on its way to S3, after its owner was killed.

A store is filled round robin over a thousand segments, with flushing deferred, and its process ends
without closing it. The log alone has everything, and each segment lies all over the log. Each
engine round copies that folder, opens it with default settings, and waits until all is in Tier 2.
Its time counts from the call of `open`, so the recovery is in it. Quick, memory and cache are
smaller in proportion; in the second row the cache takes nothing, and every byte beyond memory has
to be searched for in the log.

Floor: twice the time of the same bytes by plain boto3, in parts of the size and concurrency of our
uploads. To that comes one scan of the log (read, checked, reassembled, decoded). Both are measured
before each engine round.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from pathlib import Path
from statistics import median

from bench import child, rounds
from bench.child import Measured
from bench.engine import open_store, sum_of
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_flush import floor_round as raw_round
from bench.s3_service import BUCKET, MIB, keys_of, raw_client, s3_service, tier2_url
from bench.workspace import copy_store, require_free_bytes, subfolder
from durablelog.data_frame_reader import DataFrameReader
from durablelog.file.file_log import FileLog
from durablelog.operation_codec import decode_operation
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import log_directory

QUESTION = "a backlog over many segments, from the opening after a kill until all of it is in S3"
SEGMENTS = 1000
APPEND_BYTES = 12 * 1024
_PUT_OFF: Mapping[str, float] = {
    "flush_bytes": 1 << 32,
    "object_bytes": 1 << 32,
    "upload_bytes_max": 1 << 33,
    "unflushed_target_bytes": 1 << 40,
    "unflushed_bytes_max": 1 << 40,
    "flush_age_s": 1e6,
    "tail_bytes_max": 1 << 32,
}
SIZES: Mapping[bool, tuple[int, Mapping[str, int]]] = {
    True: (192 * MIB, {"tail_bytes_max": 40 * MIB, "cache_bytes_max": 320 * MIB}),
    False: (1200 * MIB, {}),
}
"""Quick or not: bytes of the backlog, and settings."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About a minute and 192 MiB quick, five minutes and 1.2 GiB else; needs four times the bytes
    on disk.
    """
    total_bytes, settings = SIZES[quick]
    require_free_bytes(directory, 5 * total_bytes)
    engine: list[tuple[Measured, Measured]] = []
    starved: list[tuple[Measured, Measured]] = []
    with subfolder(directory, "s3") as folder, s3_service(folder) as (endpoint, server):
        parameters = {"directory": str(folder), "endpoint": endpoint, "total_bytes": total_bytes}
        child.call(__name__, "fill", parameters)
        for _ in range(rounds.count_of(quick=quick)):
            for side, changes in (
                (engine, settings),
                (starved, {**settings, "cache_bytes_max": 1}),
            ):
                floor = child.call(__name__, "floor_round", parameters)
                side.append(
                    (
                        floor,
                        child.call(__name__, "engine_round", {**parameters, "settings": changes}),
                    )
                )
    name = f"{total_bytes // MIB:,} MiB in {SEGMENTS:,} segments"
    rows = [
        _row(name, engine, met=True),
        _row(f"{name}, the cache takes nothing", starved, met=False),
    ]
    return CaseResult(case="s3_backlog", question=QUESTION, rows=rows, notes=[f"server: {server}"])


def _row(name: str, rounds_of: list[tuple[Measured, Measured]], *, met: bool) -> Row:
    """A row of rounds, each with the floor right before it: the speed of a machine drifts, so the
    median of the ratios of neighbours counts.
    """
    floor, engine = (list(side) for side in zip(*rounds_of, strict=True))
    ratio = median(mine["value"] / allowed["value"] for allowed, mine in rounds_of)
    return Row(
        name=name,
        unit="MB/s",
        floor=Samples.of(floor),
        engine=Samples.of(engine),
        ratio=ratio,
        bar="≤ 2 x raw multipart PUT + one scan" if met else "",
        met=ratio >= 1 if met else None,
        extra=extras_of(engine),
    )


def fill(directory: str, endpoint: str, total_bytes: int) -> Measured:
    """A store whose process ended with `total_bytes` that Tier 2 lacks."""

    async def work() -> None:
        base = os.urandom(MIB)
        folder = Path(directory) / "filled"
        store = await open_store(
            folder, tier2=tier2_url(endpoint, "backlog"), **_PUT_OFF
        ).__aenter__()
        for number in range(SEGMENTS):
            await store.create_segment(f"segment-{number}")
        waiting: deque[Awaitable[int]] = deque()
        for number in range(total_bytes // APPEND_BYTES):
            start = number * 4099 % (MIB - APPEND_BYTES)
            waiting.append(
                store.append(f"segment-{number % SEGMENTS}", base[start : start + APPEND_BYTES])
            )
            if len(waiting) >= 1024:
                await waiting.popleft()
        for rest in waiting:
            await rest

    # Not asyncio.run: it would cancel the store's tasks, and a store that is asked to stop may tidy
    # up.
    asyncio.new_event_loop().run_until_complete(work())
    return {"value": 0}


def floor_round(directory: str, endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second that the bar allows."""
    raw_s = total_bytes / raw_round(endpoint, total_bytes)["value"] / 1e6
    with subfolder(Path(directory), "scanned") as copy:
        copy_store(Path(directory) / "filled", copy)
        scan_s = asyncio.run(_scan_s(copy))
    return {"value": total_bytes / (2 * raw_s + scan_s) / 1e6, "raw_s": raw_s, "scan_s": scan_s}


async def _scan_s(folder: Path) -> float:
    log = FileLog(log_directory(str(folder), 0), 0, Runtime())
    await log.open()
    reader = DataFrameReader()
    begun = time.perf_counter()
    async for batch in log.read():
        for frame in batch:
            for record, *_ in reader.feed(frame):
                decode_operation(record)
    seconds = time.perf_counter() - begun
    await log.close()
    return seconds


def engine_round(
    directory: str, endpoint: str, total_bytes: int, settings: Mapping[str, int]
) -> Measured:
    """Megabytes per second from the call of `open` until everything is in Tier 2, and the passes
    over the log it took.
    """
    # The floor's client is loaded before its time begins, too.
    raw_client(endpoint)
    importlib.import_module("segmentstore.service")

    async def work(copy: Path) -> Measured:
        begun = time.perf_counter()
        async with open_store(copy, consolidation=False, **settings) as store:
            opened = time.perf_counter()
            await store.flush()
            seconds = time.perf_counter() - begun
            return {
                "value": total_bytes / seconds / 1e6,
                "seconds": seconds,
                "open_s": opened - begun,
                "scans": sum_of(store.stats(), "read_index", "refills"),
                "cpu_s": time.process_time(),
            }

    with subfolder(Path(directory), "copy") as copy:
        copy_store(Path(directory) / "filled", copy)
        os.sync()
        try:
            return asyncio.run(work(copy))
        finally:
            client = raw_client(endpoint)
            for key, _ in keys_of(client, "backlog", MIB):
                client.delete_object(Bucket=BUCKET, Key=key)


if __name__ == "__main__":
    from bench.suite import main

    main("s3_backlog")
