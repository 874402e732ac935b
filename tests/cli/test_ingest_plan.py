"""Which files an ingest takes, and the names of their segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.ingest_plan import plan_files, writer_id_for
from segmentstore.contracts.errors import InvalidNameError


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_names_are_prefix_and_path_in_the_directory_sorted(tmp_path: Path) -> None:
    make(tmp_path, "in/b.txt", "in/a/z.txt", "in/a/y.txt", "single.txt")
    planned = plan_files([tmp_path / "in", tmp_path / "single.txt"], prefix="p/")
    assert [item.segment for item in planned] == [
        "p/b.txt",
        "p/a/y.txt",
        "p/a/z.txt",
        "p/single.txt",
    ]
    assert [item.size for item in planned] == [
        len(b"in/b.txt"),
        len(b"in/a/y.txt"),
        len(b"in/a/z.txt"),
        10,
    ]


def test_two_files_for_one_segment_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "one/same.txt", "two/same.txt")
    with pytest.raises(
        CommandError,
        match=r"one/same\.txt and .*two/same\.txt would both become segment 'same\.txt'",
    ):
        plan_files([tmp_path / "one", tmp_path / "two" / "same.txt"])


def test_the_store_itself_is_left_out(tmp_path: Path) -> None:
    make(tmp_path, "text.txt", "var/store/store.toml", "var/store/tier2/object", "var/other.txt")
    planned = plan_files([tmp_path], store=tmp_path / "var" / "store")
    assert [item.segment for item in planned] == ["text.txt", "var/other.txt"]
    assert plan_files([tmp_path / "var" / "store"], store=tmp_path / "var" / "store") == []


def test_links_inside_directories_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "elsewhere/b.txt")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "in" / "a.txt")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "elsewhere")
    assert [item.segment for item in plan_files([tmp_path / "in"])] == ["a.txt"]
    assert [item.segment for item in plan_files([tmp_path / "in" / "link.txt"])] == ["link.txt"]


def test_suffix_and_left_out_directories(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "a.pyc", "site-packages/b.py", "deep/site-packages/c.py", "deep/d.py")
    planned = plan_files([tmp_path], suffix=".py", without=["site-packages"])
    assert [item.segment for item in planned] == ["a.py", "deep/d.py"]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="neither a file nor a directory"):
        plan_files([tmp_path / "absent"])


def test_a_name_no_segment_may_have_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    make(tmp_path, "good.txt", "bad\x01.txt")
    with pytest.raises(InvalidNameError):
        plan_files([tmp_path])


def test_a_writer_keeps_its_id_for_ever() -> None:
    assert str(writer_id_for("logs/web-1")) == str(writer_id_for("logs/web-1"))
    assert writer_id_for("logs/web-1") != writer_id_for("logs/web-2")
    assert str(writer_id_for("a")) == "99a29405-fe4f-50ee-ab8f-320bd4ef9aa0"
