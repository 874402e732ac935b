"""The verbs' parser, what master is chosen, and what becomes of what breaks."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from segmentstore.contracts.errors import ConfigError
from tier2.object_storage import StorageUnavailableError
from tier2.spark import commands
from tier2.spark.commands import LOCAL_MASTER, choose_master, execute, main, parse
from tier2.spark.common.command_options import Exit, add_common_options

SAID = (
    "SPARK_REMOTE",
    "PYSPARK_SUBMIT_ARGS",
    "MASTER",
    "SPARK_MASTER",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_LOCAL_IP",
    "PYSPARK_GATEWAY_PORT",
)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SAID:
        # Set first, so that it is as before afterwards even if the test's subject sets it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def verb(run: Callable[[argparse.Namespace], int]) -> argparse.Namespace:
    return argparse.Namespace(master=None, run=run)


def failing(error: Exception) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def test_without_a_word_it_is_this_machine_with_retries() -> None:
    choose_master(None)
    assert os.environ["PYSPARK_SUBMIT_ARGS"].startswith(f"--master {LOCAL_MASTER} ")
    assert LOCAL_MASTER == "local[*,4]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://host"),
        ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell"),
        ("MASTER", "yarn"),
    ],
)
def test_what_the_environment_says_stands(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    choose_master(None)
    assert {each: os.environ[each] for each in SAID if each in os.environ} == {name: value}


def test_defaults_of_an_installation_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master spark://host:7077\n", encoding="utf-8"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    choose_master(None)
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_the_option_beats_the_environment_and_recognises_connect_by_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    choose_master("spark://host:7077")
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--master spark://host:7077 pyspark-shell"
    assert "SPARK_REMOTE" not in os.environ
    choose_master("sc://host:15002")
    assert os.environ["SPARK_REMOTE"] == "sc://host:15002"


def test_under_spark_submit_the_master_is_said_and_not_the_verbs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    choose_master(None)
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
    with pytest.raises(SystemExit) as ended:
        choose_master("local")
    assert ended.value.code == Exit.UNDECIDED
    assert "spark-submit" in capsys.readouterr().err


@pytest.mark.parametrize("code", [Exit.NOTHING, Exit.FINDINGS, Exit.UNDECIDED])
def test_a_verbs_code_is_the_exit_code(code: Exit) -> None:
    assert execute(verb(lambda _: code)) == code


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("tier2", "no such thing"), "no such thing"),
        (StorageUnavailableError("name", "it\nis away"), "it is away"),
        (ZeroDivisionError("whatever"), "Traceback"),
    ],
)
def test_what_breaks_is_reported_and_is_never_taken_for_findings(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(verb(failing(error))) == Exit.UNDECIDED
    assert told in capsys.readouterr().err


def test_interrupting_ends_with_130_once_the_verb_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(commands, "_with_session", lambda _: cancelled.set())

    def run(_: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        # The thread that waits for the verb may get the signal later than this one goes on.
        assert cancelled.wait(240)
        ended.set()
        return 0

    assert execute(verb(run)) == Exit.INTERRUPTED
    assert ended.is_set()
    assert "interrupted" in capsys.readouterr().err


def test_a_verb_that_does_not_heed_it_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_INTERRUPTED_S", 0.0)
    forever = threading.Event()

    def run(_: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        forever.wait()
        return 0

    assert execute(verb(run)) == Exit.INTERRUPTED
    forever.set()


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in commands.VERBS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
    assert capsys.readouterr().out.count("usage: ") == len(commands.VERBS)


def test_a_verb_on_a_store_has_the_common_options() -> None:
    for name in ("reconcile", "compact"):
        parsed = parse([name, "file:///folder", "--json", "--timeout", "7"])
        assert (parsed.verb, parsed.tier2_url, parsed.json, parsed.timeout) == (
            name,
            "file:///folder",
            True,
            7.0,
        )


@pytest.mark.parametrize("verb", ["reconcile", "compact"])
def test_the_id_of_a_store_is_a_uuid_however_it_is_written(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = "7c8c2b7e-5a39-4c61-9d3b-3f0d5a1b2c4d"
    for written in (known, known.upper(), known.replace("-", "")):
        assert parse([verb, "file:///folder", "--store-id", written]).store_id == known
    with pytest.raises(SystemExit) as ended:
        parse([verb, "file:///folder", "--store-id", "mine"])
    assert ended.value.code == Exit.UNDECIDED
    assert "'mine' is no id of a store" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["-1", "soon", "inf", "nan"])
def test_a_timeout_is_a_number_of_seconds(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["file:///folder", f"--timeout={timeout}"])
    assert ended.value.code == Exit.UNDECIDED
    assert "not a number of seconds" in capsys.readouterr().err
