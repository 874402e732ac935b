"""What the driver of a job is handed, counted: rows for containers, tasks and findings, never for
what is as it should be.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.tier2.spark.reconcile_dry import LocalFrame, LocalSpark, found, handed_to_driver, stopped
from tests.tier2.spark.reconcile_world import DAY_S, PAYLOAD, World
from tier2.catalog import catalog_files
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import put_message
from tier2.mailbox.messages import Replacement, ReplaceProposal
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile import found_classes
from tier2.spark.reconcile import job as reconcile_job
from tier2.spark.reconcile import plan as reconcile_plan
from tier2.spark.reconcile.found_classes import FoundClass
from tier2.spark.reconcile.marks import HASHES
from tier2.spark.reconcile.report import summary_json, summary_text
from tier2.spark.reconcile.tasks import WAITING_SHOWN

RUN = "00000000000000ab"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """All that comes to the driver."""
    return handed_to_driver(monkeypatch)


def test_what_waits_for_its_deletion_is_counted_and_a_sample_of_it_shown(
    world: World, handed: list[pa.Table]
) -> None:
    lost = world.names(0)[0]
    world.lose(lost)
    waiting = {world.garbage(number % 2) for number in range(WAITING_SHOWN + 30)}
    world.snapshot()
    result = stopped(LocalSpark(), world, tasks=1)
    said = {kind.kind: kind.number for kind in result.summary.kinds}
    assert said == {"missing": 1, "waiting_for_deletion": len(waiting)}
    assert result.verdict is Exit.FINDINGS
    shown = {place for kind, place in found(result.table) if kind == "waiting_for_deletion"}
    assert len(shown) == WAITING_SHOWN
    assert shown < waiting
    assert max(table.num_rows for table in handed) <= WAITING_SHOWN + 1 + 3 + 4


def test_open_proposals_are_read_by_tasks_where_there_are_many(
    world: World, handed: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_job, "PROPOSALS_HERE", 2)
    names = [world.orphan(number % 2, age_s=20 * DAY_S) for number in range(5)]
    forgotten = world.orphan(1, age_s=20 * DAY_S)

    async def propose() -> None:
        storage, runtime = open_object_storage(world.url, Runtime()), Runtime()
        for number, name in enumerate(names):
            old = ChunkRecord(0, 10, "old", 0, 9, 0)
            new = (Replacement(9, (old,), (old._replace(object_name=name),)),)
            message = ReplaceProposal(
                number % 2, RUN, f"group-{number}", ObjectRecord(name, 200, 1), new, 1
            )
            assert await put_message(storage, runtime, message)
        await storage.close()

    asyncio.run(propose())
    world.snapshot()
    result = stopped(LocalSpark(), world)
    assert found(result.table) == {("in_flight", name) for name in names} | {("orphan", forgotten)}
    (hashes,) = [table for table in handed if table.schema == HASHES]
    assert sum(len(row["bits"]) for row in hashes.to_pylist()) == 8 * len(names)


def test_segments_are_no_rows_of_the_driver_however_many_and_long_they_are(
    world: World, handed: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_files, "ROW_GROUP_ROWS", 5)
    monkeypatch.setattr(reconcile_plan.coverage_work, "__kwdefaults__", {"rows_per_task": 10})
    world.drop_chunk(0, 8, 5)
    world.snapshot()
    work: list[Any] = []
    create = LocalSpark.createDataFrame

    def look(self: LocalSpark, table: pa.Table, schema: str = "") -> LocalFrame:
        work.append(table)
        return create(self, table, schema)

    monkeypatch.setattr(LocalSpark, "createDataFrame", look)
    result = stopped(LocalSpark(), world)
    assert found(result.table) == {("gap", "0/8")}
    assert result.summary.chunks == 71
    items = [
        row["item"] for table in work if "item" in table.column_names for row in table.to_pylist()
    ]
    assert items.count("cover") == 8
    assert items.count("walk") == 1
    assert all(table.num_rows <= 40 for table in handed)


@pytest.fixture
def few_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_classes.shown_by_each, "__defaults__", (0,))
    monkeypatch.setattr(found_classes, "FINDINGS_SHOWN_MIN", 6)


def lose_most(world: World) -> tuple[set[str], str]:
    """Of container 0 hundreds of objects, one of container 1; orphans too, and a gap that they must
    not hide.
    """
    for number in range(300):
        world.add_object(0, (12 + number) * len(PAYLOAD))
    for segment in world.metadata[0].segments.values():
        segment.length = segment.storage_length = 312 * len(PAYLOAD)
    lost = {*world.names(0)[:290], world.names(1)[0]}
    for name in lost:
        world.lose(name)
    world.drop_chunk(1, 8, 5)
    orphan = world.orphan(1)
    world.snapshot()
    return lost, orphan


@pytest.mark.usefixtures("few_shown")
def test_of_many_findings_all_are_counted_and_a_sample_comes_to_the_driver(
    world: World, handed: list[pa.Table], tmp_path: Path
) -> None:
    lost, orphan = lose_most(world)
    place = tmp_path / "all"
    result = stopped(LocalSpark(), world, tasks=2, run_id=RUN, findings_url=place.as_uri())
    assert {kind.kind: kind.number for kind in result.summary.kinds} == {
        "missing": 291,
        "gap": 1,
        "orphan": 1,
    }
    assert result.summary.classes == {
        FoundClass("missing", "harmful", 0): 290,
        FoundClass("missing", "harmful", 1): 1,
        FoundClass("gap", "harmful", 1): 1,
        FoundClass("orphan", "note", 1): 1,
    }
    assert result.verdict is Exit.FINDINGS
    shown = found(result.table)
    assert {("gap", "1/8"), ("orphan", orphan)} < shown
    missing = {place for kind, place in shown if kind == "missing"}
    assert len(missing) < 12
    assert missing < lost
    # Of each container some are shown, however many another one lacks.
    assert set(result.table["container_id"].to_pylist()) == {0, 1}
    assert max(table.num_rows for table in handed) < 60
    (kind,) = [kind for kind in result.summary.kinds if kind.kind == "missing"]
    assert kind.shown == len(missing)
    assert f"of missing {kind.shown} are in the findings, a sample" in summary_text(
        result.summary, ()
    )
    (said,) = [
        each for each in summary_json(result.summary, ())["findings"] if each["kind"] == "missing"
    ]
    assert (said["count"], said["shown"]) == (291, kind.shown)
    everything = pa.concat_tables([pq.read_table(path) for path in sorted((place / RUN).iterdir())])
    assert found(everything) == {("missing", name) for name in lost} | {
        ("gap", "1/8"),
        ("orphan", orphan),
    }
    assert everything.num_rows == 293


def test_files_of_an_earlier_run_are_not_taken_for_those_of_this_one(
    world: World, tmp_path: Path
) -> None:
    world.lose(world.names(0)[0])
    world.snapshot()
    url = (tmp_path / "all").as_uri()
    stopped(LocalSpark(), world, run_id=RUN, findings_url=url)
    with pytest.raises(ConfigError, match="run-id"):
        stopped(LocalSpark(), world, run_id=RUN, findings_url=url)
    with pytest.raises(ConfigError, match="Tier 2"):
        stopped(LocalSpark(), world, findings_url=f"{world.url}/findings")
    with pytest.raises(ConfigError, match="memory"):
        stopped(LocalSpark(), world, findings_url="memory://findings")
