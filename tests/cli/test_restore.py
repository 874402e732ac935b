"""`segmentstore restore`: what it says, what it ends with, and that the new store can be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import segmentstore


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The objects of a store whose folder is lost."""
    location = tmp_path / "store"
    segmentstore("append", location, "a", stdin=b"one\ntwo\n")
    segmentstore("append", location, "b", stdin=b"three\n")
    segmentstore("flush", location)
    segmentstore("append", location, "a", stdin=b"lost\n")
    (location / "tier2").rename(tmp_path / "bucket")
    shutil.rmtree(location)
    return tmp_path / "bucket"


def test_a_lost_store_is_restored_and_used(bucket: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    shown = segmentstore("restore", bucket.as_uri(), new)
    assert shown.code == ExitCode.DONE
    text = shown.out.decode()
    assert "must never run on this bucket again" in text
    assert "5 bytes known to be missing" in text
    assert segmentstore("cat", new, "a").out == b"one\ntwo\n"
    segmentstore("append", new, "a", stdin=b"more\n")
    assert segmentstore("cat", new, "a").out == b"one\ntwo\nmore\n"
    assert segmentstore("verify", new, "--deep").code == ExitCode.DONE


def test_the_report_as_json(bucket: Path, tmp_path: Path) -> None:
    report = segmentstore("restore", bucket.as_uri(), tmp_path / "new", "--json").json()
    segments = {segment["name"]: segment for segment in report["containers"][0]["segments"]}
    assert (
        segments["a"]["restored_to"],
        segments["a"]["known_length"],
        segments["a"]["missing"],
    ) == (8, 13, 5)
    assert segments["b"]["missing"] == 0
    assert (report["restored_bytes"], report["missing_bytes"], report["harmful"]) == (14, 5, False)
    assert report["containers"][0]["checkpoint"]["epoch"] >= 1
    assert "metadata" not in report["containers"][0]["checkpoint"]
    assert report["store_id"] != report["old_store_id"]


def test_a_dry_run_makes_nothing(bucket: Path, tmp_path: Path) -> None:
    shown = segmentstore("restore", bucket.as_uri(), tmp_path / "new", "--dry-run")
    assert shown.code == ExitCode.DONE
    assert b"nothing was made" in b" ".join(shown.out.split())
    assert not (tmp_path / "new").exists()


def test_what_is_refused(bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = segmentstore("restore", (tmp_path / "empty").as_uri(), tmp_path / "new")
    assert nothing.code == ExitCode.REFUSED
    assert "no object and no checkpoint" in nothing.err
    assert segmentstore("restore", bucket.as_uri(), bucket).code == ExitCode.REFUSED
    assert segmentstore("restore", "nonsense", tmp_path / "new").code == ExitCode.USAGE
    assert not (tmp_path / "new").exists()
