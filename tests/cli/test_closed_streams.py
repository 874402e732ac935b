"""Commands of a process that was started with closed streams, as some supervisors start one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import ROOT, segmentstore


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_and_ends_in_order(tmp_path: Path, closed: str) -> None:
    program = f'exec "$0" -m segmentstore create "$1" x {closed}'
    words = ["/bin/sh", "-c", program, sys.executable, str(tmp_path / "s")]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (ExitCode.DONE, b"")
    assert segmentstore("info", tmp_path / "s", "x").code == ExitCode.DONE


def test_processes_that_are_started_have_all_streams() -> None:
    program = (
        "import subprocess, sys\n"
        "from segmentstore.cli import _open_standard_streams\n"
        "_open_standard_streams()\n"
        "child = 'import os; [os.fstat(number) for number in range(3)]'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)\n"
    )
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    words = ["/bin/sh", "-c", shell, sys.executable, program]
    assert subprocess.run(words, cwd=ROOT, timeout=240, check=False).returncode == 0
