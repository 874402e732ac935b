"""W1: callers that each wait for their own append of 100 B."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB, synced_write_rate
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import open_log
from bench.peers.timed_loads import timed_callers

CALLERS: Final = (1, 16, 256, 1000)
APPEND_BYTES: Final = 100
_FLOOR_SYNCS: Final = 500


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One for each number of callers."""
    del sizes
    return [
        Cell(
            name=f"W1 {callers:,} caller{'s' if callers > 1 else ''}, 100 B",
            unit="appends/s",
            module=__name__,
            parameters={"callers": callers},
        )
        for callers in CALLERS
    ]


def floor_round(directory: str, callers: int, **_: object) -> Measured:
    """Write + fdatasync of the bytes of one append of every caller: no more can share a sync."""
    piece = callers * APPEND_BYTES
    rate = synced_write_rate(Path(directory), piece, _FLOOR_SYNCS * piece, 16 * MIB)
    return {"value": rate / APPEND_BYTES}


def peer_round(run: PeerRun, callers: int) -> Measured:
    """Appends a second to one log."""
    return asyncio.run(_measure(run, callers))


async def _measure(run: PeerRun, callers: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    data = bytes(APPEND_BYTES)
    sizes: PeerSizes = run.sizes
    measured = await timed_callers(
        lambda _: log.append(0, data), callers, sizes.warm_s, sizes.seconds, run.processes
    )
    await log.delete()
    await log.close()
    return measured
