"""What a client sees of a rolling restart: three hosts with 64 containers are stopped by SIGTERM
and started again, one after another, under appends through `connect`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench.bookkeeper_service import NOTE
from bench.cluster_moves import HOSTS, QUIET_S, loaded
from bench.report import CaseResult, Row, Samples
from bench.workspace import BenchError, subfolder
from segmentstore.cli.local_hosts import LocalHosts

QUESTION = "errors and throughput at a client while all hosts are restarted in turn"
CONTAINERS: Final = 64
RATE: Final = 500
"""Appends a second: the machine is to have room for the restart."""
_SHARE: Final = 0.8
_STOP_S: Final = 60.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 2 minutes; `quick` restarts one host."""
    with subfolder(directory, "cluster") as folder:
        local = LocalHosts(folder)
        try:
            local.start(HOSTS, None, CONTAINERS, partial(print, file=sys.stderr))
            rows = asyncio.run(measure(local, 1 if quick else HOSTS))
        finally:
            local.stop()
    return CaseResult(case="cluster_restart", question=QUESTION, rows=rows, notes=[NOTE])


async def measure(local: LocalHosts, restarts: int) -> list[Row]:
    """The case on hosts that run."""
    async with loaded(local, RATE) as cluster:
        load = cluster.load
        begun = time.monotonic()
        await asyncio.sleep(QUIET_S)
        before = load.per_second(begun, time.monotonic())
        begun = time.monotonic()
        for number in range(1, restarts + 1):
            await asyncio.to_thread(_restart, local, number)
        ended = time.monotonic()
        during = load.per_second(begun, ended)
        pauses = [load.longest_pause(number, begun, ended).seconds for number in load.acknowledged]
    errors = len(load.errors)
    return [
        Row(
            name=f"{restarts} of {HOSTS} hosts restarted, {len(pauses)} containers: errors",
            unit="",
            engine=Samples((float(errors),)),
            bar="0",
            met=not errors,
        ),
        Row(
            name="acknowledged, before and during",
            unit="appends/s",
            floor=Samples((before,)),
            engine=Samples((during,)),
            ratio=during / before,
            bar=f"≥ {_SHARE:.0%}",
            met=during >= _SHARE * before,
        ),
        Row(name="the restart", unit="s", engine=Samples((ended - begun,))),
        Row(
            name="longest pause of each container",
            unit="s",
            engine=Samples(tuple(pauses)),
        ),
    ]


def _restart(local: LocalHosts, number: int) -> None:
    process = local.process_of(number)
    process.send(signal.SIGTERM)
    process.wait(_STOP_S)
    if process.process_id is not None:
        raise BenchError(f"{process.name} does not end within {_STOP_S:.0f} s of SIGTERM")
    process.end()
    local.start(HOSTS, None, None, partial(print, file=sys.stderr))


if __name__ == "__main__":
    from bench.suite import main

    main("cluster_restart")
