"""What a read of 4 KiB at a random place costs when nothing of it is near: requests, and time over
a plain GET.

One store is filled and flushed to S3 once. Each round opens it in a fresh process, its cache
missing, and reads at places drawn at random, one after the other. Requests are those the provider
counts, with those for the headers of blocks: a block's first read may cost two. Floor: plain boto3
GETs of 4 KiB at random places of the same objects. The engine fetches the extents (64 KiB) that
hold the bytes, because it gives out no byte whose checksum it has not checked.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import Protocol, cast

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_service import BUCKET, MIB, keys_of, raw_client, s3_service
from bench.workspace import BenchError, require_free_bytes, subfolder

QUESTION = "random 4 KiB reads of cold data on S3, one at a time"
READ_BYTES = 4096
GETS_MAX = 1.2
EXTRA_MS_MAX = 1.0


class _Reads(Protocol):
    async def read(self, name: str, offset: int, max_length: int) -> bytes:
        """At least one byte."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 15 s and 128 MiB quick, 40 s and 512 MiB else."""
    total_bytes = (128 if quick else 512) * MIB
    reads = 500 if quick else 2000
    require_free_bytes(directory, 4 * total_bytes)
    floor: list[Measured] = []
    engine: list[Measured] = []
    with subfolder(directory, "s3") as folder, s3_service(folder) as (endpoint, server):
        arguments = {"directory": str(folder), "endpoint": endpoint, "total_bytes": total_bytes}
        child.call("bench.s3_catch_up", "fill", arguments)
        for index in range(rounds.count_of(quick=quick)):
            floor.append(
                child.call(
                    __name__, "floor_round", {"endpoint": endpoint, "reads": reads, "seed": index}
                )
            )
            arguments = {
                "directory": str(folder),
                "length": total_bytes,
                "reads": reads,
                "seed": index,
            }
            engine.append(child.call(__name__, "engine_round", arguments))
    latency, raw = Samples.of(engine), Samples.of(floor)
    gets = Samples.of(engine, "gets_a_read")
    extra_ms = latency.median - raw.median
    rows = [
        Row(
            name="GETs a read",
            unit="",
            engine=gets,
            bar=f"≤ {GETS_MAX}",
            met=gets.median <= GETS_MAX,
        ),
        Row(
            name="p50 of a read",
            unit="ms",
            floor=raw,
            engine=latency,
            ratio=latency.median / raw.median,
            bar=f"≤ raw GET + {EXTRA_MS_MAX:.0f} ms",
            met=extra_ms <= EXTRA_MS_MAX,
            extra={"extra_ms": extra_ms, **extras_of(engine)},
        ),
    ]
    return CaseResult(
        case="cold_random_reads", question=QUESTION, rows=rows, notes=[f"server: {server}"]
    )


def floor_round(endpoint: str, reads: int, seed: int) -> Measured:
    """Milliseconds of plain ranged GETs of 4 KiB."""
    client = raw_client(endpoint)
    objects = keys_of(client, "catch-up/", MIB)
    rng = random.Random(seed)
    seconds = []
    for _ in range(reads):
        key, size = rng.choice(objects)
        start = rng.randrange(size - READ_BYTES)
        begun = time.perf_counter()
        answer = client.get_object(
            Bucket=BUCKET, Key=key, Range=f"bytes={start}-{start + READ_BYTES - 1}"
        )
        answer["Body"].read()
        seconds.append(time.perf_counter() - begun)
    seconds.sort()
    return {"value": percentile(seconds, 0.5) * 1e3, "p99_ms": percentile(seconds, 0.99) * 1e3}


def engine_round(directory: str, length: int, reads: int, seed: int) -> Measured:
    """Milliseconds of `store.read` of 4 KiB, whole, and the requests it took."""
    folder = Path(directory)
    shutil.rmtree(folder / "store" / "cache", ignore_errors=True)

    async def work() -> Measured:
        async with open_store(folder / "store") as store:
            reader = cast("_Reads", store)
            rng = random.Random(seed)
            before = _gets(store.stats())
            seconds = []
            for _ in range(reads):
                offset = rng.randrange(length - READ_BYTES)
                begun = time.perf_counter()
                received = 0
                # A read may give less, where one held stretch ends and another begins.
                while received < READ_BYTES:
                    received += len(
                        await reader.read(SEGMENT, offset + received, READ_BYTES - received)
                    )
                seconds.append(time.perf_counter() - begun)
            gets = _gets(store.stats()) - before
        seconds.sort()
        return {
            "value": percentile(seconds, 0.5) * 1e3,
            "p99_ms": percentile(seconds, 0.99) * 1e3,
            "gets_a_read": gets / reads,
        }

    return asyncio.run(work())


def _gets(stats: object) -> int:
    """GET requests of Tier 2 so far."""
    try:
        # Plain dictionaries, down to the number.
        operations = stats["tier2"]["operations"]  # type: ignore[index]
        return int(operations["get"]["requests"]) if "get" in operations else 0
    except KeyError as error:
        message = f"store.stats() has no {error}"
        raise BenchError(message) from None


if __name__ == "__main__":
    from bench.suite import main

    main("cold_random_reads")
