"""What a second process adds on one machine: Python's interpreter lock makes a process one core.

With the file log two processes are two stores. So one store with 1,000 callers in its process is
compared with two stores, each in a process with 500 callers, on the same disk at the same time.
The callers' tasks run in the stores' processes, and their CPU is in all figures: `callers_cpu_us`
is what the same tasks take for an append that does nothing. `machine_ratio` is what a second
process of such tasks adds, which share nothing with those of the first: more than this the cores
do not give. `small_cpu_us` is one process with 500 callers alone: what smaller frames cost.

Over BookKeeper the processes are hosts of one store, by `serve --processes`, and one client on the
same cores calls them by `connect`. That row has no bar: bookies, gateway, hosts and client share
two cores.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import segmentstore
from bench import child, rounds
from bench.bookkeeper_frames import ratios_of
from bench.bookkeeper_service import NOTE, bookkeeper_service
from bench.child import Measured
from bench.concurrent_callers import APPEND_BYTES, CALLERS, floor_round
from bench.engine import SEGMENT, open_store
from bench.loads import concurrent_callers
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.workspace import BenchError, subfolder
from durablelog.bookkeeper.bookkeeper_clients import open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.addresses import free_ports, port_is_free
from recovery.harness.services.server import python_module
from segmentstore.cluster.administration import read_cluster
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of

QUESTION: Final = "1,000 callers, 100 B, each awaited: two processes against one"
PROCESSES: Final = 2
RATIO_MIN: Final = 1.6
CONTAINERS: Final = 8
_WARM_EACH: Final = 10
_CHECK_S: Final = 0.001
_SHARED_CHECK_S: Final = 0.2
_START_S_MAX: Final = 120.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 75 s quick, 3 minutes else."""
    each = 100 if quick else 600
    count = rounds.count_of(quick=quick)
    sides = ("floor", "one", "two", "small", "callers", "callers two")
    files: dict[str, list[Measured]] = {side: [] for side in sides}
    for index in range(count):
        for side, found in files.items():
            with subfolder(directory, f"{side}-{index}") as folder:
                found.append(_file_round(side, folder, each))
    hosts: dict[int, list[Measured]] = {1: [], PROCESSES: []}
    with subfolder(directory, "bookkeeper") as folder, bookkeeper_service(folder) as cluster:
        for index, processes in itertools.product(range(count), hosts):
            name = f"hosts-{processes}-{index}"
            with subfolder(folder, name) as place:
                arguments = {
                    "directory": str(place),
                    "tier1": cluster.url(f"/{name}"),
                    "processes": processes,
                    "callers": CALLERS,
                    "appends_each": each // 4,
                }
                hosts[processes].append(child.call(__name__, "hosts_round", arguments))
    rows = [
        row_of(
            "file log",
            files["one"],
            files["two"],
            files["floor"],
            {
                "small_cpu_us": Samples.of(files["small"], "cpu_us").median,
                "callers_cpu_us": Samples.of(files["callers"], "cpu_us").median,
                "callers_two_cpu_us": Samples.of(files["callers two"], "cpu_us").median,
                "machine_ratio": statistics.median(
                    ratios_of(files["callers two"], files["callers"])
                ),
            },
            RATIO_MIN,
        ),
        row_of("BookKeeper, hosts", hosts[1], hosts[PROCESSES]),
    ]
    return CaseResult(case="cluster_processes", question=QUESTION, rows=rows, notes=[NOTE])


def row_of(
    name: str,
    one: Sequence[Measured],
    two: Sequence[Measured],
    floor: Sequence[Measured] = (),
    extra: dict[str, float] | None = None,
    ratio_min: float | None = None,
) -> Row:
    """Two processes, with one in the skeleton's column; the median of the rounds' ratios counts."""
    ratio = statistics.median(ratios_of(two, one))
    beside = {f"one_{key}": value for key, value in extras_of(one).items()}
    return Row(
        name=name,
        unit="appends/s",
        floor=Samples.of(floor) if floor else None,
        skeleton=Samples.of(one),
        engine=Samples.of(two),
        ratio=ratio,
        bar=f"≥ {ratio_min:.0%} of one process" if ratio_min is not None else "",
        met=ratio >= ratio_min if ratio_min is not None else None,
        extra={**beside, **extras_of(two), **(extra or {})},
    )


# --- the file log ---------------------------------------------------------------------------------


def _file_round(side: str, folder: Path, each: int) -> Measured:
    if side == "floor":
        arguments = {"directory": str(folder), "callers": CALLERS, "appends_each": each}
        return child.call(floor_round.__module__, "floor_round", arguments)
    match side:
        case "callers":
            return together(folder, 1, CALLERS, each, "callers_round")
        case "callers two":
            return together(folder, PROCESSES, CALLERS, each, "callers_round")
        case "small":
            return together(folder, 1, CALLERS // PROCESSES, each)
    return together(folder, 1 if side == "one" else PROCESSES, CALLERS, each)


def together(
    folder: Path, processes: int, callers: int, appends_each: int, work: str = "store_round"
) -> Measured:
    """The callers divided among so many processes, each with a store, or as `work` says; they begin
    at the same time.
    """

    def measured(number: int) -> Measured:
        arguments = {
            "directory": str(folder),
            "number": number,
            "processes": processes,
            "callers": callers // processes,
            "appends_each": appends_each,
        }
        return child.call(__name__, work, arguments)

    with ThreadPoolExecutor(processes) as executor:
        return joined(list(executor.map(measured, range(processes))))


def joined(parts: Sequence[Measured]) -> Measured:
    """One figure of processes that ran at the same time: from the first beginning to the last end.

    The times are of one clock, the machine's.
    """
    appends = sum(part["appends"] for part in parts)
    seconds = max(part["ended"] for part in parts) - min(part["begun"] for part in parts)
    latencies = {key: max(part[key] for part in parts) for key in ("p50_ms", "p99_ms")}
    cpu_us = sum(part["cpu_s"] for part in parts) / appends * 1e6
    return {"value": appends / seconds, "cpu_us": cpu_us, **latencies}


def store_round(
    directory: str, number: int, processes: int, callers: int, appends_each: int
) -> Measured:
    """One of the stores, default settings, all callers on one segment."""

    async def measure() -> Measured:
        data = bytes(APPEND_BYTES)
        async with open_store(Path(directory) / f"store-{number}") as store:
            await store.create_segment(SEGMENT)
            await concurrent_callers(lambda _: store.append(SEGMENT, data), callers, _WARM_EACH)
            _wait_for_others(Path(directory), number, processes)
            return await _measured(lambda _: store.append(SEGMENT, data), callers, appends_each)

    return asyncio.run(measure())


def _wait_for_others(folder: Path, number: int, processes: int) -> None:
    (folder / f"ready-{number}").touch()
    end = time.monotonic() + _START_S_MAX
    while not all((folder / f"ready-{each}").exists() for each in range(processes)):
        if time.monotonic() > end:
            message = f"after {_START_S_MAX:.0f} s not all {processes} processes are ready"
            raise BenchError(message)
        time.sleep(_CHECK_S)  # other processes: a file is all that they share


def callers_round(
    directory: str, number: int, processes: int, callers: int, appends_each: int
) -> Measured:
    """The callers alone: what they append is acknowledged at the end of the turn of the loop."""

    async def measure() -> Measured:
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[int]] = []

        def acknowledge() -> None:
            batch, waiting[:] = waiting[:], []
            for future in batch:
                future.set_result(0)

        def append(_: int) -> asyncio.Future[int]:
            if not waiting:
                loop.call_soon(acknowledge)
            waiting.append(loop.create_future())
            return waiting[-1]

        return await _measured(append, callers, appends_each)

    _wait_for_others(Path(directory), number, processes)
    return asyncio.run(measure())


async def _measured(
    append: Callable[[int], Awaitable[object]], callers: int, appends_each: int
) -> Measured:
    begun, cpu = time.monotonic(), time.process_time()
    result = await concurrent_callers(append, callers, appends_each)
    return {
        "begun": begun,
        "ended": time.monotonic(),
        "appends": result.appends,
        "cpu_s": time.process_time() - cpu,
        **latency_ms(result.latencies),
    }


# --- hosts on BookKeeper --------------------------------------------------------------------------


def hosts_round(
    directory: str, tier1: str, processes: int, callers: int, appends_each: int
) -> Measured:
    """Appends per second of one client of `connect`; `cpu_us` is the client's own."""
    folder = Path(directory)
    with _served(folder, tier1, processes) as addresses:
        return asyncio.run(_measure_hosts(addresses, callers, appends_each))


async def _measure_hosts(addresses: str, callers: int, appends_each: int) -> Measured:
    data = bytes(APPEND_BYTES)
    async with segmentstore.connect(addresses) as store:
        names = _names()
        for name in names:
            await store.create_segment(name)

        def append(number: int) -> asyncio.Future[int]:
            return store.append(names[number % len(names)], data)

        await concurrent_callers(append, callers, _WARM_EACH)
        cpu = time.process_time()
        result = await concurrent_callers(append, callers, appends_each)
        cpu_us = (time.process_time() - cpu) / result.appends * 1e6
        return {"value": result.rate, "cpu_us": cpu_us, **latency_ms(result.latencies)}


@contextmanager
def _served(folder: Path, tier1: str, processes: int) -> Iterator[str]:
    """The addresses of so many hosts that serve all containers between them."""
    first = _first_of_free_ports(folder, processes)
    options = ("--create", "--host", "a", "--wire", f"127.0.0.1:{first}")
    arguments = ("serve", str(folder / "hosts"), *options, "--processes", str(processes))
    settings = {"SEGMENTSTORE_TIER1": tier1, "SEGMENTSTORE_CONTAINERS": str(CONTAINERS)}
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            python_module("segmentstore", *arguments),
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        for _ in range(processes):
            if not process.stdout.readline():
                message = f"the hosts do not serve: {(folder / 'errors').read_text()}"
                raise BenchError(message)
        addresses = ",".join(f"127.0.0.1:{first + number}" for number in range(processes))
        asyncio.run(_wait_until_shared(tier1, processes))
        yield addresses
    finally:
        process.terminate()
        process.communicate()


async def _wait_until_shared(tier1: str, processes: int) -> None:
    """Until all containers run, the same number on each host."""
    location = BookKeeperLocation.parse(tier1)
    client = await open_nodes(location, os.environ, Runtime())
    try:
        nodes = ClusterNodes(client, location.path)
        end = time.monotonic() + _START_S_MAX
        while True:
            rows = (await read_cluster(nodes, CONTAINERS)).host_rows()
            if [row.running for row in rows] == [CONTAINERS // processes] * processes:
                return
            if time.monotonic() > end:
                message = f"after {_START_S_MAX:.0f} s the containers are not shared: {rows}"
                raise BenchError(message)
            await asyncio.sleep(_SHARED_CHECK_S)
    finally:
        await client.close()


def _first_of_free_ports(folder: Path, count: int) -> int:
    """The first of so many in a row."""
    taken: list[int] = []
    while True:
        (first,) = free_ports(folder, 1, taken)
        ports = range(first, first + count)
        if all(map(port_is_free, ports)):
            return first
        taken += ports


def _names() -> list[str]:
    """A segment's name for each container."""
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"bench-{number}"
        found.setdefault(container_of(name, CONTAINERS), name)
        if len(found) == CONTAINERS:
            break
    return list(found.values())


if __name__ == "__main__":
    from bench.suite import main

    main("cluster_processes")
