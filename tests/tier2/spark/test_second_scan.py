"""Shards with more suspects than the driver takes: checked in tasks, and as all others are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.suites import share, slow
from tests.tier2.spark.reconcile_dry import LocalSpark, found, handed_to_driver, stopped
from tests.tier2.spark.reconcile_world import DAY_S, EPOCH, PAYLOAD, World
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile import found_classes, second_scan
from tier2.spark.reconcile import job as reconcile_job
from tier2.spark.reconcile.listing import list_rest, list_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 80
"""Objects that are lost, of each of which the driver must receive nothing."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """All that comes to the driver. It takes next to nothing."""
    monkeypatch.setattr(reconcile_job, "SUSPECTS_HELD", 0)
    monkeypatch.setattr(reconcile_job, "MISSING_SHOWN", 2)
    # What many objects are to a task.
    monkeypatch.setattr(second_scan, "SLICE_SUSPECTS", 30)
    monkeypatch.setattr(found_classes.shown_by_each, "__defaults__", (0,))
    monkeypatch.setattr(found_classes, "FINDINGS_SHOWN_MIN", 2)
    return handed_to_driver(monkeypatch)


def lose_many(world: World) -> set[str]:
    for number in range(MANY):
        world.add_object(0, (12 + number) * len(PAYLOAD))
    for segment in world.metadata[0].segments.values():
        segment.length = segment.storage_length = (12 + MANY) * len(PAYLOAD)
    return set(world.names(0)[:MANY])


def all_of(place: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(place.glob("*/*.parquet"))])


def prepare(world: World, path: Path) -> str:
    tables = [
        *list_rest(world.url),
        *(table for shard in range(256) for table in list_shard(world.url, shard)),
    ]
    pq.write_table(pa.concat_tables(tables).sort_by("key"), path)
    return str(path)


@pytest.mark.parametrize("check", share(["none", "headers"], 2, 3))
@pytest.mark.parametrize("listing", ["none", "behind the loss", "before the loss"])
def test_thousands_that_are_missing_are_counted_once_each_and_are_no_rows(
    world: World, handed: list[pa.Table], tmp_path: Path, check: str, listing: str
) -> None:
    lost = lose_many(world)
    orphan, foreign = world.orphan(1), world.put("readme.txt", b"x")
    cut = world.names(1)[3]
    world.cut(cut, 9000)
    waiting = {world.garbage(number % 2) for number in range(20)}
    world.snapshot()
    prepared = (
        prepare(world, tmp_path / "listing.parquet") if listing == "before the loss" else None
    )
    for name in lost:
        world.lose(name)
    if listing == "behind the loss":
        prepared = prepare(world, tmp_path / "listing.parquet")
    result = stopped(
        LocalSpark(lost=1),
        world,
        tasks=2,
        listing=prepared,
        check=check,
        findings_url=(tmp_path / "all").as_uri(),
    )
    seen = listing != "before the loss" or check == "headers"
    expected = {("orphan", orphan), ("foreign", foreign), ("wrong_size", cut)}
    expected |= {("waiting_for_deletion", name) for name in waiting}
    expected |= {("missing", name) for name in lost} if seen else set()
    counted = {kind.kind: kind.number for kind in result.summary.kinds}
    assert counted == {
        kind: len([each for each, _ in expected if each == kind]) for kind, _ in expected
    }
    everything = all_of(tmp_path / "all")
    assert found(everything) == expected
    assert everything.num_rows == len(expected)
    assert found(result.table) < expected
    assert result.verdict is Exit.FINDINGS
    # Two tasks, the rest, and what an item of work says of itself: no row is an object.
    assert max(table.num_rows for table in handed) < 70
    if seen:
        evidence = {
            row["evidence"]
            for row in result.table.to_pylist()
            if row["kind"] == "missing" and listing == "none"
        }
        assert all(
            "holds segment" in each and "a HEAD says that it is not there" in each
            for each in evidence
        )


def test_deletions_between_the_scans_are_not_missing_and_puts_are_no_orphans(
    world: World, handed: list[pa.Table]
) -> None:
    lost, deleted = world.names(0)[:3], world.names(0)[5:8]
    for name in lost:
        world.lose(name)
    world.snapshot()

    steps: list[int] = []

    def owner() -> None:
        """Behind the first listing objects go, in a snapshot and in the store; behind B more of
        both.
        """
        step = len(steps)
        steps.append(step)
        if step == 0:
            for name in deleted[:2]:
                world.forget(0, name)
                world.lose(name)
            world.snapshot()
        elif step == 1:
            world.lose(deleted[2])
            world.put(world.new_name(0), b"just put", age_s=-60)

    result = stopped(LocalSpark(then=owner), world, tasks=2)
    counted = {kind.kind: kind.number for kind in result.summary.kinds}
    assert counted.pop("missing") == len(lost)
    assert counted.keys() <= {"in_flight", "gap"}


def test_an_object_that_shows_the_age_of_a_snapshot_shows_it_from_a_task(
    world: World, handed: list[pa.Table]
) -> None:
    lost = [world.names(number)[0] for number in (0, 1)]
    for name in lost:
        world.lose(name)
    newer = world.orphan(0, epoch=EPOCH + 2, age_s=5 * DAY_S)
    world.snapshot()
    result = stopped(LocalSpark(), world)
    assert (result.verdict, list(result.summary.outdated)) == (Exit.UNDECIDED, [0])
    assert newer in result.summary.outdated[0]
    assert {
        (each.kind, each.severity, each.container_id): number
        for each, number in result.summary.classes.items()
    } == {
        ("in_flight", "unknown", 0): 2,
        ("missing", "harmful", 1): 1,
    }


@pytest.mark.timeout(300)  # the first query of a session takes its time on a busy machine
@slow(10)
def test_the_same_by_spark_of_the_place_and_of_a_listing_that_is_shuffled(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reconcile_job, "SUSPECTS_HELD", 0)
    monkeypatch.setattr(reconcile_job, "MISSING_SHOWN", 2)
    lost, orphan = world.names(0)[:5], world.orphan(1)
    world.snapshot()
    for name in lost:
        world.lose(name)
    expected = {("orphan", orphan), *(("missing", name) for name in lost)}
    listed = pq.read_table(prepare(world, tmp_path / "listing.parquet")).select(
        ["key", "size", "modified_ms"]
    )
    for listing in (None, spark.createDataFrame(listed)):
        result = stopped(spark, world, tasks=2, listing=listing, check="headers")
        assert found(result.table) == expected
        assert {kind.kind: kind.number for kind in result.summary.kinds} == {
            "missing": 5,
            "orphan": 1,
        }


def test_judging_in_slices_is_judging_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = set(world.names(0))
    for name in lost:
        world.lose(name)
    cut = world.names(1)[3]
    world.lengthen(cut)
    others = {world.orphan(1) for _ in range(7)}
    world.snapshot()
    whole = stopped(LocalSpark(), world, tasks=1, run_id="0" * 16).table
    monkeypatch.setattr("tier2.spark.reconcile.tasks.CHECKED_AT_ONCE", 3)
    sliced = stopped(LocalSpark(), world, tasks=1, run_id="0" * 16).table
    assert sliced.drop_columns(["age_seconds"]).equals(whole.drop_columns(["age_seconds"]))
    assert whole.num_rows == len(lost) + 1 + len(others)
    assert pc.all(pc.is_valid(whole["evidence"])).as_py()
