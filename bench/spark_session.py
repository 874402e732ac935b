"""The Spark session the benches measure in: both cores of this machine, nothing shown, everything
in a folder that goes.

A case measures in a process of its own (bench/child.py), floor and engine in the same warm session,
in turns. So the start of a session counts for no side.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
OVER_LIMIT = 70
_SAMPLE_S = 0.2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def session(folder: Path, *, heap: str = "2g") -> Iterator[SparkSession]:
    """A session in this process. Once in a process."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "16",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    arguments = ["--master", f"local[{CORES}]", "--driver-memory", heap, *conf, "pyspark-shell"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(arguments)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Not at the top: what only adds up results needs no Spark.
    from tier2.spark.common.session import spark_session, stop_sessions  # noqa: PLC0415

    try:
        yield spark_session("segmentstore bench")
    finally:
        stop_sessions()


def drain(frame: DataFrame) -> float:
    """Seconds it takes to make every row and throw it away."""
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


class MemoryWatch:
    """The most resident memory of this process and all below it, in bytes; sampled, shared pages
    counted in each.

    With a `limit` in bytes it ends this process and all below it, with the exit code OVER_LIMIT, as
    soon as it sees more.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.peak = 0
        self._limit = limit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:
            resident = _resident_below(os.getpid())
            self.peak = max(self.peak, sum(resident.values()))
            if self._limit is not None and self.peak > self._limit:
                _end(
                    resident,
                    f"{self.peak:,} bytes are in memory, more than the {self._limit:,} allowed",
                )
            over = self._over.wait(_SAMPLE_S)


def _end(processes: Mapping[int, int], reason: str) -> NoReturn:
    """Kill these processes, this one last."""
    sys.stderr.write(f"ended: {reason}\n")
    sys.stderr.flush()
    for process in processes:
        if process != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    os._exit(OVER_LIMIT)


def _resident_below(root: int) -> dict[int, int]:
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            resident[int(entry.name)] = (
                int(Path(entry.path, "statm").read_text().split()[1]) * _PAGE_BYTES
            )
        except (OSError, IndexError):
            continue  # it has ended
        parents[int(entry.name)] = int(stat[1])
    found = {root}
    while below := {child for child, parent in parents.items() if parent in found} - found:
        found |= below
    return {each: resident.get(each, 0) for each in found}
