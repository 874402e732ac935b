"""`bookkeeper`: a cluster is started, shown and stopped by three commands that know each other by a
folder alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from durablelog.bookkeeper.installation import FOLDER_VARIABLE
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore


def test_start_status_and_stop(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    started = segmentstore("bookkeeper", "start", folder, "--bookies", 1, "--json")
    try:
        assert started.code == ExitCode.DONE, started.err
        assert "starting ZooKeeper" in started.err
        document = started.json()
        assert document["running"]
        assert [service["name"] for service in document["services"]] == ["ZooKeeper", "bookie 0"]
        port = document["services"][0]["port"]
        assert document["tier1"] == f"bookkeeper://127.0.0.1:{port}/segmentstore"

        shown = segmentstore("bookkeeper", "status", folder)
        assert shown.code == ExitCode.DONE
        assert f'tier1 = "{document["tier1"]}"' in shown.out.decode().splitlines()
        assert str(document["services"][1]["process_id"]) in shown.out.decode()

        again = segmentstore("bookkeeper", "start", folder, "--json").json()
        assert [service["process_id"] for service in again["services"]] == [
            service["process_id"] for service in document["services"]
        ]
    finally:
        stopped = segmentstore("bookkeeper", "stop", folder)
    assert stopped.code == ExitCode.DONE
    assert b"stopped ZooKeeper, bookie 0" in stopped.out
    shown = segmentstore("bookkeeper", "status", folder, "--json")
    assert shown.code == ExitCode.UNAVAILABLE
    assert [service["state"] for service in shown.json()["services"]] == ["stopped", "stopped"]
    assert b"nothing runs" in segmentstore("bookkeeper", "stop", folder).out


def test_a_folder_without_a_cluster_is_a_mistake(tmp_path: Path) -> None:
    for command in ("status", "stop"):
        refused = segmentstore("bookkeeper", command, tmp_path / "absent")
        assert refused.code == ExitCode.USAGE
        assert "there is no local cluster in" in refused.err
        assert not (tmp_path / "absent").exists()
    (tmp_path / "mine").write_text("mine")
    assert segmentstore("bookkeeper", "start", tmp_path).code == ExitCode.USAGE


def test_without_java_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for command in (("start", tmp_path / "cluster"), ("install",)):
        refused = segmentstore("bookkeeper", *command)
        assert refused.code == ExitCode.USAGE
        assert "java is needed" in refused.err
        assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / "cluster").exists()


def test_without_maven_the_jars_cannot_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"'\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "installation"))
    refused = segmentstore("bookkeeper", "install")
    assert refused.code == ExitCode.USAGE
    assert "mvn is needed" in refused.err.splitlines()[-1]
