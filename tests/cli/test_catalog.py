"""`catalog`: a stopped store's catalog is exported from its log, a live one's by its owner; both
are listed.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from segmentstore import blocking
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import segmentstore, start
from tests.cli.test_inspection import snapshot
from tests.support.suites import slow
from tier2.catalog.catalog_manifest import Manifest, parse
from tier2.object_names import SnapshotName, table_name
from tier2.unique_ids import new_copy_id


@pytest.fixture
def store(tmp_path: Path) -> Path:
    location = tmp_path / "store"
    segmentstore("append", location, "a", stdin=b"one\ntwo\n")
    segmentstore("append", location, "b", stdin=b"three\n")
    segmentstore("flush", location)
    return location


def manifest_of(store: Path, name: str) -> Manifest:
    return parse((store / "tier2" / name).read_bytes(), name)


def test_a_stopped_store_is_exported_as_its_log_adds_up(store: Path) -> None:
    before = snapshot(store)
    shown = segmentstore("catalog", "export", store, "--json").json()
    (told,) = shown["snapshots"]
    assert (shown["asked"], shown["problems"]) == (False, [])
    assert told["rows"] == {"segments": 2, "chunks": 2, "objects": told["rows"]["objects"]}
    manifest = manifest_of(store, told["manifest"])
    assert (manifest.container_id, manifest.epoch) == (0, told["epoch"])
    assert (manifest.sequence_number, manifest.stopped) == (told["sequence_number"], True)
    after = snapshot(store)
    added = {name for name in after if name not in before}
    assert {name: after[name] for name in before} == before
    assert len([name for name in added if str(name).endswith((".parquet", ".json"))]) == 4
    said = segmentstore("catalog", "export", store)
    assert said.code == ExitCode.DONE
    assert b"1 containers exported" in said.out
    # The next owner has no trouble with what lies there now.
    assert segmentstore("cat", store, "a").out == b"one\ntwo\n"
    assert segmentstore("verify", store).code == ExitCode.DONE
    assert segmentstore("gc", store, "--dry-run", "--json").json()["items"] == []


@slow(2)
def test_every_container_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGMENTSTORE_CONTAINERS", "3")
    for name in "abcdef":
        segmentstore("append", tmp_path / "s", name, stdin=b"x\n")
    monkeypatch.delenv("SEGMENTSTORE_CONTAINERS")
    told = segmentstore("catalog", "export", tmp_path / "s", "--json").json()["snapshots"]
    assert [each["container_id"] for each in told] == [0, 1, 2]
    assert sum(each["rows"]["segments"] for each in told) == 6
    assert all(manifest_of(tmp_path / "s", each["manifest"]).containers == 3 for each in told)


def test_snapshots_are_listed_whole_or_not(store: Path) -> None:
    empty = segmentstore("catalog", "ls", store)
    assert (empty.code, empty.out) == (ExitCode.DONE, f"{store}: 0 snapshots\n".encode())
    told = segmentstore("catalog", "export", store, "--json").json()["snapshots"][0]
    store_id = manifest_of(store, told["manifest"]).store_id
    for owner in (store_id, "12345678-1234-1234-1234-123456789abc"):
        left = table_name(SnapshotName(0, 77, 5, new_copy_id(owner, Runtime().random)), "segments")
        (store / "tier2" / left).parent.mkdir(parents=True)
        (store / "tier2" / left).write_bytes(b"x" * 10)
    rows = segmentstore("catalog", "ls", store, "--json").json_lines()
    assert [(row["container"], row["epoch"], row["whole"]) for row in rows] == [
        (0, told["epoch"], True),
        (0, 77, False),
    ]
    assert rows[0]["sequence_number"] == told["sequence_number"]
    assert rows[0]["name"] + "manifest.json" == told["manifest"]
    assert rows[0]["size"] > told["size"]
    said = segmentstore("catalog", "ls", store).out.decode()
    assert "2 snapshots" in said
    assert "no" in said


@pytest.mark.parametrize("listens", [True, False])
def test_the_owner_of_a_live_store_is_asked_and_answers(store: Path, *, listens: bool) -> None:
    poll_s = 0 if listens else 0.1
    with blocking.open(store, mailbox_poll_interval_s=poll_s, local_server=listens) as opened:
        opened.append("a", b"three\n")
        shown = segmentstore("catalog", "export", store, "--json")
        assert shown.code == ExitCode.DONE
        assert ("going through it" in shown.err) == listens
        (told,) = shown.json()["snapshots"]
        assert shown.json()["asked"] is True
        stats = opened.stats()
        containers = stats["containers"]
        assert isinstance(containers, dict)
        assert told["sequence_number"] == containers[0]["sequence_number"]
        assert told["rows"]["segments"] == 2
        assert segmentstore("catalog", "ls", store, "--json").json_lines()[0]["whole"]


def append_a_line(store: Path) -> subprocess.Popen[bytes]:
    """A process that appends a line and waits for more."""
    child = start("append", store, "c")
    assert child.stdin is not None
    child.stdin.write(b"line\n")
    child.stdin.flush()
    return child


@slow(3)
def test_a_process_of_its_own_is_asked(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGMENTSTORE_MAILBOX_POLL_INTERVAL_S", "0.2")
    monkeypatch.setenv("SEGMENTSTORE_LOCAL_SERVER", "false")
    child = append_a_line(store)
    try:
        # It has the store once no other process can have it.
        while segmentstore("verify", store).code != ExitCode.IN_USE:
            if child.poll() is not None:
                # It came while the check itself had the store.
                child.communicate()
                assert child.returncode == ExitCode.IN_USE
                child = append_a_line(store)
        shown = segmentstore("catalog", "export", store, "--json", "--timeout", "60")
        assert (shown.code, shown.err) == (ExitCode.DONE, "")
        assert shown.json()["asked"] is True
        assert shown.json()["snapshots"][0]["rows"]["segments"] in {2, 3}
    finally:
        child.communicate(timeout=120)
    assert child.returncode == 0


def test_an_owner_that_does_not_check_is_reported(store: Path) -> None:
    with blocking.open(store, mailbox_poll_interval_s=0, local_server=False):
        shown = segmentstore("catalog", "export", store, "--timeout", "0.3")
        assert shown.code == ExitCode.UNAVAILABLE
        assert "container 0: " in shown.err
        assert (
            ": close it there first; it was asked by a message; no answer within 0.3 s" in shown.err
        )
        assert "mailbox_poll_interval_s" in shown.err
        as_json = segmentstore("catalog", "export", store, "--timeout", "0", "--json")
        assert as_json.code == ExitCode.UNAVAILABLE
        assert as_json.json()["snapshots"] == []
        assert len(as_json.json()["problems"]) == 1


def test_without_pyarrow_the_extra_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "pyarrow" else find_spec(name, *rest),
    )
    for command in ("export", "ls"):
        shown = segmentstore("catalog", command, store)
        assert shown.code == ExitCode.USAGE
        assert "segmentstore[arrow]" in shown.err


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for command in ("export", "ls"):
        shown = segmentstore("catalog", command, tmp_path / "nowhere")
        assert shown.code == ExitCode.REFUSED
        assert "there is no such folder" in shown.err
