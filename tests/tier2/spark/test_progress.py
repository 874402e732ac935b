"""Progress: how polls of stages add up, and what a terminal and a file are shown of it."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from segmentstore.contracts.runtime import Runtime
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import MessageKey
from tier2.spark.common import progress
from tier2.spark.common.progress import CHECK_S, Progress, StageCounts, TaskCount
from tier2.spark.common.waiting import waited_for
from tier2.spark.reconcile.owners import answers_to


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_of_several_queries_add_up_and_an_ended_one_counts_whole() -> None:
    counts = StageCounts()
    counts.see("a", 0, 3, 8)
    counts.see("b", 0, 1, 2)
    assert counts.count(running=2) == TaskCount(4, 10, 2)
    counts.see("a", 1, 0, 5)
    # A stage that is over gets no more reports; its last poll was before its end.
    counts.finish_others("a", [1])
    assert counts.count(running=5) == TaskCount(9, 15, 5)


def test_a_query_is_shown_on_a_terminal_and_nothing_is_left_there(spark: SparkSession) -> None:
    terminal = Terminal()
    with Progress(spark, "work", stream=terminal):
        # On a busy machine no check may come while it runs.
        while "of 4 tasks" not in terminal.getvalue():
            spark.range(4, numPartitions=4).mapInArrow(_slowly, "id long").collect()
    shown = terminal.getvalue().split("\r")
    assert any(line.startswith("work: ") and "of 4 tasks" in line for line in shown), shown
    assert shown[-1] == ""
    assert not shown[-2].strip()


def test_who_is_waited_for_is_shown_while_nothing_runs(spark: SparkSession) -> None:
    terminal = Terminal()
    key = MessageKey(3, "00000000000000ab", "export")
    storage = MemoryObjectStorage(Runtime())
    with Progress(spark, "work", stream=terminal):
        # No owner answers. It is searched for longer than a line takes to be drawn.
        while "waiting" not in terminal.getvalue():
            assert asyncio.run(answers_to(storage, [key], 3 * CHECK_S)) == {}
    shown = terminal.getvalue().split("\r")
    (line,) = [line for line in shown if line.startswith("work: waiting up to 1.5 s for the owner")]
    assert len(line) < 80
    assert not waited_for()


def test_a_file_gets_no_line_of_a_quick_job_whether_shown_or_not(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine nothing is.
    monkeypatch.setattr(progress, "LINE_EVERY_S", 3600.0)
    for show in (True, False):
        file = io.StringIO()
        with Progress(spark, "work", show=show, stream=file):
            spark.range(4).collect()
        assert not file.getvalue()


def test_a_stream_that_is_closed_harms_nothing(spark: SparkSession) -> None:
    terminal = Terminal()
    with Progress(spark, "work", stream=terminal):
        terminal.close()
        assert spark.range(4, numPartitions=4).mapInArrow(_slowly, "id long").count() == 4


def _slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(2 * CHECK_S)
    yield from batches
