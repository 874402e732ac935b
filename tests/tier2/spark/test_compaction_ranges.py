"""Plans made range by range choose what a plan of the whole container chooses; by tasks, and
without Spark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from segmentstore.contracts.runtime import Runtime
from tests.support.suites import slow
from tests.tier2.spark.test_compaction_plan import Catalog, options, starts
from tier2.catalog import catalog_files
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import write_snapshot
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.compact import ranges as compaction_ranges
from tier2.spark.compact.job import compact, plan_compaction
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.ranges import (
    ChunkRange,
    dead_rows,
    left_rows,
    outlines_of,
    plan_range,
    planned_rows,
    ranges_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE_ID = "00000000-0000-0000-0000-000000001234"
CHOSEN: dict[str, Any] = {"min_input_files": 3, "delete_ratio_threshold": 0.3}


def fragmented(seed: int) -> Catalog:
    """Objects that segments share, some mostly dead, and small pieces behind one another."""
    rng = random.Random(seed)
    c = Catalog()
    for number in range(60):
        segments = rng.sample(range(1, 9), rng.randint(1, 4))
        blocks = [(segment, rng.choice([10, 40, 400, 900])) for segment in sorted(segments)]
        c.put(f"o{number:03d}", *blocks, dead=rng.choice([0, 0, 0, 300, 3000]))
    return c


async def export(storage: ObjectStorage, c: Catalog) -> Manifest:
    return await write_snapshot(
        storage,
        Runtime(),
        store_id=STORE_ID,
        containers=4,
        container_id=c.metadata.container_id,
        epoch=7,
        time_ms=10_000_000,
        metadata=c.metadata,
    )


def exported(folder: Path, c: Catalog, ask: Any) -> Any:
    async def run() -> Any:
        storage = open_object_storage((folder / "tier2").as_uri(), Runtime())
        try:
            return await ask(storage, await export(storage, c))
        finally:
            await storage.close()

    (folder / "tier2").mkdir(exist_ok=True)
    return asyncio.run(run())


def chosen_by(plans: Sequence[list[list[tuple[int, int]]]]) -> list[tuple[int, int]]:
    """Every chunk of all groups. Fails for one that is in two."""
    chunks = [chunk for plan in plans for group in plan for chunk in group]
    assert len(chunks) == len(set(chunks))
    return sorted(chunks)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(compaction_ranges, "CHUNKS_PER_RANGE", 20)


@pytest.mark.parametrize("seed", range(8))
def test_what_ranges_choose_is_what_the_whole_chooses(tmp_path: Path, seed: int) -> None:
    c = fragmented(seed)
    chosen = options(target=1000, **CHOSEN)
    whole = chosen_by([starts(c.plan(chosen))])
    assert whole

    async def by_ranges(
        storage: ObjectStorage, manifest: Manifest
    ) -> list[list[list[tuple[int, int]]]]:
        ranges = list(ranges_of([manifest]))
        assert len(ranges) > 3
        left = [await left_rows(storage, manifest, where, chosen) for where in ranges]
        found = dead_rows(pa.concat_tables(left), chosen).to_pylist()
        plans = []
        for where in ranges:
            mine: list[Any] = [row["object"] for row in found if row["part"] == where.part]
            plans.append(await plan_range(storage, manifest, where, chosen, mine))
            assert plans[-1].is_cut
        return [starts(plan) for plan in plans]

    assert chosen_by(exported(tmp_path, c, by_ranges)) == whole


def test_one_range_is_the_plan_itself_and_travels_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_ranges, "CHUNKS_PER_RANGE", 1_000_000)
    c = fragmented(1)
    chosen = options(target=1000, **CHOSEN)

    async def at_once(storage: ObjectStorage, manifest: Manifest) -> Any:
        assert list(ranges_of([manifest])) == [ChunkRange(3, 0, 1)]
        return await plan_range(storage, manifest, ChunkRange(3, 0, 1), chosen)

    plan = exported(tmp_path, c, at_once)
    assert starts(plan) == starts(c.plan(chosen))
    ((outline, datas),) = outlines_of(planned_rows(plan, 0))
    assert outline == plan.outline()
    assert [datas[planned.group_id] for planned in outline.groups] == [
        plan.group(planned).encode() for planned in plan.groups
    ]


@slow(8)
def test_by_tasks_it_is_what_it_is_without_spark_and_the_run_is_bounded(
    spark: SparkSession, tmp_path: Path
) -> None:
    c = fragmented(2)

    async def nothing(_: ObjectStorage, manifest: Manifest) -> int:
        return manifest.tables["chunks"].rows

    exported(tmp_path, c, nothing)
    url = (tmp_path / "tier2").as_uri()
    given: dict[str, Any] = {
        **CHOSEN,
        "target_file_size_bytes": 1000,
        "block_bytes": 1000,
        "older_than_ms": 1000,
    }
    given |= {"snapshots": "newest", "job_id": "00000000000000ab"}
    here, there = plan_compaction(url, **given), compact(spark, url, dry_run=True, **given)
    assert here.rows == there.rows
    assert here.summary == there.summary
    assert len(here.rows) > 5
    assert CompactionOptions().max_file_groups == 100_000
    bounded = compact(spark, url, dry_run=True, max_file_groups=3, **given)
    assert len(bounded.rows) == 3
    assert bounded.summary.groups_left == len(here.rows) - 3
