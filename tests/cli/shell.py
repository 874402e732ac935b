"""The command line as a test runs it: in this process where it can be, in a child where signals
matter.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from segmentstore.cli.app import run

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended and what it said."""

    code: int
    out: bytes
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        """The documents on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def segmentstore(*arguments: object, stdin: bytes = b"") -> Result:
    """Run one command in this process; stdin is a real file, stdout has a byte buffer below it."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.StringIO()
    before = sys.stdin
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        sys.stdin = io.TextIOWrapper(source, encoding="utf-8")
        try:
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
                run([str(argument) for argument in arguments])
        finally:
            sys.stdin.detach()
            sys.stdin = before
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    code = ended.value.code
    return Result(code if isinstance(code, int) else 0, out.buffer.getvalue(), err.getvalue())


def start(*arguments: object) -> subprocess.Popen[bytes]:
    """Start one command as a child process with pipes on all three streams."""
    return subprocess.Popen(
        [sys.executable, "-m", "segmentstore", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
