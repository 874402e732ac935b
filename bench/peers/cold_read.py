"""W4: catch-up of a log whose bytes are in no memory: records of 1 KiB, written in batches.

The engine's are in Tier 2, which is a folder here. Servers are restarted and the kernel drops the
pages of all files before the read. Redis reads from memory, into which the restart has loaded it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.child import Measured
from bench.floor import MIB, evict, read_rate
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.measure import in_child
from bench.peers.peer import Peer, open_log
from bench.peers.timed_loads import FILL_BATCH, FILL_RECORD_BYTES, fill
from bench.peers.usage import Meter
from bench.workspace import BenchError


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One."""
    records = sizes.catch_up_bytes // FILL_RECORD_BYTES // FILL_BATCH * FILL_BATCH
    return [
        Cell(
            name=f"W4 cold catch-up, {sizes.catch_up_bytes // MIB:,} MiB",
            unit="MB/s",
            module=__name__,
            parameters={"records": records},
            left_out=("skeleton",),
            rounds_max=sizes.rounds_dear,
        )
    ]


def floor_round(directory: str, records: int) -> Measured:
    """Preads of 1 MiB of a file of these bytes."""
    path = Path(directory) / "floor"
    with path.open("wb") as file:
        for _ in range(0, records * FILL_RECORD_BYTES, MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
    evict([path])
    length, seconds = read_rate([path], MIB)
    return {"value": length / seconds / 1e6}


def suite_round(peer: Peer, run: PeerRun, folder: Path, parameters: Mapping[str, Any]) -> Measured:
    """Fill, restart, drop the pages, read."""
    in_child(__name__, "fill_round", run, parameters)
    if not peer.embedded:
        peer.restart()
        run = dataclasses.replace(run, processes=peer.processes())
    os.sync()
    for path in peer.data_files(folder):
        try:
            evict([path])
        except FileNotFoundError:
            continue  # its server has deleted it in between
    return in_child(__name__, "read_round", run, parameters)


def fill_round(run: PeerRun, records: int) -> Measured:
    """Write them all, to where a reader finds them cold."""
    return asyncio.run(_fill(run, records))


async def _fill(run: PeerRun, records: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    await fill(log, records // FILL_BATCH, run.in_flight_max)
    await log.flush()
    await log.close()
    return {}


def read_round(run: PeerRun, records: int) -> Measured:
    """Megabytes a second as `value`; the CPU is of a record."""
    return asyncio.run(_read(run, records))


async def _read(run: PeerRun, records: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base, create=False)
    length, meter, begun = 0, Meter(run.processes), time.perf_counter()
    async for data in log.read(0):
        length += len(data)
    seconds = time.perf_counter() - begun
    figures = meter.figures(records)
    await log.delete()
    await log.close()
    if length != records * FILL_RECORD_BYTES:
        raise BenchError(f"{length:,} bytes were read of {records * FILL_RECORD_BYTES:,}")
    return {**figures, "value": records * FILL_RECORD_BYTES / seconds / 1e6}
