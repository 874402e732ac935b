"""The verb `reconcile`, as it is called: exit codes, what is printed, what is written, and how
failures are reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.suites import slow
from tests.tier2.spark.reconcile_world import World
from tier2.spark.commands import execute, parse
from tier2.spark.reconcile import found_classes
from tier2.spark.reconcile.command import _cause
from tier2.spark.reconcile.findings import FINDINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(
    300
)  # the first query of a session takes its time on a busy machine

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2", objects=4)


def command(*words: str) -> int:
    return execute(parse(["reconcile", *words]))


@slow(2)
def test_nothing_found(spark: SparkSession, world: World, capsys: Captured) -> None:
    world.garbage(0)
    world.snapshot()
    assert command(world.url, "--stopped", "--check", "bodies") == 0
    shown = capsys.readouterr().out
    assert "waiting_for_deletion" in shown
    assert shown.rstrip().endswith("nothing found")


def test_findings_are_shown_and_written(
    spark: SparkSession, world: World, capsys: Captured, tmp_path: Path
) -> None:
    lost = world.names(0)[1]
    world.lose(lost)
    world.snapshot()
    report = tmp_path / "report"
    assert command(world.url, "--stopped", "--report", str(report)) == 1
    shown = capsys.readouterr().out.splitlines()
    (line,) = [line for line in shown if line.startswith("missing")]
    assert line.split()[:3] == ["missing", "harmful", "1"]
    assert lost in line
    table = pq.read_table(report / "findings.parquet")
    assert table.schema.equals(FINDINGS)
    assert table["object"].to_pylist() == [lost]
    assert json.loads((report / "summary.json").read_text())["exit_code"] == 1


def test_a_report_has_all_findings_however_many_there_are(
    spark: SparkSession,
    world: World,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(found_classes.shown_by_each, "__defaults__", (0,))
    monkeypatch.setattr(found_classes, "FINDINGS_SHOWN_MIN", 1)
    lost = world.names(0)[:3]
    for name in lost:
        world.lose(name)
    world.snapshot()
    report = tmp_path / "report"
    assert command(world.url, "--stopped", "--tasks", "1", "--report", str(report)) == 1
    line = capsys.readouterr().out.splitlines()[2]
    assert line.split()[:4] == ["findings", "1", "of", "3,"]
    assert line.endswith(str(report / "findings.parquet"))
    assert set(pq.read_table(report / "findings.parquet")["object"].to_pylist()) == set(lost)
    assert sorted(path.name for path in report.iterdir()) == ["findings.parquet", "summary.json"]


def test_a_report_within_the_store_would_be_foreign_there(world: World, capsys: Captured) -> None:
    world.snapshot()
    assert command(world.url, "--stopped", "--report", str(world.folder / "report")) == 2
    assert "setting report" in capsys.readouterr().err
    assert not (world.folder / "report").exists()


@slow(2)
def test_one_json_document(spark: SparkSession, world: World, capsys: Captured) -> None:
    orphan = world.orphan(1)
    world.snapshot()
    assert (
        command(
            world.url, "--stopped", "--json", "--delete-orphans", "--run-id", "00000000000000ef"
        )
        == 1
    )
    document = json.loads(capsys.readouterr().out)
    (finding,) = document["findings"]
    assert (finding["kind"], finding["severity"], finding["count"]) == ("orphan", "note", 1)
    assert finding["example"].startswith(orphan)
    assert (document["run_id"], document["orphans"], document["delete_orphans"]) == (
        "00000000000000ef",
        1,
        "dry run",
    )


def test_an_owner_that_does_not_answer(spark: SparkSession, world: World, capsys: Captured) -> None:
    world.snapshot()
    assert command(world.url, "--timeout", "0.1") == 2
    shown = capsys.readouterr().out
    assert "container 1  unresponsive: its owner did not answer within 0.1 s" in shown


def test_a_catalog_that_cannot_be_read(spark: SparkSession, world: World, capsys: Captured) -> None:
    manifest = world.snapshot()[1]
    world.cut(manifest.tables["objects"].object, 100)
    assert command(world.url, "--stopped") == 2
    assert manifest.tables["objects"].object in capsys.readouterr().err


def test_a_listing_that_cannot_be_taken(
    spark: SparkSession, world: World, capsys: Captured, tmp_path: Path
) -> None:
    world.snapshot()
    assert command(world.url, "--stopped", "--listing", str(tmp_path / "nothing.parquet")) == 2
    assert "nothing.parquet" in capsys.readouterr().err
    elsewhere = tmp_path / "elsewhere.parquet"
    pq.write_table(pa.table({"key": ["s3://bucket/x"], "size": [1], "modified_ms": [1]}), elsewhere)
    assert command(world.url, "--stopped", "--listing", str(elsewhere)) == 2
    assert "prefix_mismatch_mode" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--older-than", "2 hours"], "older-than"),
        (["--older-than", "soon"], "older-than"),
        (["--execute"], "execute"),
        (["--tasks", "1000"], "tasks"),
        (["--run-id", "x"], "run-id"),
    ],
)
def test_arguments_that_are_refused_cost_no_session(
    world: World, capsys: Captured, words: Sequence[str], said: str
) -> None:
    assert command(world.url, *words) == 2
    assert said in capsys.readouterr().err


def test_a_place_there_is_not(spark: SparkSession, capsys: Captured) -> None:
    assert command("nowhere://x/y", "--stopped") == 2
    assert "nowhere" in capsys.readouterr().err


def test_of_a_failed_query_the_cause_is_reported() -> None:
    text = (
        "Job aborted.\n  File x\ntier2.object_storage.StorageUnavailableError: ab/: no "
        "answer (503)\n\n\tat org.apache\n"
    )
    assert _cause(text) == "tier2.object_storage.StorageUnavailableError: ab/: no answer (503)"
    assert _cause("only this\nand that") == "only this"
    assert _cause("") == "the query failed"
