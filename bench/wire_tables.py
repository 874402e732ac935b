"""Conditional updates of a table over the wire: one caller, and 64 on one connection.

Each caller has a key of its own, and expects the version that its last update gave. Our codec is
the client of both sides. Floor: write + fdatasync of 4 KiB. In the skeleton's column: Pravega.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Final

from bench import child
from bench.child import Measured
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples, beside_extras, extras_of
from bench.wire_codec_client import CodecClient, connected
from bench.wire_floors import disk_floor
from bench.wire_servers import (
    NOTE,
    MeasuredServer,
    OurServer,
    PravegaServer,
    bookkeeper_url,
    one_bookie,
    running,
)
from bench.workspace import BenchError, subfolder
from segmentstore.wire.commands import (
    CreateTableSegment,
    SegmentCreated,
    TableEntriesUpdated,
    UpdateTableEntries,
)
from segmentstore.wire.table_commands import NOT_EXISTS, TableKey

QUESTION: Final = "conditional table updates over the wire (skeleton: Pravega 0.13.0)"
CALLERS: Final = 64
P50_TIMES: Final = 1.0
RATE_TIMES: Final = 0.5
_VALUE: Final = bytes(100)


def run(directory: Path, *, quick: bool) -> CaseResult:
    """A minute quick, two else."""
    seconds, rounds = (2.0, 2) if quick else (5.0, 3)
    floors, found, others = list[Measured](), list[Measured](), list[Measured]()
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        ours = OurServer(folder / "ours", bookkeeper_url(cluster, "ours"))
        with running(ours), running(PravegaServer(folder / "peer", cluster)) as peer:
            for index in range(rounds):
                os.sync()
                floors.append(disk_floor(folder))
                others.append(updates(peer, f"bench/_tables/{index}", seconds))
                found.append(updates(ours, f"bench/_tables/{index}", seconds))
    return CaseResult(
        case="wire_tables", question=QUESTION, rows=rows_of(floors, found, others), notes=[NOTE]
    )


def rows_of(floors: list[Measured], found: list[Measured], others: list[Measured]) -> list[Row]:
    """A row for each bar; `others` may be empty."""
    p50 = _ratio(found, others, "p50_ms")
    rate = _ratio(found, others, "value")
    return [
        Row(
            name="one at a time, p50",
            unit="ms",
            floor=Samples.of(floors, "p50_ms"),
            skeleton=Samples.of(others, "p50_ms") if others else None,
            engine=Samples.of(found, "p50_ms"),
            ratio=p50,
            bar=f"≤ {P50_TIMES:g} x",
            met=None if p50 is None else p50 <= P50_TIMES,
            extra=extras_of(found),
        ),
        Row(
            name=f"{CALLERS} callers",
            unit="updates/s",
            skeleton=Samples.of(others) if others else None,
            engine=Samples.of(found),
            ratio=rate,
            bar=f"≥ {RATE_TIMES:g} x",
            met=None if rate is None else rate >= RATE_TIMES,
            extra=beside_extras(others),
        ),
    ]


def _ratio(found: list[Measured], others: list[Measured], key: str) -> float | None:
    if not others:
        return None
    pairs = zip(found, others, strict=True)
    return statistics.median(float(one[key]) / float(other[key]) for one, other in pairs)


def updates(server: MeasuredServer, table: str, seconds: float) -> Measured:
    """`value` is what 64 callers do in a second, the latencies are those of one."""
    arguments = {"port": server.wire_port, "table": table, "seconds": seconds}
    before = server.cpu_seconds()
    measured = child.call(__name__, "updates_round", arguments)
    measured["server_us"] = (server.cpu_seconds() - before) * 1e6 / measured.pop("count")
    return measured


def updates_round(port: int, table: str, seconds: float) -> Measured:
    """Of the process that calls."""

    async def work() -> Measured:
        async with connected(port) as client:
            request = client.next_id()
            await client.ask(request, CreateTableSegment(request, table, ""), SegmentCreated)
            # The first ones warm both sides up.
            warm = await _caller(client, table, "warm", time.perf_counter() + seconds / 2)
            alone = await _caller(client, table, "alone", time.perf_counter() + seconds)
            begun = time.perf_counter()
            many = await asyncio.gather(
                *(
                    _caller(client, table, f"caller {number}", begun + seconds)
                    for number in range(CALLERS)
                )
            )
            elapsed = time.perf_counter() - begun
        alone.sort()
        crowd = sorted(latency for each in many for latency in each)
        return {
            "value": len(crowd) / elapsed,
            "p50_ms": percentile(alone, 0.5) * 1e3,
            "p99_ms": percentile(alone, 0.99) * 1e3,
            "callers_p50_ms": percentile(crowd, 0.5) * 1e3,
            "callers_p99_ms": percentile(crowd, 0.99) * 1e3,
            "count": len(warm) + len(alone) + len(crowd),
        }

    return asyncio.run(work())


async def _caller(client: CodecClient, table: str, key: str, end: float) -> list[float]:
    """Seconds of each update until `end`."""
    version = NOT_EXISTS
    taken = list[float]()
    while (begun := time.perf_counter()) < end:
        request = client.next_id()
        entry = (TableKey(key.encode(), version), _VALUE)
        reply = await client.send(request, UpdateTableEntries(request, table, "", (entry,)))
        if not isinstance(reply, TableEntriesUpdated):
            raise BenchError(f"the update was answered by {reply}")
        version = reply.versions[0]
        taken.append(time.perf_counter() - begun)
    return taken


if __name__ == "__main__":
    from bench.suite import main

    main("wire_tables")
