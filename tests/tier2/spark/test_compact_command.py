"""The verb `compact`: what it takes, what it prints, and how it ends.

Without Spark, but for what only Spark can show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segmentstore.contracts.byte_sizes import MIB
from tests.support.suites import slow
from tests.tier2.spark.compaction_place import Place
from tier2.spark import commands
from tier2.spark.common.command_options import Exit


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def run(*arguments: str) -> int:
    return commands.execute(commands.parse(["compact", *arguments]))


def test_a_dry_run_prints_the_plan_and_needs_no_session(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fragment()
    assert (
        run(place.url, "--dry-run", "--older-than", "0 seconds", "--timeout", "120") == Exit.NOTHING
    )
    said = capsys.readouterr()
    assert "would compact" in said.out
    assert f"{len(place.objects())} objects are freed" in said.out
    assert said.err == ""


def test_as_json_there_is_nothing_else(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.fragment()
    code = run(
        place.url,
        "--dry-run",
        "--json",
        "--older-than",
        "0s",
        "--job-id",
        "00000000000000aa",
        "--timeout",
        "120",
    )
    document = json.loads(capsys.readouterr().out)
    assert (code, document["exit_code"], document["job_id"]) == (0, 0, "00000000000000aa")
    assert {row["status"] for row in document["rows"]} == {"planned"}


def test_what_is_young_is_left_alone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.fragment()
    assert run(place.url, "--dry-run", "--timeout", "120") == Exit.NOTHING
    assert "nothing is worth rewriting" in capsys.readouterr().out


def test_a_container_that_the_store_has_not_is_named(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fragment()
    arguments = ("--dry-run", "--older-than", "0s", "--timeout", "120", "--where-container")
    assert run(place.url, *arguments, "0,9") == Exit.UNDECIDED
    assert "where-container: the store has no container 9" in capsys.readouterr().err
    assert run(place.url, *arguments, "0") == Exit.NOTHING


def test_an_owner_that_does_not_answer_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, mailbox_poll_interval_s=0.0)
    assert run(place.url, "--dry-run", "--timeout", "0.1") == Exit.UNDECIDED
    assert "unresponsive: " in capsys.readouterr().out
    place.store.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target-file-size-bytes", str(64 * MIB - 1)], "target-file-size-bytes"),
        (["--target-file-size-bytes", str(513 * MIB)], "target-file-size-bytes"),
        (["--min-input-files", "1"], "min-input-files"),
        (["--older-than", "long"], "older-than"),
        (["--job-id", "A"], "job-id"),
    ],
)
def test_wrong_values_are_named_before_anything_is_done(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("memory://nothing", *arguments, "--dry-run") == Exit.UNDECIDED
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--where-container", "a,b"], ["--rewrite-job-order", "size"], ["--timeout", "-1"]],
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("memory://nothing", *arguments)
    assert ended.value.code == 2


@slow(2)
@pytest.mark.timeout(300)  # a session, and workers, on a machine that does other things too
class TestOnSpark:
    def test_all_is_committed(
        self, spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert spark is not None
        place.fragment()
        before = place.content()
        assert (
            run(place.url, "--older-than", "0s", "--timeout", "120", "--where-container", "0,1")
            == Exit.NOTHING
        )
        said = capsys.readouterr()
        assert "all committed" in said.out
        assert said.err.startswith("job ")
        assert place.content() == before
        assert run(place.url, "--older-than", "0s", "--timeout", "120") == Exit.NOTHING
        assert "nothing to do" in capsys.readouterr().out
