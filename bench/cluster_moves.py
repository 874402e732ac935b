"""How long a container of a cluster takes no appends while it moves, and in which phase.

A whole cluster runs on this machine: ZooKeeper, three bookies, three hosts with 12 containers. One
program appends through `connect`, at a fixed rate, spread over a segment of each container. Then
single containers are pinned to another host, one after another. (Balance moves another one back at
the same time.) A pause is the longest time between two acknowledgements of a container's segment
around the move. Floor: the same in the same load, while nothing moves.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import segmentstore
from bench.bookkeeper_service import NOTE
from bench.cluster_load import PacedAppends
from bench.cluster_timeline import MEANINGS, MOVE_PHASES, ClusterTimeline
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples
from bench.workspace import BenchError, subfolder
from durablelog.bookkeeper.bookkeeper_clients import open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from segmentstore.cli.local_hosts import LocalHosts
from segmentstore.cluster.administration import ContainerRow, edit_map, read_cluster
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.map_edits import pin
from segmentstore.contracts.runtime import Runtime

QUESTION = "how long a container takes no appends when it moves, by phase"
HOSTS: Final = 3
CONTAINERS: Final = 12
RATES: Final = (200, 2_000)
"""Appends a second, in all; the bars are for the last one."""
QUIET_S: Final = 5.0
AROUND_S: Final = 1.0
WAIT_S_MAX: Final = 120.0
CHECK_S: Final = 0.05
_P50_MS: Final = 200
_P99_MS: Final = 1_000


class SeenMove(NamedTuple):
    """One move, as the client saw it."""

    pause_s: float
    phases: Mapping[str, float]
    """Seconds of each of MOVE_PHASES."""


class LoadedCluster(NamedTuple):
    """Hosts that run, under a load."""

    nodes: ClusterNodes
    load: PacedAppends
    timeline: ClusterTimeline
    location: BookKeeperLocation


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 2 minutes quick, with 12 moves at each rate; 60 else."""
    moves = 12 if quick else 60
    rows: list[Row] = []
    with subfolder(directory, "cluster") as folder:
        local = LocalHosts(folder)
        try:
            local.start(HOSTS, None, CONTAINERS, partial(print, file=sys.stderr))
            for rate in RATES:
                rows += asyncio.run(measure(local, moves, rate))
        finally:
            local.stop()
    return CaseResult(case="cluster_moves", question=QUESTION, rows=rows, notes=[NOTE])


@asynccontextmanager
async def loaded(local: LocalHosts, rate: int) -> AsyncGenerator[LoadedCluster, None]:
    """A client appends at this rate meanwhile; its errors are in the load."""
    location = BookKeeperLocation.parse(local.url)
    addresses = ",".join(f"127.0.0.1:{port}" for port in local.kept.ports)
    client = await open_nodes(location, os.environ, Runtime())
    try:
        nodes = ClusterNodes(client, location.path)
        timeline = ClusterTimeline(nodes)
        timeline.open()
        async with segmentstore.connect(addresses) as store:
            load = PacedAppends(store, local.kept.containers, rate)
            await load.create()
            running = asyncio.create_task(load.run())
            await asyncio.sleep(QUIET_S)
            try:
                yield LoadedCluster(nodes, load, timeline, location)
            finally:
                load.end()
                await running
                await load.answered()
        await timeline.close()
    finally:
        await client.close()


async def measure(local: LocalHosts, moves: int, rate: int) -> list[Row]:
    """The case on hosts that run, at one rate."""
    async with loaded(local, rate) as cluster:
        load = cluster.load
        begun = time.monotonic()
        await asyncio.sleep(QUIET_S)
        now = time.monotonic()
        floor = max(load.longest_pause(each, begun, now).seconds for each in range(CONTAINERS))
        moved = [await _move(cluster, index % CONTAINERS) for index in range(moves)]
    return _rows(rate, floor, moved, len(load.errors))


async def _move(cluster: LoadedCluster, number: int) -> SeenMove:
    """Move a container to the next host."""
    nodes, load = cluster.nodes, cluster.load
    before = await _row(nodes, number)
    hosts = sorted(await nodes.hosts())
    target = hosts[(hosts.index(str(before.host)) + 1) % len(hosts)]
    cluster.timeline.forget()
    asked = time.monotonic()
    await edit_map(nodes, lambda current: pin(current, CONTAINERS, number, target))
    while not ((row := await _row(nodes, number)).host == target and row.state == "running"):
        if time.monotonic() > asked + WAIT_S_MAX:
            raise BenchError(f"container {number} does not move to {target}: {row}")
        await asyncio.sleep(CHECK_S)
    await asyncio.sleep(AROUND_S)
    pause = load.longest_pause(number, asked, time.monotonic())
    return SeenMove(pause.seconds, cluster.timeline.move(number, target, asked, pause))


async def _row(nodes: ClusterNodes, number: int) -> ContainerRow:
    return (await read_cluster(nodes, CONTAINERS)).container_rows()[number]


def _rows(rate: int, floor_s: float, moves: Sequence[SeenMove], errors: int) -> list[Row]:
    has_bar = rate == RATES[-1]
    title = f"{rate:,} appends/s, {len(moves)} planned moves"
    pauses = sorted(move.pause_s for move in moves)
    rows = []
    for share, most in ((50, _P50_MS), (99, _P99_MS)):
        value = percentile(pauses, share / 100) * 1e3
        rows.append(
            Row(
                name=f"{title}: pause p{share}",
                unit="ms",
                floor=Samples((floor_s * 1e3,)),
                engine=Samples((value,)),
                ratio=value / most if has_bar else None,
                bar=f"≤ {most:,}" if has_bar else "",
                met=value <= most if has_bar else None,
            )
        )
    rows.append(
        Row(
            name=f"{title}: errors",
            unit="",
            engine=Samples((float(errors),)),
            bar="0",
            met=not errors,
        )
    )
    return rows + phase_rows(f"{rate:,} appends/s", MOVE_PHASES, [move.phases for move in moves])


def phase_rows(
    title: str, names: Sequence[str], measured: Sequence[Mapping[str, float]]
) -> list[Row]:
    """A row for each phase: all that was measured. `pause_plot` reads the name."""
    return [
        Row(
            name=f"{title}: {name}, {MEANINGS[name]}",
            unit="ms",
            engine=Samples(tuple(each[name] * 1e3 for each in measured)),
        )
        for name in names
    ]


if __name__ == "__main__":
    from bench.pause_plot import plot
    from bench.suite import main

    main("cluster_moves", plot=plot)
