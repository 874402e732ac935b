"""A job whose Java process ends says so in one sentence, and an error of its own as before."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from tests.tier2.spark.reconcile_world import World
from tier2.spark import commands
from tier2.spark.common.command_options import Exit
from tier2.spark.common.session import SparkEndedError


def test_java_that_ends_at_its_start_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    world = World(tmp_path / "tier2")
    world.snapshot()
    ended = subprocess.run(
        [sys.executable, "-m", "tier2.spark", "reconcile", world.url, "--stopped"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == Exit.UNDECIDED
    assert ended.stderr.splitlines()[-1] == str(SparkEndedError())
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("seconds", ["0", "60"])
def test_java_that_ended_is_why_a_job_failed(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_arguments: Namespace) -> int:
        raise ConnectionRefusedError("the end of a connection to Java")

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] pyspark-shell")
    process = subprocess.Popen(["sleep", seconds])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    try:
        code = commands.execute(Namespace(master=None, run=run))
    finally:
        process.kill()
        process.wait()
    said = capsys.readouterr().err
    assert code == Exit.UNDECIDED
    if seconds == "0":
        assert said == f"{SparkEndedError()}\n"
    else:
        assert said.startswith("Traceback")
        assert "the end of a connection to Java" in said
