"""How long the containers of a host that is killed take no appends, and in which phase.

Three hosts with 6 containers, on this machine. Each container's log has 100 MiB (quick: 10) that
are in no other place. One program appends to all of them through `connect`. Then a host that does
not lead is killed by SIGKILL. The pause is that of the container which takes longest; it counts
from the last acknowledgement before. The session timeout is the default one, 10 s.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Final

import segmentstore
from bench.bookkeeper_service import NOTE
from bench.cluster_load import segment_names
from bench.cluster_moves import AROUND_S, CHECK_S, HOSTS, WAIT_S_MAX, LoadedCluster, loaded
from bench.cluster_moves import phase_rows as rows_of
from bench.cluster_timeline import TAKEOVER_PHASES
from bench.floor import MIB
from bench.loads import pipelined
from bench.recovery import HELD_BACK
from bench.report import CaseResult, Row, Samples
from bench.workspace import BenchError, subfolder
from segmentstore.cli.local_hosts import LocalHosts
from segmentstore.cluster.administration import read_cluster
from segmentstore.settings_sources import ENVIRONMENT_PREFIX
from segmentstore.store_api import StoreApi

QUESTION = "how long the containers of a killed host take no appends, by phase"
CONTAINERS: Final = 6
RATE: Final = 200
_BEYOND_S: Final = 3.0
"""The bar, beyond the session timeout."""
_APPEND_BYTES: Final = 16 * 1024
_WINDOW: Final = 64


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 2 minutes, 1 quick."""
    fill = 10 * MIB if quick else 100 * MIB
    for name, value in HELD_BACK.items():
        os.environ[f"{ENVIRONMENT_PREFIX}{name.upper()}"] = str(value)
    with subfolder(directory, "cluster") as folder:
        local = LocalHosts(folder)
        try:
            local.start(HOSTS, None, CONTAINERS, partial(print, file=sys.stderr))
            rows = asyncio.run(measure(local, fill))
        finally:
            local.stop()
            for name in HELD_BACK:
                del os.environ[f"{ENVIRONMENT_PREFIX}{name.upper()}"]
    return CaseResult(case="cluster_takeover", question=QUESTION, rows=rows, notes=[NOTE])


async def measure(local: LocalHosts, fill_bytes: int) -> list[Row]:
    """The case on hosts that run; so many bytes go into each log first."""
    async with loaded(local, RATE) as cluster:
        addresses = ",".join(f"127.0.0.1:{port}" for port in local.kept.ports)
        async with segmentstore.connect(addresses) as store:
            await _fill(store, local.kept.containers, fill_bytes)
            await asyncio.sleep(AROUND_S)
            pause_s, phases = await _kill(local, cluster, store)
    session_s = cluster.location.session_timeout_s
    most_s = session_s + _BEYOND_S
    row = Row(
        name=f"host killed, {fill_bytes // MIB} MiB in each log: pause",
        unit="s",
        engine=Samples((pause_s,)),
        ratio=pause_s / most_s,
        bar=f"≤ {most_s:g}: the session's {session_s:g} and {_BEYOND_S:g}",
        met=pause_s <= most_s,
    )
    errors = [error for error in cluster.load.errors if not _is_of_the_kill(error)]
    if errors:
        raise BenchError(f"an append failed: {errors[0]!r}")
    return [row, *rows_of("host killed", TAKEOVER_PHASES, [phases])]


def _is_of_the_kill(error: BaseException) -> bool:
    """Appends that the host had taken when it was killed."""
    return isinstance(error, segmentstore.AppendOutcomeUnknownError)


async def _fill(store: StoreApi, containers: int, fill_bytes: int) -> None:
    data = bytes(_APPEND_BYTES)
    names = list(segment_names(containers).values())

    def append(number: int) -> Awaitable[object]:
        return store.append(names[number % containers], data)

    await pipelined(append, containers * fill_bytes // _APPEND_BYTES, _WINDOW)


async def _kill(
    local: LocalHosts, cluster: LoadedCluster, store: StoreApi
) -> tuple[float, dict[str, float]]:
    """Kill a host; seconds of the longest pause of its containers, and their phases."""
    load = cluster.load
    rows = (await read_cluster(cluster.nodes, local.kept.containers)).container_rows()
    victim = str(rows[0].host)
    numbers = [row.container for row in rows if row.host == victim]
    cluster.timeline.forget()
    killed = time.monotonic()
    local.process_of(int(victim.rpartition("-")[2])).send(signal.SIGKILL)
    while any(load.acknowledged[each][-1] < killed + AROUND_S for each in numbers):
        if time.monotonic() > killed + WAIT_S_MAX:
            raise BenchError(f"containers {numbers} are not taken over")
        await asyncio.sleep(CHECK_S)
    await asyncio.sleep(AROUND_S)
    pauses = {each: load.longest_pause(each, killed, time.monotonic()) for each in numbers}
    slowest = max(pauses, key=lambda each: pauses[each].seconds)
    stats = await store.fetch_stats()
    replay_s = stats["containers"][slowest]["recovery"]["seconds"]
    pause = pauses[slowest]
    return pause.seconds, cluster.timeline.takeover(slowest, victim, killed, pause, replay_s)


if __name__ == "__main__":
    from bench.pause_plot import plot
    from bench.suite import main

    main("cluster_takeover", plot=plot)
