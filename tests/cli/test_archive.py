"""`archive`: run, ls, rm and replay, on stores that are closed and that a process has open."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore import blocking
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {
        "ARCHIVE": (tmp_path / "archive").as_uri(),
        "OFFLOAD_AFTER_S": "1000",
        "ARCHIVE_DELETION_LAG_S": "0",
        "FRAME_BYTES_MAX": "200",
        "LOG_FILE_BYTES": "8392",
    }.items():
        monkeypatch.setenv(f"SEGMENTSTORE_{name}", value)
    return tmp_path / "archive"


def test_parts_are_archived_listed_and_deleted(tmp_path: Path, archive: Path) -> None:
    store = tmp_path / "s"
    segmentstore("append", store, "a", stdin=(b"x" * 150 + b"\n") * 150)
    assert segmentstore("archive", "ls", store).out.endswith(b"0 parts, 0 bytes\n")
    done = segmentstore("archive", "run", store, "--json").json()["containers"][0]
    assert len(done["parts"]) > 1
    assert {part["failure"] for part in done["parts"]} == {None}
    listed = segmentstore("archive", "ls", store, "--json").json_lines()
    assert [part["number"] for part in listed] == [part["number"] for part in done["parts"]]
    assert b"hot copy deleted" in segmentstore("archive", "ls", store).out
    before = listed[0]["last_sequence"] + 1
    shown = segmentstore("archive", "rm", store, "--before", before)
    assert shown.out.endswith(b"1 parts deleted from the archive\n")
    assert segmentstore("archive", "ls", store, "--json").json_lines() == listed[1:]


def test_a_part_that_fails_is_shown_and_ends_with_5(tmp_path: Path, archive: Path) -> None:
    store = tmp_path / "s"
    segmentstore("append", store, "a", stdin=(b"x" * 150 + b"\n") * 150)
    archive.write_bytes(b"no folder")
    done = segmentstore("archive", "run", store)
    assert done.code == ExitCode.UNAVAILABLE
    assert b"0 parts archived" in done.out


def test_without_an_archive_it_says_what_to_set(tmp_path: Path) -> None:
    segmentstore("append", tmp_path / "s", "a", stdin=b"one\n")
    for command in (("run",), ("ls",), ("rm", "--before", "5")):
        done = segmentstore("archive", command[0], tmp_path / "s", *command[1:])
        assert done.code == ExitCode.REFUSED
        assert "the store has no archive" in done.err


def test_operations_of_a_segment_that_is_deleted_since_are_printed(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "s"
    with monkeypatch.context() as without:
        without.delenv("SEGMENTSTORE_ARCHIVE")
        segmentstore("append", store, "orders", stdin=b"old\n")
        segmentstore("append", store, "other", stdin=(b"x" * 150 + b"\n") * 150)
        segmentstore("flush", store)
        segmentstore("checkpoint", store)
    segmentstore("append", store, "orders", stdin=b"precious\n")
    segmentstore("rm", store, "orders")
    segmentstore("append", store, "other", stdin=(b"x" * 150 + b"\n") * 150)
    segmentstore("archive", "run", store)
    for options in ((), ("--from", "1"), ("--from", "2020-01-01")):
        done = segmentstore("archive", "replay", store, "--segment", "orders", "--json", *options)
        assert [each["kind"] for each in done.json_lines()][-2:] == ["append", "delete"]
        assert (done.code, done.err) == (ExitCode.DONE, "")


def test_operations_that_may_be_of_the_segment_are_named(tmp_path: Path, archive: Path) -> None:
    store = tmp_path / "s"
    with blocking.open(store) as opened:
        for name in ("orders", "other"):
            opened.create_segment(name)
        for _ in range(150):
            opened.append("other", b"x" * 150)
        opened.append("orders", b"precious")
        opened.delete("orders")
        for _ in range(150):
            opened.append("other", b"x" * 150)
    segmentstore("archive", "run", store)
    replayed = segmentstore("archive", "replay", store, "--json").json_lines()
    deletion = next(each["sequence"] for each in replayed if each["kind"] == "delete")
    assert segmentstore("archive", "rm", store, "--before", deletion).code == ExitCode.DONE
    for name, code in (("orders", ExitCode.REFUSED), ("other", ExitCode.DONE)):
        done = segmentstore("archive", "replay", store, "--segment", name)
        assert (done.code, bool(done.out)) == (code, code == ExitCode.DONE)
        assert f"operations, {deletion - 1} to {deletion}, are on segments whose names" in done.err
        assert f"Some may be of '{name}'" in done.err


def test_a_name_that_no_segment_has_is_refused(tmp_path: Path, archive: Path) -> None:
    store = tmp_path / "s"
    segmentstore("append", store, "a", stdin=b"one\n")
    for name in ("", "x" * 1025):
        done = segmentstore("archive", "replay", store, "--segment", name)
        assert (done.code, done.out) == (ExitCode.REFUSED, b"")
        assert "invalid segment name" in done.err
