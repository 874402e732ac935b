"""Pravega's own clients, Java and the wheel, against `segmentstore serve` and Pravega 0.13.0.

The same program goes to both in turns, a stream of its own each time, with the same bookie and
disk. Ratios are of neighbours, and the median of the rounds' ratios counts. In the skeleton's
column stands the peer; the floor is the disk alone, right before each round.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.report import CaseResult, Row, Samples, extras_of
from bench.wire_floors import disk_floor
from bench.wire_load import java_load, wheel_load
from bench.wire_servers import (
    NOTE,
    MeasuredServer,
    OurServer,
    PravegaServer,
    bookkeeper_url,
    one_bookie,
    running,
)
from bench.workspace import subfolder
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster

QUESTION = "Pravega's clients on this store (engine) and on Pravega 0.13.0 (skeleton)"
RATE: Final = 10_000
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class LoadBar:
    """What is compared of a load: `key` of what it measured, times `scale`."""

    name: str
    key: str
    unit: str
    scale: float = 1.0
    at_least: float | None = None
    """Of the peer's figure."""
    at_most: float | None = None
    """The same. With neither it is measured alone."""

    def is_met(self, ratio: float) -> bool | None:
        """Whether a ratio of ours to the peer's will do; None without a bar."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return None if self.at_most is None else ratio <= self.at_most

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} x"
        return "" if self.at_most is None else f"≤ {self.at_most:g} x"


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """A load of a client, and its bars."""

    program: str
    load: str
    event_bytes: int
    bars: Sequence[LoadBar]
    rate: int = 0

    def run(
        self, server: MeasuredServer, cluster: BookKeeperCluster | None, stream: str, sizes: Sizes
    ) -> Measured:
        """Once, on a stream of its own."""
        program = java_load if self.program == "java" else wheel_load
        given: dict[str, object] = {"stream": stream, "bytes": self.event_bytes}
        given |= {"warm": sizes.warm_s, "seconds": sizes.seconds}
        if self.rate:
            given["rate"] = self.rate
        if self.load == "read":
            given["count"] = sizes.read_events
        return program(server, self.load, cluster, **given)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of it."""

    rounds: int
    warm_s: int
    seconds: int
    read_events: int


def event_rate(name: str, at_least: float) -> Sequence[LoadBar]:
    """Events a second."""
    return [LoadBar(name, "value", "events/s", at_least=at_least)]


def byte_rate(name: str, event_bytes: int, at_least: float) -> Sequence[LoadBar]:
    """Megabytes a second."""
    return [LoadBar(name, "value", "MB/s", event_bytes / 1e6, at_least=at_least)]


def _latency(name: str) -> Sequence[LoadBar]:
    bars = [LoadBar(f"{name}, {each}", f"{each}_ms", "ms", at_most=1.0) for each in ("p50", "p99")]
    return [*bars, LoadBar(f"{name}, p999", "p999_ms", "ms")]


FAST: Final = ClientLoad("java", "fast", 100, event_rate("Java, 100 B, unpaced", 0.5))
LOADS: Final = (
    FAST,
    ClientLoad("java", "paced", 100, _latency("Java, 10,000/s"), RATE),
    ClientLoad("java", "fast", 10 * KIB, byte_rate("Java, 10 KiB, unpaced", 10 * KIB, 0.7)),
    ClientLoad("wheel", "pipelined", 100, event_rate("wheel, 1,000 in flight", 0.8)),
    ClientLoad("wheel", "flush", 100, _latency("wheel, event and flush")),
    ClientLoad("java", "tail", 100, _latency("Java, tail at 10,000/s"), RATE),
)


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 6 minutes quick, 15 else; needs 8 GB of disk."""
    sizes = sizes_of(quick=quick)
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        ours = OurServer(folder / "ours", bookkeeper_url(cluster, "ours"))
        with running(ours), running(PravegaServer(folder / "peer", cluster)) as peer:
            rows = compare(folder, cluster, ours, peer, LOADS, sizes)
    return CaseResult(case="wire_clients", question=QUESTION, rows=rows, notes=[NOTE])


def sizes_of(*, quick: bool) -> Sizes:
    """Of the cases of clients."""
    return Sizes(2, 8, 4, 200_000) if quick else Sizes(3, 10, 10, 1_000_000)


def compare(
    folder: Path,
    cluster: BookKeeperCluster | None,
    engine: MeasuredServer,
    beside: MeasuredServer | None,
    loads: Sequence[ClientLoad],
    sizes: Sizes,
) -> list[Row]:
    """Rows of the loads, the sides taking turns."""
    rows = list[Row]()
    for number, load in enumerate(loads):
        floors, found, others = list[Measured](), list[Measured](), list[Measured]()
        for index in range(sizes.rounds):
            stream = f"{engine.folder.name}-{number}-{index}"
            os.sync()
            floors.append(disk_floor(folder))
            if beside is not None:
                others.append(load.run(beside, cluster, stream, sizes))
            found.append(load.run(engine, cluster, stream, sizes))
        rows += rows_of(load, floors, found, others)
    return rows


def rows_of(
    load: ClientLoad,
    floors: Sequence[Measured],
    found: Sequence[Measured],
    others: Sequence[Measured],
) -> list[Row]:
    """A row for each bar of a load."""
    rows = list[Row]()
    for bar in load.bars:
        engine = _scaled(found, bar)
        beside = _scaled(others, bar) if others else None
        ratio = None
        if beside is not None:
            pairs = zip(engine.rounds, beside.rounds, strict=True)
            ratio = statistics.median(one / other for one, other in pairs)
        rows.append(
            Row(
                name=bar.name,
                unit=bar.unit,
                floor=_floor_of(bar, floors, load.event_bytes),
                skeleton=beside,
                engine=engine,
                ratio=ratio,
                bar=str(bar),
                met=None if ratio is None else bar.is_met(ratio),
                extra=_cpu(found, others) if bar is load.bars[0] else {},
            )
        )
    return rows


def _scaled(measured: Sequence[Measured], bar: LoadBar) -> Samples:
    return Samples(tuple(float(one[bar.key]) * bar.scale for one in measured))


def _floor_of(bar: LoadBar, floors: Sequence[Measured], event_bytes: int) -> Samples | None:
    if bar.key == "value":
        return Samples(tuple(one["bytes_per_s"] / event_bytes * bar.scale for one in floors))
    return Samples.of(floors, bar.key) if bar.key in floors[0] else None


def _cpu(found: Sequence[Measured], others: Sequence[Measured]) -> dict[str, float]:
    sides = {"ours": found, "beside": others}
    return {
        f"{side}_{name}": value
        for side, measured in sides.items()
        if measured
        for name, value in extras_of(measured).items()
        if name.endswith("_us")
    }


if __name__ == "__main__":
    from bench.suite import main

    main("wire_clients")
