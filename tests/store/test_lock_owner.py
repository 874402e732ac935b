"""What a lock file says of its owner, and what a second opening reports of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import segmentstore.blocking
from segmentstore import StoreInUseError
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.lock_owner import LockedError, describe_owner, owner_of
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[2]


@slow(2)
def test_who_comes_second_in_one_process_learns_that_it_is_this_process(tmp_path: Path) -> None:
    with segmentstore.blocking.open(tmp_path / "s"):
        with pytest.raises(
            StoreInUseError, match=r"this process has it open since 20.*: close it there first"
        ):
            segmentstore.blocking.open(tmp_path / "s")
        (tmp_path / "link").symlink_to(tmp_path / "s")
        with pytest.raises(StoreInUseError, match="this process"):
            segmentstore.blocking.open(tmp_path / "link")


def test_another_process_learns_which_one_it_is(tmp_path: Path) -> None:
    program = "import sys, segmentstore.blocking as blocking\nblocking.open(sys.argv[1])"
    with segmentstore.blocking.open(tmp_path / "s"):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "s")],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert f"is in use: process {os.getpid()} (" in ended.stderr
    assert f"on {os.uname().nodename} has it open since 20" in ended.stderr


def test_arguments_of_the_command_are_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/app", "--password", "secret"])
    OsDisk().lock(str(tmp_path / "lock")).close()
    content = (tmp_path / "lock").read_text()
    assert " app\n" in content
    assert "secret" not in content


def test_a_lock_whose_owner_could_not_be_written_is_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    held = OsDisk().lock(str(tmp_path / "lock"))
    with pytest.raises(LockedError, match=r".") as caught:
        OsDisk().lock(str(tmp_path / "lock"))
    assert owner_of(caught.value) == "this process has it open: close it there first"
    held.close()
    OsDisk().lock(str(tmp_path / "lock")).close()


def test_a_released_lock_is_free(tmp_path: Path) -> None:
    held = OsDisk().lock(str(tmp_path / "lock"))
    del held
    OsDisk().lock(str(tmp_path / "lock")).close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "another process has it open"),
        (b"pid x\nhost h\n", "another process has it open"),
        (b"pid 7\n", "process 7 has it open"),
        (
            b"pid 7\nhost \x1b[31mh\nsince now\ncommand \xff\n",
            "process 7 (\ufffd) on ?[31mh has it open since now",
        ),
        (b"pid 7\ncommand " + bytes(10_000), f"process 7 ({'?' * 200}) has it open"),
        (b"PID 7\nhost h\n", "another process has it open"),
    ],
)
def test_whatever_is_in_the_file_something_printable_is_said(content: bytes, said: str) -> None:
    assert describe_owner(content, ours=False) == said


def test_a_lock_of_another_disk_belongs_to_another_process() -> None:
    assert owner_of(BlockingIOError()) == "another process has it open"
