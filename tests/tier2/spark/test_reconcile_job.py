"""Whole runs of reconciliation: on a folder and on S3, on a stopped store and beside a live owner,
by Spark and without.

Without Spark (`LocalSpark`) runs what needs no shuffle; what Spark itself does is tried by Spark.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recovery.harness.services.s3_servers import Moto, credentials
from recovery.harness.services.shared import shared_server
from segmentstore import blocking
from segmentstore.contracts.errors import ConfigError
from tests.store.harness import TINY
from tests.support.chunk_edits import edited_chunks
from tests.support.suites import size, sized, slow
from tests.tier2.spark.reconcile_dry import LocalSpark, found, stopped
from tests.tier2.spark.reconcile_world import DAY_S, STORE_ID, World
from tier2.object_names import object_name, parse_object_name
from tier2.spark.common.command_options import Exit
from tier2.spark.common.frames import frame_of
from tier2.spark.reconcile.inventory_rows import InventoryError
from tier2.spark.reconcile.job import reconcile
from tier2.spark.reconcile.listing import list_rest, list_shard
from tier2.spark.reconcile.listing_job import _by_shard
from tier2.spark.reconcile.scan_work import Listers
from tier2.spark.reconcile.work import Site
from tier2.store_markers import marker_text
from tier2.unique_ids import new_tagged_id, store_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(
    300
)  # the first query of a session takes its time on a busy machine

RUNS_BESIDE = size("RECONCILE_RUNS_BESIDE", 1, 5)
Expected = set[tuple[str, str | None]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


def plant(world: World) -> Expected:
    """One of each class, in a world that was not exported yet; what must be found."""
    names = world.names(1)
    world.lose(names[0])
    world.lengthen(names[1])
    world.mistake(names[2], segment_id=99)
    world.flip(names[3], 2000)
    world.make_unreadable(names[4])
    world.drop_chunk(0, 8, 5)
    # Its block is as long as it says: the chunk before it is too long for the segment, and for its
    # own block.
    with edited_chunks(world.metadata[0].segments[9]) as chunks:
        chunks[5] = chunks[5]._replace(length=chunks[5].length + 10)
    expected: Expected = {
        ("missing", names[0]),
        ("wrong_size", names[1]),
        ("wrong_identity", names[2]),
        ("bad_checksum", names[3]),
        ("unreadable", names[4]),
        ("orphan", world.orphan(0)),
        ("in_flight", world.orphan(1, age_s=DAY_S)),
        ("waiting_for_deletion", world.garbage(0)),
        ("foreign", world.put("readme.txt", b"x")),
        ("foreign", world.put("copy of data.bin", b"x")),
        ("foreign", world.put("~old/é.txt", b"x")),
        ("foreign", world.put("ab/~x, y+z%20", b"x")),
        ("gap", "0/8"),
        ("overlap", "0/9"),
        ("wrong_identity", chunks[5].object_name),
    }
    world.snapshot()
    return expected


# --- a stopped store ------------------------------------------------------------------------------


def test_a_store_that_is_as_it_should_be(world: World) -> None:
    world.snapshot()
    spark = LocalSpark()
    result = stopped(spark, world, check="bodies")
    assert (result.verdict, result.table.num_rows, spark.actions) == (Exit.NOTHING, 0, 2)
    summary = result.summary
    assert (summary.objects, summary.listed, summary.looked_into, summary.chunks) == (
        24,
        24,
        24,
        72,
    )
    assert summary.containers == {0: (3, 101, 101), 1: (3, 101, 101)}


@pytest.mark.parametrize("lost", [0, 3])
def test_every_class_on_a_folder_also_when_tasks_are_lost(world: World, lost: int) -> None:
    expected = plant(world)
    result = stopped(LocalSpark(lost=lost), world, check="bodies")
    assert (found(result.table), result.verdict) == (expected, Exit.FINDINGS)
    assert result.table.num_rows == len(expected)


@pytest.mark.spark_versions("reconcile")
def test_every_class_by_spark_and_the_same_again_in_a_second_run(
    spark: SparkSession, world: World
) -> None:
    expected = plant(world)
    result = stopped(spark, world, check="bodies", run_id="00000000000000cc")
    assert (found(result.table), result.verdict) == (expected, Exit.FINDINGS)
    assert result.findings.filter("severity = 'harmful'").count() == 8
    again = stopped(spark, world, check="bodies", run_id="00000000000000cc")
    assert again.table.drop_columns(["age_seconds"]).equals(
        result.table.drop_columns(["age_seconds"])
    )


def test_without_a_check_of_objects_tables_alone_report(world: World) -> None:
    expected = plant(world)
    kinds = {"wrong_identity", "bad_checksum", "unreadable"}
    result = stopped(LocalSpark(), world)
    assert found(result.table) == {each for each in expected if each[0] not in kinds}
    headers = found(stopped(LocalSpark(), world, check="headers").table)
    assert headers == {each for each in expected if each[0] != "bad_checksum"}


def test_an_object_that_is_cut_is_reported_once(world: World) -> None:
    name = world.names(0)[0]
    world.cut(name, 9000)
    world.snapshot()
    (row,) = stopped(LocalSpark(), world, check="bodies").table.to_pylist()
    assert (row["kind"], row["object"], row["actual"]) == ("wrong_size", name, "9000 bytes")
    assert row["segment_id"] is not None


def test_a_container_without_a_snapshot_cannot_be_reported_and_the_others_are(world: World) -> None:
    world.export(1)
    lost = world.names(1)[0]
    world.lose(lost)
    world.orphan(0)
    result = stopped(LocalSpark(), world)
    assert result.verdict == Exit.UNDECIDED
    assert result.summary.unresponsive == {0: "there is no snapshot of it"}
    harmful = {row["object"] for row in result.table.to_pylist() if row["severity"] == "harmful"}
    assert harmful == {lost}
    assert "orphan" not in set(result.table["kind"].to_pylist())


def test_a_store_without_any_snapshot_cannot_be_reported_and_is_not_listed(world: World) -> None:
    spark = LocalSpark()
    result = stopped(spark, world)
    assert (result.verdict, spark.actions, result.summary.listed) == (Exit.UNDECIDED, 0, 0)


def test_where_other_stores_keep_objects_too_nothing_is_called_an_orphan(world: World) -> None:
    name = world.orphan(0)
    other = STORE_ID.replace("1234", "9999").replace("-", "")
    world.put(f"stores/{other}", marker_text(f"stores/{other}"))
    world.snapshot()
    result = stopped(LocalSpark(), world, store_id=STORE_ID)
    assert (found(result.table), result.verdict) == ({("in_flight", name)}, Exit.NOTHING)


def test_a_dry_run_of_deleting_says_how_many_and_asks_no_owner(world: World) -> None:
    world.orphan(0)
    world.snapshot()
    result = stopped(LocalSpark(), world, delete_orphans=True)
    assert (result.summary.orphans, result.summary.delete_orphans, result.condemned) == (
        1,
        "dry run",
        (),
    )
    assert not (world.folder / "mailbox").exists()


def test_ages_below_a_day_are_refused_unless_allowed(world: World) -> None:
    name = world.orphan(0, age_s=3600)
    world.snapshot()
    with pytest.raises(ConfigError, match="older-than"):
        stopped(LocalSpark(), world, older_than="30 minutes")
    result = stopped(LocalSpark(), world, older_than="30 minutes", allow_short_retention=True)
    assert found(result.table) == {("orphan", name)}


# --- listings of others ---------------------------------------------------------------------------


def listing_of(world: World) -> pa.Table:
    tables = [table for shard in range(256) for table in list_shard(world.url, shard)]
    return pa.concat_tables([*tables, *list_rest(world.url)])


@pytest.mark.spark_versions("reconcile")
@slow(8)
def test_a_dataframe_in_any_order_gives_what_a_listing_gives(
    spark: SparkSession, world: World
) -> None:
    expected = plant(world)
    rows = listing_of(world).select(["key", "size", "modified_ms"])
    frame = frame_of(
        spark, rows.sort_by([("size", "descending"), ("key", "descending")])
    ).repartition(3)
    assert found(stopped(spark, world, listing=frame, check="bodies").table) == expected


@pytest.mark.spark_versions("reconcile")
@slow(12)
def test_inventories_in_files_sorted_and_not_give_what_a_listing_gives(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    expected = {
        each
        for each in plant(world)
        if each[0] not in {"wrong_identity", "bad_checksum", "unreadable"}
    }
    rows = listing_of(world).select(["key", "size", "modified_ms"])
    sorted_file, mixed = tmp_path / "sorted.parquet", tmp_path / "mixed.csv"
    pq.write_table(rows.sort_by("key"), sorted_file, row_group_size=7)
    pa.csv.write_csv(rows.sort_by([("modified_ms", "descending")]), mixed)
    for path in (sorted_file, mixed):
        assert found(stopped(spark, world, listing=str(path)).table) == expected


@pytest.mark.spark_versions("reconcile")
def test_a_listing_without_its_columns_is_refused(spark: SparkSession, world: World) -> None:
    world.snapshot()
    with pytest.raises(InventoryError, match="last_modified"):
        stopped(spark, world, listing=frame_of(spark, pa.table({"key": ["a"], "size": [1]})))


# --- what happens to tasks ------------------------------------------------------------------------


@pytest.mark.spark_versions("reconcile")
def test_tasks_that_die_are_run_again(spark: SparkSession, world: World, tmp_path: Path) -> None:
    manifests = world.snapshot()
    lost = world.names(0)[0]
    world.lose(lost)
    url, died = world.url, str(tmp_path / "died")

    def list_or_die(shards: range) -> Iterator[pa.Table]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for shard in shards:
            if context.attemptNumber() == 0 and shard % 128 == 0:
                Path(died + str(shard)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield from list_shard(url, shard)

    site = Site(url=url, run_id="0" * 16, listings_at_once=2, objects_at_once=2, bodies=False)
    frame = _by_shard(spark, site, manifests, 4, Listers(list_or_die, lambda: list_rest(url)))
    rows = [row.asDict() for row in frame.collect()]
    assert sorted(Path(tmp_path).glob("died*")) == [Path(died + "0"), Path(died + "128")]
    assert sum(row["listing"] for row in rows) == 23
    assert sum(row["suspects"] for row in rows) == 1


# --- S3 -------------------------------------------------------------------------------------------


@pytest.mark.spark_versions("reconcile")
@slow(10)
def test_every_class_on_s3(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    expected = plant(world)
    server = shared_server(Moto)
    server.make_bucket("reconcile")
    client = server.client()
    try:
        for path in sorted(world.folder.rglob("*")):
            if path.is_file():
                key = f"store/{path.relative_to(world.folder)}"
                client.put_object(Bucket="reconcile", Key=key, Body=path.read_bytes())
    finally:
        client.close()
    url = server.location("reconcile", "store")
    # All of it was put a moment ago.
    expected = {("in_flight" if kind == "orphan" else kind, name) for kind, name in expected}
    result = stopped(spark, world, url, check="bodies", older_than=0, allow_short_retention=True)
    assert (found(result.table), result.verdict) == (expected, Exit.FINDINGS)


# --- a live owner ---------------------------------------------------------------------------------

LIVE: dict[str, Any] = {
    **TINY,
    "mailbox_poll_interval_s": 0.05,
    "flush_age_s": 0.05,
    "consolidation_bytes": 2000,
    "orphan_sweep_interval_s": 0.0,
}


SEGMENTS = 5
"""Of a busy store, over both containers."""


class Busy:
    """A store whose segments are appended to, truncated, merged and deleted, without a pause, in a
    thread.
    """

    def __init__(self, store: blocking.SegmentStore) -> None:
        self._store = store
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.rounds = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def go_on(self) -> None:
        """Wait until each of its segments was changed: a slow disk may be slower than a run."""
        enough = self.rounds + 1 + SEGMENTS
        while self.rounds < enough and self._thread.is_alive():
            time.sleep(0.01)

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                self._round(self.rounds)
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - checked by the test
            self.error = error

    def _round(self, number: int) -> None:
        store, name = self._store, f"segment-{number % SEGMENTS}"
        if number >= SEGMENTS and number % 7 == 0:
            store.delete(name)
            store.create_segment(name)
        elif number < SEGMENTS:
            store.create_segment(name)
        for _ in range(8):
            store.append(name, os.urandom(50))
        if number % 3 == 0:
            store.truncate(name, store.get_info(name).length // 2)
        if number % 4 == 0:
            source = f"{name}#transaction.{number:032x}"
            store.create_segment(source)
            store.append(source, b"merged" * 20)
            store.seal(source)
            store.merge(name, source)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[blocking.SegmentStore]:
    location = tmp_path / "store"
    blocking.open(location, containers=2, **LIVE).close()
    with blocking.open(location, **LIVE) as store:
        yield store


def tier2_of(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tier2"


@sized(20)
@pytest.mark.parametrize("lag_s", [0.0, 1000.0])
def test_beside_an_owner_that_works_nothing_is_found(tmp_path: Path, lag_s: float) -> None:
    with (
        blocking.open(
            tmp_path / "store", containers=2, **{**LIVE, "deletion_lag_s": lag_s}
        ) as store,
        Busy(store) as busy,
    ):
        moved: list[bool] = []
        for _ in range(RUNS_BESIDE):
            before = busy.rounds
            spark = LocalSpark(then=busy.go_on)
            result = reconcile(spark.as_spark(), tier2_of(tmp_path).as_uri(), check="bodies")
            assert [
                row for row in result.table.to_pylist() if row["severity"] != "information"
            ] == []
            assert result.verdict == Exit.NOTHING
            assert busy.rounds > before
            assert busy.error is None
            moved += [second > first for _, first, second in result.summary.containers.values()]
        assert all(moved)


@slow(6)
@pytest.mark.spark_versions("reconcile")
def test_beside_a_live_owner_by_spark(
    spark: SparkSession, tmp_path: Path, live: blocking.SegmentStore
) -> None:
    with Busy(live) as busy:
        result = reconcile(spark, tier2_of(tmp_path).as_uri(), check="headers")
    assert busy.error is None
    assert [row for row in result.table.to_pylist() if row["severity"] != "information"] == []
    assert result.verdict == Exit.NOTHING


def test_what_is_planted_beside_a_live_owner_is_found(tmp_path: Path) -> None:
    folder = tier2_of(tmp_path)
    with blocking.open(
        tmp_path / "store", containers=2, **{**LIVE, "consolidation": False}
    ) as store:
        store.create_segment("kept")
        store.append("kept", b"kept" * 20)
        store.flush()
        (name,) = {str(path.relative_to(folder)) for path in folder.glob("??/*/*/*")}
        with Busy(store):
            (folder / name).unlink()
            result = reconcile(LocalSpark().as_spark(), folder.as_uri())
    (row,) = [row for row in result.table.to_pylist() if row["severity"] == "harmful"]
    assert (row["kind"], row["object"], result.verdict) == ("missing", name, Exit.FINDINGS)


def test_an_owner_that_changes_during_the_run_is_asked_as_the_one_before(tmp_path: Path) -> None:
    stores = [blocking.open(tmp_path / "store", containers=2, **LIVE)]
    stores[0].create_segment("a")
    stores[0].append("a", b"a" * 500)

    def change() -> None:
        stores.pop().close()
        stores.append(blocking.open(tmp_path / "store", **LIVE))
        stores[0].append("a", b"b" * 500)
        stores[0].flush()

    try:
        result = reconcile(
            LocalSpark(then=change).as_spark(), tier2_of(tmp_path).as_uri(), check="bodies"
        )
    finally:
        stores[0].close()
    assert result.verdict == Exit.NOTHING
    assert [epoch for epoch, _, _ in result.summary.containers.values()] == [2, 2]


@slow(1)
def test_orphans_are_deleted_by_their_owner(tmp_path: Path, live: blocking.SegmentStore) -> None:
    live.create_segment("a")
    folder, world_random = tier2_of(tmp_path), World(tmp_path / "other").random
    tag = store_tag(str(live.stats()["store_id"]))
    names = [object_name(number, 1, "flush", new_tagged_id(tag, world_random)) for number in (0, 1)]
    young = object_name(0, 1, "flush", new_tagged_id(tag, world_random))
    moment = time.time()
    for name in (*names, young):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"left by a crash")
        age_s = (1 if name == young else 10) * DAY_S
        os.utime(folder / name, (moment - age_s, moment - age_s))
    url = folder.as_uri()
    dry = reconcile(LocalSpark().as_spark(), url, delete_orphans=True)
    assert (dry.summary.orphans, dry.condemned) == (2, ())
    assert all((folder / name).exists() for name in names)
    result = reconcile(LocalSpark().as_spark(), url, delete_orphans=True, execute=True)
    assert sorted(name for each in result.condemned for name in each.shown) == sorted(names)
    assert [(each.container_id, each.verdict, each.condemned) for each in result.condemned] == [
        (0, "condemned", 1),
        (1, "condemned", 1),
    ]
    assert result.verdict == Exit.FINDINGS
    deadline = time.monotonic() + 240
    while any((folder / name).exists() for name in names) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any((folder / name).exists() for name in names)
    assert (folder / young).exists()
    assert found(reconcile(LocalSpark().as_spark(), url).table) == {("in_flight", young)}


def test_the_owner_leaves_alone_what_it_has_a_reason_for(
    tmp_path: Path, live: blocking.SegmentStore
) -> None:
    live.create_segment("a")
    folder = tier2_of(tmp_path)
    name = object_name(0, 2, "flush", store_tag(str(live.stats()["store_id"])) + bytes(8))
    parts = parse_object_name(name)
    assert parts is not None
    assert parts.epoch == 2
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(b"of this very epoch")
    os.utime(folder / name, (1, 1))
    result = reconcile(LocalSpark().as_spark(), folder.as_uri(), delete_orphans=True, execute=True)
    (answer,) = result.condemned
    assert (answer.verdict, answer.condemned, list(answer.shown_left)) == ("condemned", 0, [name])
    assert answer.left_alone == {answer.shown_left[name]: 1}


def test_an_owner_that_is_away_ends_as_undecided(world: World) -> None:
    world.snapshot()
    result = reconcile(LocalSpark().as_spark(), world.url, timeout_s=0.2)
    assert result.verdict == Exit.UNDECIDED
    assert (
        list(result.summary.unresponsive.values()) == ["its owner did not answer within 0.2 s"] * 2
    )
    assert result.summary.listed == 0
