"""One load of a client program against a served store: what it came to, and what each process used.

The program writes "begun" where its measured part begins, and ends with a line "result {...}".
CPU is that of the measured part, by event: where other work takes the cores, it says more than the
rate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.pravega_jars import java_command
from bench.wire_servers import MeasuredServer, bookie_cpu_seconds, cpu_seconds
from bench.workspace import BenchError
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster

JAVA_OPTIONS: Final = ("-Xmx1g",)
_LOAD_S: Final = 600.0
_RESULT: Final = "result "
_OUTPUT_MAX: Final = 3000


def java_load(
    server: MeasuredServer, load: str, cluster: BookKeeperCluster | None = None, **given: object
) -> Measured:
    """A load of `bench/pravega/java`; `given` are its arguments."""
    with started_java(server, load, **given) as program:
        return finished(program, server, cluster)


def wheel_load(
    server: MeasuredServer, load: str, cluster: BookKeeperCluster | None = None, **given: object
) -> Measured:
    """A load of `bench.wire_wheel`."""
    command = [sys.executable, "-m", "bench.wire_wheel", server.uri, load]
    with _started([*command, *_named(given)], server.client_environment()) as program:
        return finished(program, server, cluster)


@contextmanager
def started_java(
    server: MeasuredServer, load: str, **given: object
) -> Iterator[subprocess.Popen[str]]:
    """A load that runs meanwhile; killed at the end."""
    command = java_command("load.WireLoad", *JAVA_OPTIONS)
    with _started(
        [*command, server.uri, load, *_named(given)], server.client_environment()
    ) as program:
        yield program


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    root = str(Path(__file__).resolve().parent.parent)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **environment},
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def finished(
    program: subprocess.Popen[str],
    server: MeasuredServer,
    cluster: BookKeeperCluster | None = None,
) -> Measured:
    """What a load came to: `value` is events a second. Beside it is the CPU of an event, in us, of
    the server, the client and the bookie.

    Raises BenchError if it fails or takes too long.
    """
    watchdog = threading.Timer(_LOAD_S, program.kill)
    watchdog.start()
    before = after = (0.0, 0.0, 0.0)
    said: list[str] = []
    result = ""
    assert program.stdout is not None
    try:
        for line in program.stdout:
            said.append(line)
            if line.startswith("begun"):
                before = _used(program, server, cluster)
            elif line.startswith(_RESULT):
                after = _used(program, server, cluster)
                result = line.removeprefix(_RESULT)
    finally:
        watchdog.cancel()
    if not result:
        end = "".join(said)[-_OUTPUT_MAX:]
        raise BenchError(f"the client of {server.name} failed:\n{end}\n{server.output()}")
    measured: Measured = json.loads(result)
    count = measured["count"]
    for name, first, last in zip(("client", "server", "bookie"), before, after, strict=True):
        measured[f"{name}_us"] = (last - first) * 1e6 / count
    return {"value": measured.pop("per_s"), **measured}


def _used(
    program: subprocess.Popen[str], server: MeasuredServer, cluster: BookKeeperCluster | None
) -> tuple[float, float, float]:
    bookie = 0.0 if cluster is None else bookie_cpu_seconds(cluster)
    return cpu_seconds(program.pid), server.cpu_seconds(), bookie


def _named(given: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in given.items()]
