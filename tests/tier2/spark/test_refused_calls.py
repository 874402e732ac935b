"""A driver, and the planning of a stream, where Tier 2 now and then says 503.

Spark repeats neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from recovery.harness.services.fault_messages import Head
from recovery.harness.services.fault_rules import SLOW_DOWN
from recovery.harness.services.s3_servers import Moto
from recovery.harness.services.shared import shared_server
from segmentstore import blocking
from tests.store.harness import TINY
from tests.support.faulty_s3 import FaultyS3, faulty_s3, own_part
from tests.support.suites import slow
from tests.tier2.spark.reconcile_dry import LocalSpark
from tests.tier2.spark.source_world import (
    SourceWorld,
    payloads,
    read_batch,
    read_stream,
    stream_of,
)
from tier2.spark.common.command_options import Exit
from tier2.spark.compact.job import plan_compaction
from tier2.spark.reconcile.job import reconcile
from tier2.spark.reconcile.owners import Owners

SETTINGS: dict[str, Any] = {**TINY, "containers": 2, "mailbox_poll_interval_s": 0.2}


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(Moto)) as world, own_part(world) as mine:
        yield mine


def refuse(s3: FaultyS3, *parts: str) -> None:
    """One request for each part, of those whose target has it."""
    for part in parts:

        def has(head: Head, part: str = part) -> bool:
            return part in head.target

        s3.proxy.fault(SLOW_DOWN, when=has)


def test_a_stream_and_a_batch_are_planned_through_answers_of_503(s3: FaultyS3) -> None:
    world = SourceWorld(s3.url)
    world.append("a", b"one\ntwo\n")
    world.export()
    reader = stream_of(world, segment="a")
    begin = reader.initialOffset()
    refuse(s3, "catalog", "manifest.json", "segments.parquet")
    end = reader.latestOffset(begin, ReadAllAvailable())
    refuse(s3, "manifest.json", "chunks.parquet")
    assert payloads(read_stream(reader, begin, end)) == [b"one\ntwo\n"]
    refuse(s3, "catalog", "manifest.json", "segments.parquet", "chunks.parquet")
    assert payloads(read_batch(world, segment="a")) == [b"one\ntwo\n"]


@slow(20)
def test_a_driver_goes_on_through_answers_of_503(
    s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.open(tmp_path / "store", tier2=s3.url, **SETTINGS) as store:
        store.create_segment("a")
        store.append("a", b"a" * 500)
        store.flush()
        asked = Owners.snapshots

        async def snapshots(owners: Owners, name: str) -> Any:
            refuse(s3, f"export-{name}-", "manifest.json")
            return await asked(owners, name)

        monkeypatch.setattr(Owners, "snapshots", snapshots)
        result = reconcile(LocalSpark().as_spark(), s3.url, timeout_s=60.0)
        assert result.verdict is Exit.NOTHING, result.table.to_pylist()
        assert plan_compaction(s3.url, timeout_s=60.0).summary.verdict is Exit.NOTHING
