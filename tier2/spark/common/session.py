"""The Spark session of a job: where it comes from, how it is interrupted, and what a task finds in
its place.

Rules of this file:

- the master is never named by a job. Spark has it from spark-submit, PYSPARK_SUBMIT_ARGS,
  SPARK_REMOTE or spark-defaults.conf; only the console entry (`commands`) sets one where none of
  these does, in the environment, before the first session;
- by Spark Connect and on other machines the code of the tasks is sent along: what checks there is
  what checks here;
- the only place besides `progress` that distinguishes classic sessions from Connect.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from segmentstore.contracts import forks
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.runtime import Runtime
from tier2.spark.common.archive import ARCHIVE_NAME, build_archive
from tier2.spark.common.masters import SparkUnreachableError, check_master

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python process it starts: code is sent by its --py-files."""

_NEVER_UP: Final = "JAVA_GATEWAY_EXITED"
_GAVE_UP: Final = "stopped SparkContext"
"""In what Java says of a session whose context has stopped itself before it was made: no master has
taken it up.
"""

_sessions: list[SparkSession] = []
"""What this process has: one, or none."""
_created: list[SparkSession] = []
"""The same, if it was made here: a notebook's own is not ours to stop."""


def spark_session(app_name: str) -> SparkSession:
    """The session of this process, made at the first call: classic, or Connect where SPARK_REMOTE
    says so.

    Tasks run the interpreter of this process unless PYSPARK_PYTHON names another. Raises
    JavaMissingError, SparkUnreachableError if Spark does not answer where the environment says that
    it is, SparkEndedError, and what pyspark raises.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    was_there = _is_any()
    if not was_there and _starts_java():
        check_java()
    if not was_there and _SUBMITTED not in os.environ:
        check_master(os.environ)
    try:
        spark = SparkSession.builder.appName(app_name).getOrCreate()
    except PySparkRuntimeError as error:
        if _NEVER_UP not in str(error):
            raise
        raise SparkEndedError from error
    except Exception as error:
        if _GAVE_UP not in str(error):
            raise
        # The next call makes another.
        _stop_context()
        raise SparkUnreachableError(
            "no master of Spark has taken the job up, and Spark has given it up: see whether the "
            "master runs, and name it by --master"
        ) from error
    if spark not in _sessions:
        _sessions[:] = [spark]
        _created[:] = [] if was_there else [spark]
        if _code_is_elsewhere(spark):
            _send_code(spark)
    return spark


class JavaMissingError(SegmentStoreError):
    """Spark is to start a Java process here, and there is no Java. The operator's move."""


class SparkEndedError(SegmentStoreError):
    """The Java process of a session has ended under its job. The operator's move."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java process has ended: see whether it was killed, or had too little memory "
            "(SPARK_DRIVER_MEMORY), and run the job again"
        )


def has_ended(within_s: float = 0.0) -> bool:
    """Whether the Java process that pyspark has started here for a session has ended, or does
    within so many seconds: its connections end before it does.
    """
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark has no public name for it
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def check_java() -> None:
    """Raise JavaMissingError unless there is a Java for Spark to start: that of JAVA_HOME if it is
    set, as Spark has it.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if shutil.which(os.path.join(home, "bin", "java")) is None:
            raise JavaMissingError(
                f"Spark needs Java 17 or newer, and JAVA_HOME={home} has no bin/java: "
                "set JAVA_HOME to where Java is"
            )
    elif shutil.which("java") is None:
        raise JavaMissingError(
            "Spark needs Java 17 or newer, and there is none in PATH: install a JDK or "
            "JRE, or set JAVA_HOME to one"
        )


def _starts_java() -> bool:
    """Whether a session made now starts a JVM here: not by Connect, nor where spark-submit has
    started it.
    """
    if _SUBMITTED in os.environ:
        return False
    said = (os.environ.get("SPARK_REMOTE", ""), os.environ.get("MASTER", ""))
    submit = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    remote = any(each.startswith("sc://") for each in said) or "--remote" in submit
    # A remote that is no server's address is one that pyspark starts itself.
    return not remote


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_here(spark: SparkSession) -> bool:
    """Whether the tasks of a session run on this machine, and reach its folders."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


def interrupt_sessions() -> None:
    """Cancel every query of this process that runs; returns at once, and a thread that waits for
    one gets its error. Any thread.
    """
    for spark in _sessions:
        if hasattr(spark, "interruptAll"):
            spark.interruptAll()
        else:  # A classic session of 3.5.
            spark.sparkContext.cancelAllJobs()


def stop_sessions() -> None:
    """End the session that was made here; of a Connect server only what is this client's.

    Nothing happens if there is none, or if its Java process has ended.
    """
    _sessions.clear()
    if has_ended():
        _created.clear()
    while _created:
        _created.pop().stop()


def task_runtime() -> Runtime:
    """Clock, chance and threads of a task. Made in the task, never sent to it."""
    return Runtime()


def _stop_context() -> None:
    """Forget the context that has stopped itself."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - as below
    if context is not None:
        context.stop()


def _is_any() -> bool:
    """Whether this process has a Spark session, of whatever thread."""
    # getActiveSession knows the calling thread alone, for classic ones, and pyspark has no
    # public name for the other question.
    return (
        SparkContext._active_spark_context is not None  # noqa: SLF001
        or SparkSession.getActiveSession() is not None
    )


def _code_is_elsewhere(spark: SparkSession) -> bool:
    """Whether tasks run where this process's packages may not be."""
    if is_connect(spark):
        return True
    master = spark.conf.get("spark.master", "local") or "local"
    return _SUBMITTED not in os.environ and not master.startswith("local")


def _send_code(spark: SparkSession) -> None:
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-spark-"))
    # Spark reads it again whenever an executor comes.
    atexit.register(_remove_in, forks.Birth(), folder)
    archive = str(build_archive(folder / ARCHIVE_NAME))
    if hasattr(spark, "addArtifacts"):
        spark.addArtifacts(archive, pyfile=True)
    else:  # A classic session of 3.5.
        spark.sparkContext.addPyFile(archive)


def _remove_in(birth: forks.Birth, folder: Path) -> None:
    # What is registered is done at the end of a forked child, too: the folder is its parent's.
    if birth.here:
        shutil.rmtree(folder, ignore_errors=True)
