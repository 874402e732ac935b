"""W2: one producer with appends in flight: single records, and batches of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB, synced_write_rate
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import open_log
from bench.peers.timed_loads import timed_producer

RECORD_BYTES: Final = {"100 B": 100, "1 KiB": 1024, "64 KiB": 65_536}
_IN_FLIGHT_BYTES: Final = 4 * MIB
_IN_FLIGHT_MAX: Final = 1024
_BATCH_MAX: Final = 100
_BATCH_BYTES: Final = MIB
_FLOOR_BYTES: Final = 64 * MIB


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """Each size of a record, single and in batches."""
    del sizes
    return [
        Cell(
            name=f"W2 {title}, {'batch' if batch else 'single'}",
            unit="records/s",
            module=__name__,
            parameters={"record_bytes": length, "batch": batch},
        )
        for title, length in RECORD_BYTES.items()
        for batch in (False, True)
    ]


def batch_records(record_bytes: int) -> int:
    """Records of a batch: 100, or as many as make 1 MiB."""
    return max(1, min(_BATCH_MAX, _BATCH_BYTES // record_bytes))


def in_flight(call_bytes: int) -> int:
    """Calls that are not acknowledged: 4 MiB of them, 1,024 at most."""
    return max(2, min(_IN_FLIGHT_MAX, _IN_FLIGHT_BYTES // call_bytes))


def floor_round(directory: str, record_bytes: int, **_: object) -> Measured:
    """Records of write + fdatasync in 1 MiB, which is where the skeleton closes a batch."""
    return {
        "value": synced_write_rate(Path(directory), MIB, _FLOOR_BYTES, _FLOOR_BYTES) / record_bytes
    }


def peer_round(run: PeerRun, record_bytes: int, *, batch: bool) -> Measured:
    """Records a second to one log."""
    return asyncio.run(_measure(run, record_bytes, batch=batch))


async def _measure(run: PeerRun, record_bytes: int, *, batch: bool) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    data = bytes(record_bytes)
    count = batch_records(record_bytes) if batch else 1
    records = [data] * count
    measured = await timed_producer(
        (lambda _: log.append_batch(0, records)) if batch else (lambda _: log.append(0, data)),
        min(in_flight(record_bytes * count), max(2, run.in_flight_max // count)),
        run.sizes.warm_s,
        run.sizes.seconds,
        run.processes,
    )
    await log.delete()
    await log.close()
    # By record, not by call.
    by_record = {key: measured[key] / count for key in ("client_us", "server_us")}
    return {**measured, **by_record, "value": measured["value"] * count}
