"""Runs the steps of `wheel_program`, each in a process that does not outlive its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.cli.shell import ROOT
from tests.clients.served_store import ServedStore

STEP_S: Final = 120.0
"""A step takes a second or two. One that takes this long hangs."""


def run_step(server: ServedStore, step: str, **environment: str) -> Any:
    """What a step found. Fails with what the client and the server wrote."""
    with started_step(server, step, **environment) as process:
        return finish_step(server, process)


def finish_step(
    server: ServedStore, process: subprocess.Popen[bytes], seconds: float = STEP_S
) -> Any:
    """Wait for a step's end; what it found."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nno end after {seconds:g} s".encode()
    assert not process.returncode, f"{err.decode()}\n{server.condition()}"
    return json.loads(out.splitlines()[-1])


@contextmanager
def started_step(
    server: ServedStore, step: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A step that runs meanwhile; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.clients.wheel_program", server.uri, server.scope, step],
        cwd=ROOT,
        env={**os.environ, **server.client_environment(), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Lines that were not asked for yet stay in the pipe, where `communicate` finds them.
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
