"""Ctrl-C while the command line loads its modules, and while its interpreter ends: 130, one line at
most, no traceback.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import ROOT

# A signal to itself at the moment a module is asked for: a Ctrl-C at a known place, in a real
# process.
_AT_IMPORT = """
import os, signal, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Watch())
sys.argv = ["segmentstore", *{arguments!r}]
from segmentstore.cli import main
main()
"""
_AT_EXIT = """
import atexit, os, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["segmentstore", "--help"]
from segmentstore.cli import main
main()
"""
_IGNORED = """
import os, signal, sys
from segmentstore.cli import main
sys.argv = ["segmentstore", "--help"]
os.kill(os.getpid(), signal.SIGINT)
main()
"""


def run_child(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("segmentstore.cli.app", ["--help"]),
        ("typer", ["--help"]),
        ("rich.console", ["--help"]),
        ("segmentstore.contracts.runtime", ["--help"]),
        ("segmentstore.cli.serve_command", ["--help"]),
        ("recovery.restore", ["restore", "memory://x", "nowhere"]),
    ],
)
def test_a_start_that_is_interrupted_says_so_in_one_line(module: str, arguments: list[str]) -> None:
    ended = run_child(_AT_IMPORT.format(module=module, arguments=arguments))
    assert ended.returncode == ExitCode.INTERRUPTED
    assert ended.stderr in {"segmentstore: interrupted\n", ""}


def test_an_interrupt_while_the_interpreter_ends_shows_no_traceback() -> None:
    ended = run_child(_AT_EXIT)
    assert ended.returncode == ExitCode.INTERRUPTED
    assert ended.stderr == "segmentstore: interrupted\n"


def test_a_shell_that_ignores_ctrl_c_for_a_job_is_obeyed() -> None:
    ended = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", _IGNORED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (ExitCode.DONE, "")
