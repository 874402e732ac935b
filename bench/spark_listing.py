"""Keys that a listing of S3 gives for a second of the lister's CPU: the jobs' own, and pages of
boto3.

Both list the same prefixes of the same server, which is a process of its own and has its pages
ready. CPU is that of the whole process, all threads, from the first request to the last row; both
clients are made, and have listed one page, before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_service import raw_client
from bench.spark_list_server import BUCKET, list_server, prefix_of
from bench.workspace import BenchError

QUESTION = "listing of a bucket, for the CPU it takes"
SHARDS = 4
TIMES_BOTO3 = 5.0
_CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-bench",
}


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s and 50 k keys quick, 30 s and 200 k else."""
    del directory
    keys = (50_000 if quick else 200_000) // SHARDS
    floor: list[Measured] = []
    engine: list[Measured] = []
    with list_server(SHARDS + 1, keys) as endpoint:
        for _ in range(rounds.count_of(quick=quick)):
            floor.append(child.call(__name__, "floor_round", {"endpoint": endpoint, "keys": keys}))
            engine.append(
                child.call(__name__, "engine_round", {"endpoint": endpoint, "keys": keys})
            )
    ratio = Samples.of(engine).median / max(Samples.of(floor).rounds)
    row = Row(
        name=f"{SHARDS * keys / 1e3:g} k keys",
        unit="keys/CPU s",
        floor=Samples.of(floor),
        engine=Samples.of(engine),
        ratio=ratio,
        bar="≥ 5 x pages of boto3",
        met=ratio >= TIMES_BOTO3,
        extra=extras_of(engine),
    )
    return CaseResult(case="spark_listing", question=QUESTION, rows=[row], notes=[])


def floor_round(endpoint: str, keys: int) -> Measured:
    """Keys for a second of CPU, by a paginator of boto3 whose entries are counted and their sizes
    added up.
    """
    os.environ.update(_CREDENTIALS)
    client = raw_client(endpoint)
    client.list_objects_v2(Bucket=BUCKET, Prefix=prefix_of(SHARDS))
    begun, cpu = time.perf_counter(), time.process_time()
    listed = size = 0
    for shard in range(SHARDS):
        for page in client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=prefix_of(shard)
        ):
            for entry in page["Contents"]:
                listed += 1
                size += entry["Size"]
    return _measured(listed, keys, begun, cpu)


def engine_round(endpoint: str, keys: int) -> Measured:
    """Keys for a second of CPU, as tables of Arrow."""
    os.environ.update(_CREDENTIALS)
    # Not in the floor's process.
    from tier2.spark.reconcile.listing import list_shard  # noqa: PLC0415

    url = f"s3://{BUCKET}?endpoint_url={endpoint}&region=us-east-1"
    next(list_shard(url, SHARDS))
    begun, cpu = time.perf_counter(), time.process_time()
    listed = sum(table.num_rows for shard in range(SHARDS) for table in list_shard(url, shard))
    return _measured(listed, keys, begun, cpu)


def _measured(listed: int, keys: int, begun: float, cpu: float) -> Measured:
    seconds, spent = time.perf_counter() - begun, time.process_time() - cpu
    if listed != SHARDS * keys:
        message = f"{listed:,} keys were listed where {SHARDS * keys:,} are"
        raise BenchError(message)
    return {"value": listed / spent, "keys_per_s": listed / seconds}


if __name__ == "__main__":
    from bench.suite import main

    main("spark_listing")
