"""A driver that writes a stream into a running store is killed at any moment, and started again:
each row is there once.

Real processes: each driver that is killed, with its JVM and its Python workers. The last one, which
ends by itself, is the tests' own session. The store is this process's, open all the time.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from recovery.harness.services.spark_cluster import driver_environment
from segmentstore import blocking
from tests.support.suites import size, sized
from tests.tier2.spark.driver_process import Driver, module
from tests.tier2.spark.stream_program import PARTITIONS, ROWS, SEGMENTS, write

pytestmark = pytest.mark.timeout(600)

KILLS = size("HARNESS_DRIVER_KILLS", 1, 2)
NAMES = [f"s{number}" for number in range(SEGMENTS)]
LATEST_S = 1.5
"""A micro-batch takes about as long, with all its notes in the checkpoint."""
STAGED, INLINE = 500, 1 << 18
"""What tasks hand to the driver: with so little they stage, and the driver merges."""


def committed_bytes(store: blocking.SegmentStore) -> int:
    return sum(info.length for info in store.list_segments() if info.name in NAMES)


def wait_for_rows(driver: Driver, store: blocking.SegmentStore) -> None:
    """Until more of them have landed, perhaps in one segment alone: the checkpoint hardly knows it
    yet.
    """
    before = committed_bytes(store)
    driver.wait_for(lambda: committed_bytes(store) > before, interval_s=0.02)


def expected(segment: int, batches: int) -> list[int]:
    """By micro-batch, in it by partition."""
    return [
        number
        for first in range(0, batches * ROWS, ROWS)
        for partition in range(segment, PARTITIONS, SEGMENTS)
        for number in range(first + partition, first + ROWS, PARTITIONS)
    ]


def noted(checkpoint: Path, folder: str) -> int:
    """How many micro-batches the checkpoint knows to be begun (`offsets`) or done (`commits`)."""
    path = checkpoint / folder
    return sum(each.name.isdigit() for each in path.iterdir()) if path.exists() else 0


@sized(60)
def test_a_killed_driver_leaves_every_row_once_and_in_its_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = os.environ.get("HARNESS_KILL_SEED", f"{random.SystemRandom().getrandbits(32):x}")
    rng = random.Random(seed)
    print(f"seed {seed}")
    checkpoint = tmp_path / "checkpoint"
    environment = driver_environment(
        "local[2,4]", {"spark.python.daemon.module": "tests.tier2.spark.warm_daemon"}
    )

    def start(inline_bytes: int) -> Driver:
        words = (tmp_path / "store", checkpoint, inline_bytes, "for ever")
        return module(
            "tests.tier2.spark.stream_program", *words, environment=environment, cwd=tmp_path
        )

    with blocking.open(tmp_path / "store", append_bytes_max=5000) as store:
        for turn in range(KILLS):
            # Killed at its end: the first as soon as rows have landed.
            with start(rng.choice((STAGED, INLINE))) as driver:
                wait_for_rows(driver, store)
                time.sleep(rng.uniform(0, LATEST_S) if turn else 0)
            print(
                f"killed: {noted(checkpoint, 'offsets')} begun, "
                f"{noted(checkpoint, 'commits')} noted"
            )
        # It stages, so that it tidies up what the killed ones have left.
        write(spark, str(tmp_path / "store"), str(checkpoint), str(STAGED), "once")
        batches = noted(checkpoint, "commits")
        assert batches == noted(checkpoint, "offsets") >= KILLS
        for segment, name in enumerate(NAMES):
            lines = b"".join(store.reader(name)).split()
            assert [int(line) for line in lines] == expected(segment, batches), (seed, name)
        assert [info.name for info in store.list_segments()] == NAMES
