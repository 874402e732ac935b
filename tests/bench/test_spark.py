"""The Spark benches on tiny sizes: what is planted is there, servers answer, verdicts follow from
figures. No timing.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import (
    child,
    spark_catalog,
    spark_compaction,
    spark_deep_check,
    spark_listing,
    spark_read,
    spark_reconcile,
)
from bench.report import Samples
from bench.spark_list_server import Pages, list_server
from bench.spark_session import OVER_LIMIT, MemoryWatch
from bench.workspace import BenchError
from segmentstore.contracts.runtime import Runtime
from tests.support.processes import is_alive
from tests.support.suites import slow
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.locations import open_object_storage

OBJECTS = spark_catalog.CONTAINERS * spark_catalog.PER_SEGMENT * 4


@slow(55)
def test_an_invented_store_has_exactly_the_faults_that_were_planted(tmp_path: Path) -> None:
    spark_catalog.make(tmp_path, OBJECTS, 5)
    planted = spark_catalog.planted(str(tmp_path))
    assert len(planted) == 5 * len(spark_catalog.KINDS)
    assert {fault[0] for fault in planted} == set(spark_catalog.KINDS)
    url = spark_catalog.url_of(str(tmp_path))

    async def rows() -> int:
        storage = open_object_storage(url, Runtime())
        try:
            manifests = await newest_snapshots(storage)
        finally:
            await storage.close()
        return sum(manifest.tables["objects"].rows for manifest in manifests.values())

    assert asyncio.run(rows()) == OBJECTS + 5  # and the garbage
    measured = child.call(
        "bench.spark_reconcile", "measure", {"directory": str(tmp_path), "count": 1}
    )
    assert (measured["found"], measured["others"]) == (len(planted), 0)
    assert len(measured["job"]) == len(measured["join"]) == 1  # whose count was right, too


def test_verdicts_over_a_reconciliation_follow_from_its_figures() -> None:
    good = {
        "job": [4.0, 3.0],
        "join": [9.0, 8.0],
        "memory": 2 << 30,
        "planted": 800,
        "found": 800,
        "others": 0,
    }
    assert [row.met for row in spark_reconcile.rows_of(10_000_000, good)] == [True, True, True]
    assert spark_reconcile.rows_of(200_000, good, quick=True)[0].met is None
    bad = {**good, "job": [4.5, 4.5], "memory": 5 << 30, "others": 1}
    assert [row.met for row in spark_reconcile.rows_of(10_000_000, bad)] == [False, False, False]
    assert spark_reconcile.rows_of(10_000_000, {**good, "found": 799})[1].met is False


def test_pages_of_a_listing_follow_one_another_and_end() -> None:
    pages = Pages(1, 1001)
    first = pages.answer("/bench?list-type=2&prefix=00%2F&encoding-type=url").decode()
    assert first.count("<Key>") == 1000
    assert "<NextContinuationToken>1</NextContinuationToken>" in first
    assert "<EncodingType>url</EncodingType>" in first
    second = pages.answer("/bench?list-type=2&prefix=00%2F&continuation-token=1").decode()
    assert second.count("<Key>") == 1
    assert "<IsTruncated>false</IsTruncated>" in second
    assert "<Key>" not in pages.answer("/bench?list-type=2&prefix=ff%2F").decode()
    keys = re.findall("<Key>(.*?)</Key>", first + second)
    for position in (997, 999, 1000):
        behind = pages.answer(f"/bench?list-type=2&prefix=00%2F&start-after={keys[position]}")
        end = 1000 if position < 999 else 1001
        assert re.findall("<Key>(.*?)</Key>", behind.decode()) == keys[position + 1 : end]


@slow(2)
def test_both_listings_give_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")  # both are put back afterwards
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    with list_server(spark_listing.SHARDS + 1, 1200) as endpoint:
        for side in (spark_listing.floor_round, spark_listing.engine_round):
            measured = side(endpoint, 1200)
            json.dumps(measured)
            assert math.isfinite(measured["value"])


def test_a_store_of_small_chunks_is_copied_whole_and_read_back(tmp_path: Path) -> None:
    filled = spark_compaction.fill(str(tmp_path), 3, 4)
    assert len(spark_compaction._objects(str(tmp_path))) == 4
    assert spark_compaction._copy_all(
        spark_compaction._objects(str(tmp_path)), str(tmp_path)
    ) > 12 * (64 << 10)
    spark_compaction.read_back(str(tmp_path), filled["checksums"], 4 * (64 << 10))
    with pytest.raises(BenchError, match="segment-001"):
        spark_compaction.read_back(str(tmp_path), [filled["checksums"][0], 1, 2], 4 * (64 << 10))


def test_what_bodies_cost_is_what_a_job_takes_longer_with_them() -> None:
    measured = {"none": [2.0, 1.0], "bodies": [3.0, 3.0]}
    alone, whole = spark_deep_check.rows_of(2_000_000_000, Samples((1000.0, 1200.0)), measured)
    assert alone.engine.median == 1000
    assert whole.engine.median == pytest.approx(666.7, rel=0.001)
    assert alone.met is True
    assert whole.met is None


def test_the_bare_source_gives_the_lines_the_store_has(tmp_path: Path) -> None:
    lines = 2 * 10_500
    (tmp_path / "plain-0").write_bytes(b"".join(spark_read._pieces(0, lines)))
    reader = spark_read.PlainSource({"path": str(tmp_path)}).reader(None)  # type: ignore[arg-type]
    [partition] = reader.partitions()
    batches = list(reader.read(partition))
    assert sum(batch.num_rows for batch in batches) == lines
    payloads: list[Any] = [
        payload for batch in batches for payload in batch.column("payload").to_pylist()
    ]
    assert len(set(payloads)) == lines
    assert {len(payload) for payload in payloads} == {spark_read.LINE_BYTES}


def test_memory_is_watched_from_beginning_to_end() -> None:
    with MemoryWatch() as watch:
        pass
    assert watch.peak > 1 << 20


def test_a_run_that_takes_more_memory_than_it_may_is_ended_with_all_below_it() -> None:
    program = """
import subprocess, sys
from bench.spark_session import OVER_LIMIT, MemoryWatch
below = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(below.pid, flush=True)
with MemoryWatch(1):
    below.wait()
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        below = int(process.stdout.readline())
        assert process.wait(timeout=60) == OVER_LIMIT
        assert "more than the 1 allowed" in process.stderr.read()
    # A process that was killed is there until the system has taken it down.
    deadline = time.monotonic() + 60
    while is_alive(below):
        assert time.monotonic() < deadline
        time.sleep(0.01)
