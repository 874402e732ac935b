"""The session of a job: the one that is there, and whose end is not the job's if it was there before."""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import SparkSession

from tier2.spark.session import interrupt_sessions, is_connect, spark_session, stop_sessions, task_runtime


def test_a_session_that_is_there_is_taken_from_any_thread_and_survives_the_job(spark: SparkSession) -> None:
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(spark_session("a job")))
    thread.start()
    thread.join()
    assert found == [spark]
    assert not is_connect(spark)
    interrupt_sessions()
    stop_sessions()
    assert spark.range(3).count() == 3
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_nothing_is_stopped_where_nothing_was_begun() -> None:
    stop_sessions()
    interrupt_sessions()
    assert task_runtime().clock.time_ms() > 0
