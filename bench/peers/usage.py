"""What the measured part of a load used: CPU of this process, of a server, and of all others.

Others (`foreign_cores`) are all processes of this machine that are neither, idle peers included,
and time that the hypervisor gave to other machines. Threads of the kernel are left out: they sync
for the measured processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.child import Measured

DISTURBED_CORES: Final = 0.3
"""From here on a row is marked."""
QUIET_CORES: Final = 0.1
_QUIET_S: Final = 20.0
"""So long a measurement waits for others to become quiet, at most."""
_SAMPLE_S: Final = 0.5
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")
_KERNEL_THREADS: Final = 2
"""The parent of all of them."""


class _Usage(NamedTuple):
    time: float
    client: float
    server: float
    foreign: float


class Meter:
    """Begun by its constructor. `processes` are those of the server."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._server = frozenset(processes)
        self._begun = self._read()

    def figures(self, operations: int) -> Measured:
        """Since it was begun: seconds, operations a second as `value`, us of CPU of an operation,
        and cores that others used.
        """
        now, begun = self._read(), self._begun
        seconds = now.time - begun.time
        count = max(operations, 1)
        return {
            "value": operations / seconds,
            "seconds": seconds,
            "operations": operations,
            "client_us": (now.client - begun.client) / count * 1e6,
            "server_us": (now.server - begun.server) / count * 1e6,
            "foreign_cores": max(0.0, now.foreign - begun.foreign) / seconds,
        }

    def _read(self) -> _Usage:
        server = foreign = 0.0
        own = os.getpid()
        for entry in os.listdir(_PROC):
            if not entry.isdecimal() or int(entry) == own:
                continue
            parent, seconds, of_ended = _times(int(entry))
            if int(entry) in self._server:
                server += seconds
            elif parent != _KERNEL_THREADS and int(entry) != _KERNEL_THREADS:
                foreign += seconds + of_ended
        return _Usage(time.perf_counter(), time.process_time(), server, foreign + _stolen())


def wait_until_quiet(seconds_max: float = _QUIET_S) -> float:
    """Wait until all other processes use less than QUIET_CORES, `seconds_max` at most; the cores
    that they used last.

    For measurements of a part of a second: a process that was killed, or a server that has just
    started, takes as long to become quiet.
    """
    end = time.monotonic() + seconds_max
    while True:
        meter = Meter(())
        time.sleep(_SAMPLE_S)  # the sample: a rate needs a time, and nothing ends it
        cores = float(meter.figures(1)["foreign_cores"])
        if cores < QUIET_CORES or time.monotonic() >= end:
            return cores


def _times(process: int) -> tuple[int, float, float]:
    """Parent, own seconds, and those of children that have ended and were waited for, whose own
    are no longer to be seen.
    """
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8")
    except OSError:
        return 0, 0.0, 0.0
    fields = text.rpartition(")")[2].split()
    own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return int(fields[1]), own / _TICKS, ended / _TICKS


def _stolen() -> float:
    """Seconds that other machines of this host had."""
    fields = (_PROC / "stat").read_text(encoding="ascii").partition("\n")[0].split()
    return int(fields[8]) / _TICKS
