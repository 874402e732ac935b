"""Snapshots that no owner was asked for: what a stray object, or a later owner, leaves of the
verdicts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.suites import share
from tests.tier2.spark.reconcile_dry import LocalSpark, found, stopped
from tests.tier2.spark.reconcile_world import DAY_S, EPOCH, STORE_ID, World
from tier2.object_names import CATALOG_TABLES, SnapshotName, manifest_name, object_name, table_name
from tier2.spark.common.command_options import Exit
from tier2.unique_ids import new_copy_id, new_tagged_id, store_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(
    300
)  # the first query of a session takes its time on a busy machine

Expected = set[tuple[str, str | None]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


@pytest.mark.parametrize("epoch", [3, 4])
def test_a_container_that_has_moved_on_since_its_snapshot_cannot_be_reported(
    world: World, epoch: int
) -> None:
    world.orphan(1, age_s=20 * DAY_S)
    world.lose(world.names(1)[0])
    orphan, lost = world.orphan(0, age_s=20 * DAY_S), world.names(0)[0]
    world.lose(lost)
    world.now_ms -= 10 * DAY_S * 1000
    world.snapshot()
    world.put(world.new_name(1, epoch), b"x", age_s=DAY_S if epoch > 3 else -5 * DAY_S)
    result = stopped(LocalSpark(), world, check="headers")
    certain = {each for each in found(result.table) if each[0] != "in_flight"}
    assert certain == {("missing", lost), ("orphan", orphan)}
    assert (result.verdict, list(result.summary.outdated)) == (Exit.UNDECIDED, [1])
    world.now_ms += 10 * DAY_S * 1000
    world.snapshot()
    assert (1 in stopped(LocalSpark(), world).summary.outdated) == (epoch > 3)


def plant_in_one(world: World) -> tuple[Expected, Expected]:
    """Twenty faults in container 0: those that are certain whatever the age of the snapshot, and
    the others.
    """
    names = world.names(0)
    for name in names[:4]:
        world.flip(name, 2000)
    for name in names[4:7]:
        world.mistake(name, segment_id=99)
    for name in names[7:9]:
        world.make_unreadable(name)
    for name in names[9:10]:
        world.lengthen(name)
    for name in names[10:14]:
        world.lose(name)
    world.drop_chunk(0, 8, 17)
    certain: Expected = {
        *(("bad_checksum", name) for name in names[:4]),
        *(("wrong_identity", name) for name in names[4:7]),
        *(("unreadable", name) for name in names[7:9]),
        ("wrong_size", names[9]),
        ("gap", "0/8"),
    }
    doubtful: Expected = {
        *(("missing", name) for name in names[10:14]),
        *(("orphan", world.orphan(0)) for _ in range(5)),
    }
    assert len(certain) + len(doubtful) == 20
    return certain, doubtful


@pytest.mark.parametrize("kind", share(["newer time", "newer epoch", "time to come"], 3, 6))
def test_one_stray_object_hides_nothing_that_is_certain_and_after_an_export_nothing_at_all(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    world = World(tmp_path / "tier2", objects=20)
    certain, doubtful = plant_in_one(world)
    epoch = EPOCH + 2 if kind == "newer epoch" else EPOCH - 1
    age_s = {"newer epoch": 5 * DAY_S, "newer time": -3600, "time to come": -400 * DAY_S}[kind]
    stray = world.put(world.new_name(0, epoch), b"a copy", age_s=age_s)
    world.snapshot()
    by = spark if kind == "newer epoch" else LocalSpark()
    before = stopped(by, world, check="bodies")
    assert {each for each in found(before.table) if each[0] != "in_flight"} == certain
    unknown = {
        row["object"]: row["evidence"]
        for row in before.table.to_pylist()
        if row["severity"] == "unknown"
    }
    assert unknown.keys() == {stray, *(name for _, name in doubtful)}
    assert all(
        stray in evidence and "export the catalog" in evidence for evidence in unknown.values()
    )
    assert (before.verdict, list(before.summary.outdated)) == (Exit.UNDECIDED, [0])

    world.now_ms += 2 * 3600 * 1000
    world.snapshot(stopped=True)
    after = stopped(LocalSpark(), world, check="bodies")
    stray_kind = "orphan" if kind == "newer epoch" else "in_flight"
    assert found(after.table) == certain | doubtful | {(stray_kind, stray)}
    (row,) = [row for row in after.table.to_pylist() if row["object"] == stray]
    assert ("a stray: its name is of epoch 5" in row["evidence"]) is (kind == "newer epoch")
    assert (after.verdict, after.summary.outdated) == (Exit.FINDINGS, {})


@pytest.mark.parametrize(("epoch", "work"), [(EPOCH + 1, "flush"), (EPOCH, "compaction")])
def test_what_was_put_after_the_export_of_a_stopped_store_shows_that_an_owner_opened_it(
    world: World, epoch: int, work: str
) -> None:
    world.lose(world.names(1)[0])
    world.snapshot(stopped=True)
    world.now_ms -= DAY_S * 1000
    for number in world.metadata:
        world.export(number, stopped=True)
    job_id = "0" * 16 if work == "compaction" else None
    unique_id = new_tagged_id(store_tag(STORE_ID), world.random)
    name = object_name(1, epoch, "compaction" if job_id else "flush", unique_id, job_id=job_id)
    world.put(name, b"x", age_s=-3600)
    result = stopped(LocalSpark(), world)
    assert (result.verdict, list(result.summary.outdated)) == (Exit.UNDECIDED, [1])
    assert set(result.table["severity"].to_pylist()) == {"unknown"}
    assert name in result.summary.outdated[1]


def test_an_object_of_another_store_shows_nothing_of_this_one_and_is_said_to_be_its(
    world: World,
) -> None:
    other = STORE_ID.replace("1234", "9999")
    world.put(
        f"stores/{other.replace('-', '')}", f"The store {other} keeps its objects here.\n".encode()
    )
    lost = world.names(0)[0]
    world.lose(lost)
    name = object_name(0, EPOCH + 5, "flush", new_tagged_id(store_tag(other), world.random))
    world.put(name, b"another's", age_s=-3600)
    world.snapshot()
    result = stopped(LocalSpark(), world, store_id=STORE_ID)
    assert found(result.table) == {("missing", lost), ("in_flight", name)}
    assert result.verdict == Exit.FINDINGS
    (row,) = [row for row in result.table.to_pylist() if row["object"] == name]
    assert (
        row["evidence"]
        == f"in neither snapshot, and of another store, by the tag in its name: {other}"
    )


def test_an_object_about_as_old_as_an_unrequested_snapshot_is_no_orphan(
    world: World,
) -> None:
    late, orphan = world.orphan(0, age_s=-60), world.orphan(0, age_s=600)
    world.now_ms -= 10 * DAY_S * 1000
    world.put(late, b"x", age_s=-60)
    world.put(orphan, b"x", age_s=600)
    world.snapshot()
    assert found(stopped(LocalSpark(), world).table) == {("in_flight", late), ("orphan", orphan)}


@pytest.mark.parametrize("in_its_last_snapshot", [False, True])
def test_a_snapshot_that_cannot_be_read_hides_nothing_that_is_certain(
    world: World, in_its_last_snapshot: bool
) -> None:
    lost, wrong = world.names(0)[:2]
    world.lose(lost)
    world.flip(wrong, 2000)
    world.snapshot(stopped=True)
    if in_its_last_snapshot:
        name = world.export(0, stopped=True).name
        world.flip(name, 20)
    else:
        stray = SnapshotName(0, EPOCH + 9, 7, new_copy_id(STORE_ID, world.random))
        name = world.put(manifest_name(stray), b"a stray", age_s=-0.5)
        for table in CATALOG_TABLES:
            world.put(table_name(stray, table), b"a stray")
    result = stopped(LocalSpark(), world, check="bodies")
    assert found(result.table) == {
        ("bad_checksum", wrong),
        ("in_flight", lost),
        ("unreadable", name),
    }
    assert (result.verdict, list(result.summary.outdated)) == (Exit.UNDECIDED, [0])
    assert name in result.summary.outdated[0]

    world.now_ms = world.runtime.clock.time_ms() + 1000
    world.snapshot(stopped=True)
    again = stopped(LocalSpark(), world, check="bodies")
    # Of two snapshots of one epoch the later export is the newer one: only what sorts above it is
    # met at all.
    strays = set() if in_its_last_snapshot else {("unreadable", name)}
    assert found(again.table) == {("bad_checksum", wrong), ("missing", lost), *strays}
    assert (again.verdict, again.summary.outdated) == (Exit.FINDINGS, {})
