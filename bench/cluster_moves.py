"""How long a container of a cluster takes no appends: when it moves, and when its host is killed.

A whole cluster runs on this machine: ZooKeeper, three bookies, three hosts with 12 containers. One
program appends through `connect`, at a fixed rate, spread over a segment of each container. Then
single containers are pinned to another host, one after another. At last a host is killed by
SIGKILL. A pause is the longest time between two acknowledgements of a container's segment around
the event. Floor: the same in the same load, while nothing moves.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import segmentstore
from bench.bookkeeper_service import NOTE
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
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.store_api import StoreApi

QUESTION = "how long a container takes no appends when it moves, and when its host is killed"
HOSTS: Final = 3
CONTAINERS: Final = 12
RATE: Final = 2_000
"""Appends a second, in all."""
_BYTES: Final = 100
_QUIET_S: Final = 5.0
_AROUND_S: Final = 1.0
_MOVE_S_MAX: Final = 120.0
_CHECK_S: Final = 0.05
_P50_MS: Final = 200
_P99_MS: Final = 1_000
_TAKEOVER_S: Final = 3.0
"""Beyond the session timeout."""


class PacedAppends:
    """Appends to a segment of each container, and when each was acknowledged."""

    def __init__(self, store: StoreApi) -> None:
        self._store = store
        self._names = dict(sorted(_names().items()))
        self.acknowledged: dict[int, list[float]] = {number: [] for number in self._names}
        self.errors: list[BaseException] = []
        self._ends = False

    async def create(self) -> None:
        """The segments."""
        for name in self._names.values():
            await self._store.create_segment(name)

    async def run(self) -> None:
        """Append at RATE until `end`."""
        loop = asyncio.get_running_loop()
        begun, sent = loop.time(), 0
        numbers = list(self._names)
        while not self._ends:
            due = int((loop.time() - begun) * RATE)
            for index in range(sent, due):
                number = numbers[index % len(numbers)]
                future = self._store.append(self._names[number], bytes(_BYTES))
                future.add_done_callback(partial(self._done, number))
            sent = max(sent, due)
            await asyncio.sleep(0.001)

    def end(self) -> None:
        """Send no more."""
        self._ends = True

    def _done(self, number: int, future: asyncio.Future[int]) -> None:
        if (error := future.exception()) is not None:
            self.errors.append(error)
        else:
            self.acknowledged[number].append(time.monotonic())

    def longest_pause(self, number: int, begin: float, end: float) -> float:
        """Seconds between two acknowledgements, where the later one is between these times."""
        times = self.acknowledged[number]
        gaps = [
            after - before
            for before, after in itertools.pairwise(times)
            if begin <= after and before <= end
        ]
        return max(gaps, default=end - begin)


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 2 minutes quick, with 12 moves; 60 else."""
    moves = 12 if quick else 60
    with subfolder(directory, "cluster") as folder:
        local = LocalHosts(folder)
        try:
            local.start(HOSTS, None, CONTAINERS, partial(print, file=sys.stderr))
            return asyncio.run(measure(local, moves))
        finally:
            local.stop()


async def measure(local: LocalHosts, moves: int) -> CaseResult:
    """The case on hosts that run."""
    location = BookKeeperLocation.parse(local.url)
    addresses = ",".join(f"127.0.0.1:{port}" for port in local.kept.ports)
    client = await open_nodes(location, os.environ, Runtime())
    try:
        nodes = ClusterNodes(client, location.path)
        async with segmentstore.connect(addresses) as store:
            load = PacedAppends(store)
            await load.create()
            running = asyncio.create_task(load.run())
            await asyncio.sleep(_QUIET_S)
            begun = time.monotonic()
            await asyncio.sleep(_QUIET_S)
            floor = [
                load.longest_pause(number, begun, time.monotonic()) for number in range(CONTAINERS)
            ]
            pauses = [await _move(nodes, load, index % CONTAINERS) for index in range(moves)]
            errors = len(load.errors)
            lost = await _kill(local, nodes, load)
            load.end()
            await running
    finally:
        await client.close()
    return _result(floor, sorted(pauses), errors, lost, location.session_timeout_s)


async def _move(nodes: ClusterNodes, load: PacedAppends, number: int) -> float:
    """Move a container to the next host; the pause."""
    before = await _row(nodes, number)
    hosts = sorted(await nodes.hosts())
    target = hosts[(hosts.index(str(before.host)) + 1) % len(hosts)]
    begun = time.monotonic()
    await edit_map(nodes, lambda current: pin(current, CONTAINERS, number, target))
    while not ((row := await _row(nodes, number)).host == target and row.state == "running"):
        if time.monotonic() > begun + _MOVE_S_MAX:
            raise BenchError(f"container {number} does not move to {target}: {row}")
        await asyncio.sleep(_CHECK_S)
    await asyncio.sleep(_AROUND_S)
    return load.longest_pause(number, begun, time.monotonic())


async def _kill(local: LocalHosts, nodes: ClusterNodes, load: PacedAppends) -> float:
    """Kill a host; the longest pause of its containers."""
    rows = (await read_cluster(nodes, CONTAINERS)).container_rows()
    victim = str(rows[0].host)
    numbers = [row.container for row in rows if row.host == victim]
    begun = time.monotonic()
    local.process_of(int(victim.rpartition("-")[2])).send(signal.SIGKILL)
    while any(not load.acknowledged[each] or load.acknowledged[each][-1] < begun + _AROUND_S
              for each in numbers):  # fmt: skip
        if time.monotonic() > begun + _MOVE_S_MAX:
            raise BenchError(f"containers {numbers} are not taken over")
        await asyncio.sleep(_CHECK_S)
    await asyncio.sleep(_AROUND_S)
    return max(load.longest_pause(each, begun, time.monotonic()) for each in numbers)


async def _row(nodes: ClusterNodes, number: int) -> ContainerRow:
    return (await read_cluster(nodes, CONTAINERS)).container_rows()[number]


def _result(
    floor: list[float], pauses: list[float], errors: int, lost: float, session_s: float
) -> CaseResult:
    quiet = Samples((max(floor) * 1e3,))
    rows = []
    for share, most in ((50, _P50_MS), (99, _P99_MS)):
        value = percentile(pauses, share / 100) * 1e3
        rows.append(
            Row(
                name=f"planned move, {len(pauses)} of them: pause p{share}",
                unit="ms",
                floor=quiet,
                engine=Samples((value,)),
                ratio=value / most,
                bar=f"≤ {most:,}",
                met=value <= most,
            )
        )
    rows.append(
        Row(
            name="errors in all moves",
            unit="",
            engine=Samples((float(errors),)),
            bar="0",
            met=not errors,
        )
    )
    most_s = session_s + _TAKEOVER_S
    rows.append(
        Row(
            name="host killed: pause of its containers",
            unit="s",
            engine=Samples((lost,)),
            ratio=lost / most_s,
            bar=f"≤ {most_s:g}: the session's {session_s:g} and {_TAKEOVER_S:g}",
            met=lost <= most_s,
        )
    )
    return CaseResult(case="cluster_moves", question=QUESTION, rows=rows, notes=[NOTE])


def _names() -> dict[int, str]:
    """A segment's name for each container."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < CONTAINERS:
        name = f"bench-{number}"
        found.setdefault(container_of(name, CONTAINERS), name)
        number += 1
    return found


if __name__ == "__main__":
    from bench.suite import main

    main("cluster_moves")
