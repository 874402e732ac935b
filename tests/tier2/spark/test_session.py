"""The session of a job: the one that is there, and whose end is not the job's if it was there
before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tier2.spark.common.session import (
    JavaMissingError,
    _starts_java,
    check_java,
    interrupt_sessions,
    is_connect,
    spark_session,
    stop_sessions,
    task_runtime,
)


def test_a_session_that_is_there_is_taken_from_any_thread_and_survives_the_job(
    spark: SparkSession,
) -> None:
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


def test_without_java_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_java()
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in (
        "JAVA_HOME",
        "SPARK_REMOTE",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
        "MASTER",
    ):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JavaMissingError, match="there is none in PATH"):
        check_java()
    verb = [sys.executable, "-m", "tier2.spark", "reconcile", tmp_path.as_uri()]
    ended = subprocess.run(verb, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "Spark needs Java 17 or newer, and there is none in PATH: install a JDK or JRE, "
        "or set JAVA_HOME to one\n"
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        check_java()
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("")
    java.chmod(0o755)
    check_java()


@pytest.mark.parametrize(
    ("name", "said", "starts"),
    [
        ("SPARK_REMOTE", "sc://host:15002", False),
        ("PYSPARK_SUBMIT_ARGS", "--remote sc://host:15002 pyspark-shell", False),
        ("PYSPARK_GATEWAY_PORT", "4711", False),
        ("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell", True),
    ],
)
def test_where_no_java_is_started_none_is_needed(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str, *, starts: bool
) -> None:
    for each in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "MASTER"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, said)
    assert _starts_java() is starts
