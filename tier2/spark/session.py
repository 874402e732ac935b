"""The Spark session of a job: where it comes from, how it is interrupted, and what a task finds in its place.

Rules of this file:

- the master is never named by a job. Spark has it from spark-submit, PYSPARK_SUBMIT_ARGS, SPARK_REMOTE or spark-defaults.conf;
  only the console entry (`commands`) says something where nobody else did, in the environment, before the first session;
- by Spark Connect and on other machines the code of the tasks is sent along: what judges there is what judges here;
- the only place besides `progress` that tells classic sessions from Connect.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from segmentstore.contracts.runtime import Runtime
from tier2.spark.archive import ARCHIVE_NAME, build_archive

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python process it starts: code is sent by its --py-files."""

_sessions: list[SparkSession] = []
"""What this process has: one, or none."""
_made: list[SparkSession] = []
"""The same, if it was made here: a notebook's own is not ours to stop."""


def spark_session(app_name: str) -> SparkSession:
    """The session of this process, made at the first call: classic, or Connect where SPARK_REMOTE says so.

    Tasks run the interpreter of this process unless PYSPARK_PYTHON names another. Raises what pyspark raises when there is no
    Java, no master or no server.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    was_there = _is_any()
    spark = SparkSession.builder.appName(app_name).getOrCreate()
    if spark not in _sessions:
        _sessions[:] = [spark]
        _made[:] = [] if was_there else [spark]
        if _code_is_elsewhere(spark):
            _send_code(spark)
    return spark


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def interrupt_sessions() -> None:
    """Cancel every query of this process that runs; returns at once, whoever waits for one gets its error. Any thread."""
    for spark in _sessions:
        spark.interruptAll()


def stop_sessions() -> None:
    """End the session that was made here; of a Connect server only what is this client's. Nothing happens if there is none."""
    _sessions.clear()
    while _made:
        _made.pop().stop()


def task_runtime() -> Runtime:
    """Clock, chance and threads of a task. Made in the task, never sent to it."""
    return Runtime()


def _is_any() -> bool:
    """Whether somebody in this process has made a session, in whatever thread."""
    # getActiveSession tells of the calling thread alone, for classic ones, and pyspark has no public name for the other question.
    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None  # noqa: SLF001


def _code_is_elsewhere(spark: SparkSession) -> bool:
    """Whether tasks run where this process's packages may not be."""
    if is_connect(spark):
        return True
    master = spark.conf.get("spark.master", "local") or "local"
    return _SUBMITTED not in os.environ and not master.startswith("local")


def _send_code(spark: SparkSession) -> None:
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-spark-"))
    # Spark reads it again whenever an executor comes.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.addArtifacts(str(build_archive(folder / ARCHIVE_NAME)), pyfile=True)
