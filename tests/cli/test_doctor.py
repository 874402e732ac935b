"""`doctor`: says of every piece whether it is there, how to get it, and by its exit code whether
that matters.
"""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper import installation
from durablelog.bookkeeper.cluster.addresses import choose_addresses
from segmentstore.cli import doctor_command
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore
from tests.support.suites import slow

JAVA = ("Java", "Java compiler", "Maven")


def checks(document: Any) -> dict[str, Any]:
    return {check["piece"]: check for check in document["checks"]}


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(tmp_path / "installation"))


@pytest.fixture
def plain_store(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    assert segmentstore("append", store, "a", stdin=b"one\n").code == ExitCode.DONE
    return store


@pytest.fixture
def on_bookkeeper(plain_store: Path) -> Path:
    """Whose ZooKeeper and gateway were never started."""
    file = plain_store / "store.toml"
    file.write_text(
        file.read_text().replace('tier1 = "file"', 'tier1 = "bookkeeper://127.0.0.1:1/somewhere"')
    )
    return plain_store


@slow(2)
def test_a_machine_that_has_all_is_reported_as_complete() -> None:
    shown = segmentstore("doctor", "--json")
    assert shown.code == ExitCode.DONE, shown.out
    assert shown.json()["ok"]
    found = checks(shown.json())
    assert all(
        found[piece]["found"]
        for piece in ("Python", "disk space", "loopback", "BookKeeper's jars", *JAVA)
    )
    assert b"all that is needed is here" in segmentstore("doctor").out


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_what_is_missing_is_named_with_the_way_to_get_it() -> None:
    shown = segmentstore("doctor", "--json")
    # No setting asks for a log on BookKeeper.
    assert shown.code == ExitCode.DONE
    found = checks(shown.json())
    for piece in (*JAVA, "BookKeeper's jars"):
        assert not found[piece]["found"]
        assert not found[piece]["needed"]
        assert found[piece]["remedy"]
    assert "apt-get install maven" in found["Maven"]["remedy"]
    assert installation.INSTALL_COMMAND in found["BookKeeper's jars"]["remedy"]
    assert not found["strace"]["needed"]
    assert not found["class archives"]["found"]
    assert not found["class archives"]["needed"]
    said = segmentstore("doctor").out.decode()
    assert "not installed (needed for a log on BookKeeper)" in said
    assert "all that is needed is here" in said


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_a_store_on_bookkeeper_needs_what_is_missing(on_bookkeeper: Path) -> None:
    shown = segmentstore("doctor", on_bookkeeper, "--json")
    assert shown.code == ExitCode.REFUSED
    found = checks(shown.json())
    assert all(found[piece]["needed"] for piece in (*JAVA, "BookKeeper's jars"))
    assert b"something that is needed is missing" in segmentstore("doctor", on_bookkeeper).out


@slow(7)
def test_a_missing_extra_matters_to_a_store_that_uses_it(
    plain_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    gone = {"pyspark", "botocore", "prometheus_client", "pyarrow", "paramiko"}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in gone else find_spec(name, *rest),
    )
    for asked in ((), (plain_store,)):
        shown = segmentstore("doctor", *asked, "--json")
        assert shown.code == ExitCode.DONE
        found = checks(shown.json())
        for extra in ("arrow", "harness", "metrics", "s3", "sftp", "spark"):
            assert not found[f"extra {extra}"]["found"]
            assert not found[f"extra {extra}"]["needed"]
            assert f"segmentstore[{extra}]" in found[f"extra {extra}"]["remedy"]
    file = plain_store / "store.toml"
    for extra, setting in (
        ("arrow", "catalog_export_interval_s = 60"),
        ("metrics", "metrics_port = 9"),
        ("s3", 'tier2 = "s3://bucket/x"'),
        ("sftp", 'tier2 = "sftp://host/x"'),
    ):
        text = file.read_text()
        file.write_text(
            text.replace('tier2 = ""', setting) if "tier2" in setting else f"{text}{setting}\n"
        )
        assert missing(plain_store)["piece"] == f"extra {extra}"
        file.write_text(text)


@pytest.mark.usefixtures("no_programs")
def test_maven_is_not_needed_once_the_jars_are_here(on_bookkeeper: Path) -> None:
    found = checks(segmentstore("doctor", on_bookkeeper, "--json").json())
    assert not found["Maven"]["found"]
    assert not found["Maven"]["needed"]
    assert found["Java"]["needed"]


def test_an_old_java_does_not_count(
    tmp_path: Path, on_bookkeeper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"'\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    shown = segmentstore("doctor", on_bookkeeper, "--json")
    assert shown.code == ExitCode.REFUSED
    java = checks(shown.json())["Java"]
    assert not java["found"]
    assert "version 11" in java["detail"]


def test_a_jar_that_was_changed_is_found(
    tmp_path: Path, on_bookkeeper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = installation.jars_folder()
    monkeypatch.setenv(installation.FOLDER_VARIABLE, str(tmp_path))
    bad = installation.jars_folder()
    bad.mkdir()
    first, *others = sorted(good.iterdir())
    for jar in others:
        (bad / jar.name).symlink_to(jar)
    (bad / first.name).write_bytes(b"something else")
    shown = segmentstore("doctor", on_bookkeeper, "--json")
    assert shown.code == ExitCode.REFUSED
    jars = checks(shown.json())["BookKeeper's jars"]
    assert f"{first.name} has another SHA-256 sum" in jars["detail"]
    assert str(bad) in jars["remedy"]


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_a_store_with_its_log_in_files_needs_no_java(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert segmentstore("append", store, "a", stdin=b"one\n").code == ExitCode.DONE
    shown = segmentstore("doctor", store, "--json")
    assert shown.code == ExitCode.DONE
    assert not checks(shown.json())["Java"]["needed"]


def test_the_zookeeper_of_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    segmentstore("append", store, "a", stdin=b"one\n")
    port = choose_addresses(tmp_path, 1, None).zookeeper  # without a listener
    file = store / "store.toml"
    changed = file.read_text().replace(
        'tier1 = "file"', f'tier1 = "bookkeeper://127.0.0.1:{port}/somewhere"'
    )
    file.write_text(changed)
    shown = segmentstore("doctor", store, "--json")
    assert shown.code == ExitCode.REFUSED
    zookeeper = checks(shown.json())["ZooKeeper"]
    assert zookeeper["needed"]
    assert zookeeper["detail"] == f"127.0.0.1:{port} takes no connection"


def missing(store: Path) -> dict[str, Any]:
    """The only piece that is needed and not there."""
    shown = segmentstore("doctor", store, "--json")
    assert shown.code == ExitCode.REFUSED
    assert not shown.json()["ok"]
    (piece,) = (check for check in shown.json()["checks"] if check["needed"] and not check["found"])
    assert isinstance(piece, dict)
    return piece


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_a_machine_that_gives_no_ports_of_loopback_is_reported(
    plain_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An address for documents, which no machine has.
    monkeypatch.setattr(doctor_command, "_LOOPBACK", "192.0.2.1")
    assert segmentstore("doctor", plain_store).code == ExitCode.DONE
    with (plain_store / "store.toml").open("a") as file:
        file.write("metrics_port = 9\n")
    piece = missing(plain_store)
    assert piece["piece"] == "loopback"
    assert piece["detail"].startswith("192.0.2.1: ")
    assert "lo up" in piece["remedy"]


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_a_disk_without_room_is_reported_with_what_is_free_and_what_it_takes(
    plain_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "FREE_BYTES_MIN", 1 << 62)
    piece = missing(plain_store)
    assert piece["piece"] == "disk space"
    assert piece["detail"].endswith(f"free at {plain_store}")
    assert piece["remedy"].startswith("make room: at least ")


@pytest.mark.usefixtures("no_programs", "no_jars")
def test_a_gateway_that_does_not_answer_is_named_and_java_is_not_needed_for_it(
    plain_store: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as zookeeper, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        host, gateway = (f"127.0.0.1:{each.getsockname()[1]}" for each in (zookeeper, silent))
        file = plain_store / "store.toml"
        tier1 = f'tier1 = "bookkeeper://{host}/somewhere?gateway={gateway}"'
        file.write_text(file.read_text().replace('tier1 = "file"', tier1))
        piece = missing(plain_store)
        assert (piece["piece"], piece["detail"]) == ("gateway", f"{gateway} takes no connection")
        assert piece["remedy"]


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    assert segmentstore("doctor", tmp_path / "absent").code == ExitCode.REFUSED
