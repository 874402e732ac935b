"""Speed of a reconciliation that reads every body from S3: headers, identities, and the checksum of
every extent.

One store in objects of 64 MiB, filled, flushed and exported once. Floor: two processes that GET the
same objects whole, four at a time each, and make one CRC32C over every body. A job has to read
snapshots and list the place as well. The first row is what inspecting bodies costs on top of the
same job without, the second the job as a whole.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.report import CaseResult, Row, Samples
from bench.s3_service import BUCKET, MIB, distinct, keys_of, raw_client, s3_service, tier2_url
from bench.spark_session import session
from bench.workspace import BenchError, require_free_bytes, subfolder
from segmentstore.contracts.checksum import crc32c

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from types_boto3_s3.client import S3Client

QUESTION = "check of all bodies on S3 by Spark"
PROCESSES = 2
AT_ONCE = 4
READY_S = 60.0
SHARE_OF_FLOOR = 0.7
_PREFIX = "deep-check"


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 50 s and 256 MiB quick, 80 s and 1 GiB else; needs twice the bytes on disk."""
    total_bytes = (256 if quick else 1024) * MIB
    require_free_bytes(directory, 4 * total_bytes)
    count = rounds.count_of(quick=quick)
    with (
        subfolder(directory, "spark-deep-check") as folder,
        s3_service(folder) as (endpoint, server),
    ):
        child.call(
            __name__,
            "fill",
            {"directory": str(folder), "endpoint": endpoint, "total_bytes": total_bytes},
        )
        floor = [child.call(__name__, "floor_round", {"endpoint": endpoint}) for _ in range(count)]
        engine = child.call(
            __name__, "measure", {"directory": str(folder), "endpoint": endpoint, "count": count}
        )
        floor += [child.call(__name__, "floor_round", {"endpoint": endpoint}) for _ in range(count)]
    rows = rows_of(total_bytes, Samples.of(floor), engine)
    return CaseResult(
        case="spark_deep_check", question=QUESTION, rows=rows, notes=[f"server: {server}"]
    )


def rows_of(total_bytes: int, floor: Samples, engine: Measured) -> list[Row]:
    """What bodies cost on top, and the whole."""
    least = min(engine["none"])
    on_top = Samples(
        tuple(total_bytes / max(each - least, 1e-3) / 1e6 for each in engine["bodies"])
    )
    whole = Samples(tuple(total_bytes / each / 1e6 for each in engine["bodies"]))
    best = max(floor.rounds)
    name = f"{total_bytes // MIB:,} MiB"
    return [
        Row(
            name=f"{name}, bodies alone",
            unit="MB/s",
            floor=floor,
            engine=on_top,
            ratio=on_top.median / best,
            bar="≥ 70 % of two processes of GET + CRC32C",
            met=on_top.median / best >= SHARE_OF_FLOOR,
            extra={"job_without_bodies_s": least},
        ),
        Row(
            name=f"{name}, the whole job",
            unit="MB/s",
            floor=floor,
            engine=whole,
            ratio=whole.median / best,
        ),
    ]


def fill(directory: str, endpoint: str, total_bytes: int) -> Measured:
    """A closed store of distinct bytes in objects of 64 MiB, exported."""

    async def work() -> None:
        base = os.urandom(MIB)
        url = tier2_url(endpoint, _PREFIX)
        async with open_store(Path(directory) / "store", tier2=url, consolidation=False) as store:
            await store.create_segment(SEGMENT)
            waiting: deque[Awaitable[int]] = deque()
            for number in range(total_bytes // MIB):
                waiting.append(store.append(SEGMENT, distinct(base, number)))
                if len(waiting) >= 8:
                    await waiting.popleft()
            for rest in waiting:
                await rest
            await store.flush()
            # Of the engine, not of what all benches use.
            await store.export_catalog()  # type: ignore[attr-defined]

    asyncio.run(work())
    return {}


def floor_round(endpoint: str) -> Measured:
    """Megabytes per second of GETs of whole objects."""
    objects = keys_of(raw_client(endpoint), f"{_PREFIX}/", size_min=MIB)
    objects.sort(key=lambda each: -each[1])
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES + 1)
    with context.Pool(PROCESSES, _get_ready, (endpoint, ready)) as pool:
        # A client for each process, made and warm before the clock runs.
        ready.wait(READY_S)
        work = [
            (endpoint, [key for key, _ in objects[number::PROCESSES]])
            for number in range(PROCESSES)
        ]
        begun = time.perf_counter()
        total = sum(pool.starmap(_fetch_all, work, chunksize=1))
        seconds = time.perf_counter() - begun
    return {"value": total / seconds / 1e6}


@cache
def _client(endpoint: str) -> S3Client:
    return raw_client(endpoint)


def _get_ready(endpoint: str, ready: Barrier) -> None:
    _client(endpoint).list_objects_v2(Bucket=BUCKET, MaxKeys=1)
    ready.wait(READY_S)


def _fetch_all(endpoint: str, keys: list[str]) -> int:
    """Bytes of these objects."""
    client = _client(endpoint)

    def fetch(key: str) -> int:
        data = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        crc32c(data)
        return len(data)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(fetch, keys))


def measure(directory: str, endpoint: str, count: int) -> Measured:
    """Seconds of the job with bodies and without, in turns, after one of each."""
    url = tier2_url(endpoint, _PREFIX)
    seconds: dict[str, list[float]] = {"none": [], "bodies": []}
    with session(Path(directory)) as spark:
        from tier2.spark.reconcile.job import reconcile  # noqa: PLC0415 - loaded with the session

        for number in range(count + 1):
            for check, found in seconds.items():
                begun = time.perf_counter()
                result = reconcile(spark, url, snapshots="newest", check=check)
                if number:
                    found.append(time.perf_counter() - begun)
                if result.table.num_rows:
                    message = f"nothing is wrong, and {result.table.to_pylist()[0]} was found"
                    raise BenchError(message)
                if (check == "bodies") is not bool(result.summary.bytes_read):
                    message = f"{result.summary.bytes_read:,} bytes were read for {check}"
                    raise BenchError(message)
    return {"value": 0.0, **seconds}


if __name__ == "__main__":
    from bench.suite import main

    main("spark_deep_check")
