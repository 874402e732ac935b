"""The compaction job beside a real owner: the same bytes whatever is written, lost, doubled,
refused or ended meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from segmentstore import ConfigError
from tests.support.suites import share
from tests.tier2.spark.compaction_place import NAMES, OPTIONS, Caller, Place
from tests.tier2.spark.local_session import LocalFrame, LocalSession
from tier2.spark.common.command_options import Exit
from tier2.spark.common.frames import arrow_of
from tier2.spark.compact import job as compact_job
from tier2.spark.compact import work as compaction_work
from tier2.spark.compact.job import CompactionPlanned, compact, plan_compaction
from tier2.spark.compact.report import GROUPS, GroupRow, summary_json, summary_text
from tier2.spark.compact.work import bins_of


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def statuses(result: CompactionPlanned) -> Counter[str]:
    return Counter(row.status for row in result.rows)


class TestBesideAnOwner:
    def test_all_is_committed_and_every_byte_is_what_it_was(self, place: Place) -> None:
        place.fragment()
        before, old = place.content(), place.objects()
        session = LocalSession()
        result = place.compact(session)
        assert set(statuses(result)) == {"committed"}
        assert result.summary.verdict is Exit.NOTHING
        assert session.actions == 2, "a plan, and the work"
        assert place.content() == before
        numbers = result.summary
        assert (
            numbers.added_data_files_count == len(result.rows) == len(place.objects("compaction"))
        )
        assert numbers.rewritten_bytes_count == sum(map(len, before.values()))
        assert numbers.rewritten_data_files_count == numbers.removed_data_files_count == len(old)
        assert numbers.expected_removed_data_files_count == len(old)
        assert numbers.chunks_after < numbers.chunks_before == 6 * len(NAMES)
        assert result.groups.toArrow().schema == GROUPS
        place.store.close()
        place.open()
        assert place.content() == before

    def test_a_second_run_finds_nothing_to_do(self, place: Place) -> None:
        place.fragment()
        place.compact()
        again = place.compact()
        assert again.rows == ()
        assert again.summary.verdict is Exit.NOTHING
        assert "nothing is worth rewriting" in summary_text(again.summary, again.rows)

    def test_a_dry_run_changes_nothing(self, place: Place) -> None:
        place.fragment()
        old = place.objects()
        planned = place.plan()
        assert set(statuses(planned)) == {"planned"}
        assert planned.summary.expected_removed_data_files_count == len(old)
        assert planned.summary.verdict is Exit.NOTHING
        assert place.objects() == old
        assert place.messages() == Counter()
        assert statuses(place.compact(dry_run=True)) == statuses(planned)
        text = summary_text(planned.summary, planned.rows)
        assert f"{len(old)} objects are freed" in text

    def test_attempts_that_are_lost_or_doubled_leave_garbage_and_nothing_else(
        self, place: Place
    ) -> None:
        place.fragment(rounds=8)
        before = place.content()
        result = place.compact(LocalSession(lost=1))
        assert set(statuses(result)) == {"committed"}
        place.fragment(rounds=8, names=[f"more/{number}" for number in range(4)])
        before = place.content()
        more = place.compact(LocalSession(twice=True))
        assert set(statuses(more)) == {"committed"}
        assert place.messages() == Counter(
            proposal=len(result.rows) + len(more.rows), answer=len(result.rows) + len(more.rows)
        )
        assert len(place.objects("compaction")) >= len(result.rows) + len(more.rows)
        assert place.content() == before
        assert place.compact().rows == ()

    def test_a_large_plan_takes_several_queries(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction_work, "ROUND_CHUNKS", 20)
        place.fragment()
        session = LocalSession()
        result = place.compact(session, target_file_size_bytes=1000)
        assert session.actions > 1
        assert set(statuses(result)) == {"committed"}

    def test_what_was_already_proposed_is_read_from_the_proposal(self, place: Place) -> None:
        place.fragment()
        result = place.compact(LocalSession(lost=99))
        assert {row.method for row in result.rows} == {""}, "the attempt that counts found it done"
        assert all(row.object in place.objects("compaction") for row in result.rows)
        assert result.summary.chunks_after > 0

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_merged_truncated_compressed_and_deleted_segments(
        self, tmp_path: Path, compression: str
    ) -> None:
        place = Place(tmp_path, compression=compression, containers=1)
        place.fragment()
        place.store.create_segment("target")
        for number in range(5):
            place.store.create_segment(f"source/{number}")
            place.store.append(f"source/{number}", bytes([number]) * 200)
            place.store.flush()
            place.store.merge("target", f"source/{number}")
        place.store.flush()
        place.store.truncate(NAMES[0], 170)
        place.store.delete(NAMES[1])
        before = place.content()
        result = place.compact()
        assert set(statuses(result)) == {"committed"}
        assert place.content() == before
        assert place.compact().rows == ()
        place.store.close()

    def test_only_segments_that_match_are_touched(self, place: Place) -> None:
        place.fragment()
        result = place.compact(where_segment="logs/[12]")
        assert sum(row.segments for row in result.rows) == 2
        of_one = place.compact(where_container=frozenset({1}))
        assert {row.container_id for row in of_one.rows} == {1}
        assert {row.container_id for row in place.compact().rows} == {0}


class TestBesideCallers:
    @pytest.mark.parametrize("seed", share([1, 2], 2, 8))
    def test_every_byte_is_right_whatever_they_do_meanwhile(
        self, tmp_path: Path, seed: int
    ) -> None:
        place = Place(
            tmp_path, containers=1, consolidation=True, consolidation_bytes=2000, deletion_lag_s=0.5
        )
        place.fragment(rounds=10)
        caller, ended = Caller(place, seed), threading.Event()
        outcomes: Counter[str] = Counter()
        with ThreadPoolExecutor(1) as pool:
            at_work = pool.submit(caller.run, ended)
            try:
                for number in range(30):
                    result = place.compact(LocalSession(lost=number % 2, twice=number % 2 == 0))
                    outcomes += statuses(result)
                    outcomes["looked"] += len(result.groups.toArrow())
                    # A machine may be so busy that the callers are always faster: then they are
                    # raced again.
                    if number >= 3 and outcomes["committed"] + outcomes["committed_in_part"]:
                        break
            finally:
                ended.set()
                at_work.result(240)
        assert outcomes["committed"] + outcomes["committed_in_part"] > 0
        assert caller.steps > 10
        assert place.content() == caller.expected()
        place.store.close()
        place.open()
        assert place.content() == caller.expected()
        place.store.close()


class TestRefused:
    def test_of_two_jobs_at_once_the_second_is_refused(self, tmp_path: Path) -> None:
        place = Place(tmp_path, mailbox_poll_interval_s=0.0)
        place.fragment()
        place.store.export_catalog()
        before = place.content()
        first = place.compact(snapshots="newest", commit_timeout_s=0.0)
        second = place.compact(snapshots="newest", commit_timeout_s=0.0)
        assert set(statuses(first)) == set(statuses(second)) == {"pending"}
        assert first.summary.verdict is Exit.UNDECIDED
        assert [row.group_id for row in first.rows] == [row.group_id for row in second.rows]
        place.store.process_mailbox()
        outcomes = [
            place.compact(snapshots="newest", job_id=each.summary.job_id, commit_timeout_s=0.0)
            for each in (first, second)
        ]
        by_status = Counter(status for each in outcomes for status in statuses(each).elements())
        assert by_status == Counter(committed=len(first.rows), overtaken=len(second.rows))
        for each in outcomes:
            assert (each.summary.verdict, each.summary.failed_data_files_count) == (Exit.NOTHING, 0)
            assert all(
                row.reason.startswith("refused_changed")
                for row in each.rows
                if row.status == "overtaken"
            )
        assert (
            sum("changed meanwhile:" in summary_text(each.summary, each.rows) for each in outcomes)
            >= 1
        )
        assert len(place.objects("compaction")) == 2 * len(first.rows), "no task did any work again"
        assert place.content() == before
        place.store.close()

    def test_what_was_refused_under_a_jobs_id_is_reported_again_and_a_new_job_works_at_it(
        self, tmp_path: Path
    ) -> None:
        place = Place(tmp_path, mailbox_poll_interval_s=0.0)
        place.fragment()
        place.store.export_catalog()
        before = place.content()
        options: dict[str, Any] = {"snapshots": "newest", "commit_timeout_s": 0.0}
        proposed = place.compact(**options)
        day_before = time.time() - 25 * 3600
        for name in place.objects("compaction"):
            os.utime(place.tier2 / name, (day_before, day_before))
        place.store.process_mailbox()
        for _ in range(2):
            again = place.compact(job_id=proposed.summary.job_id, **options)
            assert [row.group_id for row in again.rows] == [row.group_id for row in proposed.rows]
            assert set(statuses(again)) == {"refused"}
            assert all(row.reason.startswith("expired: ") for row in again.rows)
            assert again.summary.verdict is Exit.FINDINGS
            assert again.summary.requests == 0
            text = summary_text(again.summary, again.rows)
            assert f"group {again.rows[0].group_id} refused: expired" in text
        anew = place.compact(**options)
        assert [row.group_id for row in anew.rows] == [row.group_id for row in proposed.rows]
        place.store.process_mailbox()
        told = place.compact(job_id=anew.summary.job_id, **options)
        assert set(statuses(told)) == {"committed"}
        assert place.content() == before
        place.store.close()

    def test_what_changed_meanwhile_is_refused_with_its_block(self, tmp_path: Path) -> None:
        place = Place(tmp_path, mailbox_poll_interval_s=0.0)
        place.fragment(rounds=10)
        place.store.export_catalog()
        job = place.compact(snapshots="newest", commit_timeout_s=0.0).summary.job_id
        place.store.truncate(NAMES[0], 900)
        place.store.delete(NAMES[1])
        before = place.content()
        place.store.process_mailbox()
        result = place.compact(snapshots="newest", job_id=job, commit_timeout_s=0.0)
        assert statuses(result)["committed_in_part"] >= 1
        assert set(statuses(result)) <= {"committed", "committed_in_part", "overtaken"}
        assert result.summary.verdict is Exit.NOTHING
        assert place.content() == before
        text = summary_text(result.summary, result.rows)
        assert "committed_in_part" in text
        place.store.close()

    @pytest.mark.parametrize("lost", [False, True])
    def test_a_source_that_is_missing_is_a_fault_only_if_the_store_still_needs_it(
        self, tmp_path: Path, lost: bool
    ) -> None:
        place = Place(tmp_path, deletion_lag_s=0.0)
        place.fragment(names=["a", "b"])
        sources = place.objects()
        of_a = sources[0]

        class Meanwhile(LocalSession):
            def createDataFrame(  # noqa: N802 - Spark's
                self, table: pa.Table, schema: str = ""
            ) -> LocalFrame:
                if not self.actions and lost:
                    (place.tier2 / of_a).unlink()
                elif not self.actions:
                    for name in ("a", "b"):
                        place.store.delete(name)
                    give_up = time.monotonic() + 240
                    while (
                        any((place.tier2 / each).exists() for each in sources)
                        and time.monotonic() < give_up
                    ):
                        place.store.flush()
                return super().createDataFrame(table, schema)

        result = place.compact(Meanwhile())
        assert result.rows
        if lost:
            assert [of_a in row.reason for row in result.rows if row.status == "failed"] == [True]
            assert result.summary.verdict is Exit.FINDINGS
        else:
            assert set(statuses(result)) == {"overtaken"}
            assert all("the store itself has replaced it" in row.reason for row in result.rows)
            assert (result.summary.verdict, result.summary.failed_data_files_count) == (
                Exit.NOTHING,
                0,
            )
        place.store.close()

    def test_a_corrupt_source_fails_its_group_alone(self, place: Place) -> None:
        place.fragment(names=["a"])
        place.fragment(names=["b"])
        of_a = place.objects()[0]
        planned = place.plan(max_file_group_size_bytes=1000, target_file_size_bytes=1000)
        path = place.tier2 / of_a
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        result = place.compact(max_file_group_size_bytes=1000, target_file_size_bytes=1000)
        assert len(result.rows) == len(planned.rows) > 1
        failed = [row for row in result.rows if row.status == "failed"]
        assert len(failed) == 1
        assert of_a in failed[0].reason
        assert statuses(result)["committed"] == len(result.rows) - 1
        assert result.summary.verdict is Exit.FINDINGS
        assert result.summary.failed_data_files_count == failed[0].source_objects


class TestWithoutAnAnswer:
    def test_a_stopped_store_commits_when_it_is_opened(self, place: Place) -> None:
        place.fragment()
        before = place.content()
        place.store.export_catalog()
        place.store.close()
        stopped = place.compact(snapshots="newest", commit_timeout_s=0.0)
        assert set(statuses(stopped)) == {"pending"}
        assert f"--job-id {stopped.summary.job_id}" in summary_text(stopped.summary, stopped.rows)
        place.open()
        result = place.compact(job_id=stopped.summary.job_id)
        assert statuses(result) == Counter(committed=len(stopped.rows))
        assert [row.object for row in result.rows] == [row.object for row in stopped.rows]
        assert place.content() == before

    def test_an_old_snapshot_is_planned_from_and_the_silence_reported(self, tmp_path: Path) -> None:
        place = Place(tmp_path, mailbox_poll_interval_s=0.0)
        place.fragment()
        place.store.export_catalog()
        result = place.plan(timeout_s=0.2)
        assert result.rows
        assert sorted(result.summary.unresponsive) == [0, 1]
        assert result.summary.verdict is Exit.UNDECIDED
        place.store.close()

    def test_without_a_snapshot_nothing_can_be_reported(self, tmp_path: Path) -> None:
        place = Place(tmp_path, mailbox_poll_interval_s=0.0)
        result = place.compact(timeout_s=0.2)
        assert (result.rows, result.summary.verdict) == ((), Exit.UNDECIDED)
        place.store.close()


class TestWhatIsSaid:
    def test_as_json(self, place: Place) -> None:
        place.fragment()
        result = place.compact()
        document = json.loads(json.dumps(summary_json(result.summary, result.rows)))
        assert document["exit_code"] == 0
        assert document["added_data_files_count"] == len(document["rows"]) == len(result.rows)
        assert document["rows"][0].keys() == set(GROUPS.names)
        assert document["requests"] == sum(row["requests"] for row in document["rows"]) > 0

    def test_as_json_by_names_that_do_not_change(self, place: Place) -> None:
        place.fragment()
        result = place.compact()
        summary = dataclasses.replace(result.summary, unresponsive={1: "no answer"})
        document = json.loads(json.dumps(summary_json(summary, ())))
        assert document["untold"] == [{"container_id": 1, "reason": "no answer"}]
        assert " ".join(document) == (
            "job_id url dry_run containers untold groups chunks_before chunks_after source_objects "
            "expected_removed_data_files_count planned_bytes groups_left chunks_left "
            "rewritten_data_files_count added_data_files_count rewritten_bytes_count "
            "failed_data_files_count removed_data_files_count requests bytes_received bytes_sent "
            "bytes_copied verdict exit_code rows"
        )

    @pytest.mark.parametrize(
        "wrong", [{"job_id": "7"}, {"snapshots": "old"}, {"min_input_files": 0}]
    )
    def test_wrong_options_are_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            plan_compaction("memory://", **wrong)


def test_of_an_attempt_that_came_second_only_its_effort_is_reported() -> None:
    made = {
        "outcome": "proposed",
        "reason": "",
        "method": "rewrite",
        "object_name": "x",
        "object_bytes": 7,
    }
    effort = dict.fromkeys(
        ("requests", "bytes_received", "bytes_sent", "bytes_copied", "milliseconds", "attempt"), 3
    )
    row = GroupRow(job_id="00000000000000ab", container_id=1, group_id="g", chunks_before=9)
    first = row.with_result({**made, **effort, "chunks_after": 2, "first": True})
    assert (first.object, first.object_bytes, first.method, first.requests) == (
        "x",
        7,
        "rewrite",
        3,
    )
    second = row.with_result({**made, **effort, "chunks_after": 2, "first": False})
    assert (second.status, second.object, second.object_bytes, second.chunks_after) == (
        "pending",
        "",
        0,
        0,
    )
    assert (second.method, second.requests) == ("", 3)


def test_bins_are_even_and_the_largest_first() -> None:
    assert bins_of([5, 1, 1, 9, 1], 2) == [1, 1, 1, 0, 0]
    assert bins_of([1], 64) == [0]
    assert sorted(Counter(bins_of([0] * 10, 3)).values()) == [3, 3, 4]


@pytest.mark.timeout(300)  # a session, and workers, on a machine that does other things too
@pytest.mark.spark_versions("compact")
class TestOnSpark:
    def test_the_whole_job(self, spark: SparkSession, place: Place) -> None:
        place.fragment()
        before = place.content()
        result = compact(spark, place.url, **OPTIONS)
        assert set(statuses(result)) == {"committed"}
        assert place.content() == before
        rows = arrow_of(result.groups, GROUPS)
        assert rows.column_names == GROUPS.names
        assert rows.to_pylist() == result.table.to_pylist()
        assert place.messages() == Counter(proposal=len(result.rows), answer=len(result.rows)), (
            "one action"
        )
        assert compact(spark, place.url, **OPTIONS).rows == ()

    def test_tasks_that_die_behind_their_work_are_run_again(
        self, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies_at_first() -> int:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise OSError("the executor is lost")
            return context.attemptNumber()

        monkeypatch.setattr(compact_job, "attempt_number", dies_at_first)
        place.fragment()
        before = place.content()
        result = compact(spark, place.url, **OPTIONS)
        assert set(statuses(result)) == {"committed"}
        assert {row.attempt for row in result.rows} == {1}
        assert place.messages() == Counter(proposal=len(result.rows), answer=len(result.rows))
        assert place.content() == before
