"""Speed of reading a segment back from S3 when nothing of it is near: alone, and with 50 ms added
to each request.

One store is filled and flushed once; each round opens it in a fresh process, its cache missing.
Floor: plain boto3 ranged GETs of the same objects, in parallel, as large as our deep read-ahead
makes them, with a CRC32C over each. Behind added latency the reader is compared with itself without
read-ahead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, Store, open_store, read_through
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_service import CONNECTIONS, MIB, distinct, raw_download, s3_service, tier2_url
from bench.workspace import require_free_bytes, subfolder
from segmentstore.contracts.checksum import crc32c

QUESTION = "catch-up read from S3, cold, one reader"
RANGE_BYTES = 8 * MIB
LATENCY_S = 0.05
LATENT_BYTES = 64 * MIB
"""Read by each side behind the latency: without read-ahead that is 64 pieces, one after the
other.
"""
SHARE_OF_FLOOR = 0.8
TIMES_FASTER = 5.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 25 s and 256 MiB quick, 60 s and 1 GiB else; needs three times the bytes on disk."""
    total_bytes = (256 if quick else 1024) * MIB
    require_free_bytes(directory, 4 * total_bytes)
    count = rounds.count_of(quick=quick)
    with subfolder(directory, "s3") as folder:
        with s3_service(folder) as (endpoint, server):
            filled = child.call(
                __name__,
                "fill",
                {"directory": str(folder), "endpoint": endpoint, "total_bytes": total_bytes},
            )
            floor: list[Measured] = []
            engine: list[Measured] = []
            for _ in range(count):
                floor.append(child.call(__name__, "floor_round", {"endpoint": endpoint}))
                engine.append(
                    child.call(__name__, "engine_round", {"directory": str(folder), **filled})
                )
        rows = [_plain_row(total_bytes, floor, engine), _latent_row(folder, total_bytes)]
    return CaseResult(case="s3_catch_up", question=QUESTION, rows=rows, notes=[f"server: {server}"])


def _plain_row(total_bytes: int, floor: list[Measured], engine: list[Measured]) -> Row:
    measured = Samples.of(engine)
    ratio = measured.median / max(Samples.of(floor).rounds)
    return Row(
        name=f"{total_bytes // MIB:,} MiB",
        unit="MB/s",
        floor=Samples.of(floor),
        engine=measured,
        ratio=ratio,
        bar="≥ 80 % of raw parallel ranged GETs",
        met=ratio >= SHARE_OF_FLOOR,
        extra=extras_of(engine),
    )


def _latent_row(folder: Path, total_bytes: int) -> Row:
    """The same objects, behind a proxy: a store made anew, for its file names the endpoint."""
    del total_bytes
    with s3_service(folder / "latent", latency_s=LATENCY_S) as (endpoint, _):
        place = folder / "latent"
        filled = child.call(
            __name__,
            "fill",
            {"directory": str(place), "endpoint": endpoint, "total_bytes": LATENT_BYTES},
        )
        measured = {
            ahead: child.call(
                __name__, "engine_round", {"directory": str(place), **filled, "read_ahead": ahead}
            )
            for ahead in (False, True)
        }
    ratio = float(measured[True]["value"]) / float(measured[False]["value"])
    return Row(
        name=f"{LATENT_BYTES // MIB} MiB at {LATENCY_S * 1e3:.0f} ms a request",
        unit="MB/s",
        skeleton=Samples.of([measured[False]]),
        engine=Samples.of([measured[True]]),
        ratio=ratio,
        bar="≥ 5 x the reader without read-ahead (here as skeleton)",
        met=ratio >= TIMES_FASTER,
    )


def fill(directory: str, endpoint: str, total_bytes: int) -> Measured:
    """A closed store with one segment of distinct bytes, all in Tier 2; its length and CRC32C."""

    async def work() -> Measured:
        base = os.urandom(MIB)
        checksum = 0
        async with open_store(
            Path(directory) / "store", tier2=tier2_url(endpoint, "catch-up")
        ) as store:
            await store.create_segment(SEGMENT)
            waiting: deque[Awaitable[int]] = deque()
            for number in range(total_bytes // MIB):
                data = distinct(base, number)
                checksum = crc32c(data, checksum)
                waiting.append(store.append(SEGMENT, data))
                if len(waiting) >= 8:
                    await waiting.popleft()
            for rest in waiting:
                await rest
            await store.flush()
            await store.checkpoint()
        return {"length": total_bytes, "checksum": checksum}

    return asyncio.run(work())


def floor_round(endpoint: str) -> Measured:
    """Megabytes per second of parallel ranged GETs."""
    total, seconds = raw_download(endpoint, "catch-up/", RANGE_BYTES, CONNECTIONS, size_min=MIB)
    return {"value": total / seconds / 1e6}


def engine_round(directory: str, length: int, checksum: int, read_ahead: bool = True) -> Measured:
    """Megabytes per second through `store.reader`."""
    folder = Path(directory)
    shutil.rmtree(folder / "store" / "cache", ignore_errors=True)
    options: dict[str, object] = {} if read_ahead else {"read_ahead_bytes_max": 0}

    async def work() -> Measured:
        async with open_store(folder / "store", **options) as store:
            await _client_ready(store)
            seconds, first = await read_through(store, SEGMENT, length, checksum)
        return {"value": length / seconds / 1e6, "first_bytes_ms": first * 1e3}

    return asyncio.run(work())


async def _client_ready(store: Store) -> None:
    """Wait until the store's own requests at its start are done: the floor's client is there, and
    warm, before its clock runs.
    """
    while True:
        started = cast("dict[str, Any]", store.stats())["tier2"]["operations"].values()
        if any(each["requests"] for each in started) and not any(
            each["in_flight"] for each in started
        ):
            return
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    from bench.suite import main

    main("s3_catch_up")
