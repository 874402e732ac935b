"""Progress: how looks at stages add up, and what a terminal and a file are shown of it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from tier2.spark.progress import LOOK_S, Progress, StageCounts, TaskCount


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_of_several_queries_add_up_and_an_ended_one_counts_whole() -> None:
    counts = StageCounts()
    counts.see("a", 0, 3, 8)
    counts.see("b", 0, 1, 2)
    assert counts.count(running=2) == TaskCount(4, 10, 2)
    counts.see("a", 1, 0, 5)
    # Of a stage that is over nobody tells any more; its last look was before its end.
    counts.finish_others("a", [1])
    assert counts.count(running=5) == TaskCount(9, 15, 5)


def test_a_query_is_shown_on_a_terminal_and_nothing_is_left_there(spark: SparkSession) -> None:
    terminal = Terminal()
    with Progress(spark, "work", stream=terminal):
        spark.range(4, numPartitions=4).mapInArrow(_slowly, "id long").collect()
    shown = terminal.getvalue().split("\r")
    assert any(line.startswith("work: ") and "of 4 tasks" in line for line in shown), shown
    assert shown[-1] == ""
    assert not shown[-2].strip()


def test_a_file_gets_no_line_of_what_was_quick_and_nobody_none(spark: SparkSession) -> None:
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
    time.sleep(2 * LOOK_S)
    yield from batches
