"""W6: 256 callers who append to one log that is long already, by its bytes and by its chunks.

The bytes are written just before, in the same process. So they are where each store keeps them by
then: in a memtable, a log, a segment file, or on their way to Tier 2. Chunks are the engine's: each
flush makes one, and the other stores have nothing that is like them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.child import Measured
from bench.floor import MIB
from bench.peers import callers
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import ENGINE, MODULES, open_log
from bench.peers.timed_loads import FILL_BATCH, FILL_RECORD_BYTES, fill, timed_callers

CALLERS: Final = 256
APPEND_BYTES: Final = 100


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One behind bytes, one behind chunks."""
    batches = max(1, sizes.grown_bytes // (FILL_BATCH * FILL_RECORD_BYTES))
    return [
        Cell(
            name=f"W6 behind {sizes.grown_bytes / MIB:,.4g} MiB",
            unit="appends/s",
            module=__name__,
            parameters={"batches": batches, "flushes": 0},
            left_out=("skeleton",),
            rounds_max=sizes.rounds_dear,
        ),
        Cell(
            name=f"W6 behind {sizes.grown_chunks:,} chunks",
            unit="appends/s",
            module=__name__,
            parameters={"batches": 0, "flushes": sizes.grown_chunks},
            left_out=tuple(name for name in MODULES if name != ENGINE),
            rounds_max=sizes.rounds_dear,
        ),
    ]


def floor_round(directory: str, **_: object) -> Measured:
    """As of 256 callers of W1."""
    return callers.floor_round(directory, CALLERS)


def peer_round(run: PeerRun, batches: int, flushes: int) -> Measured:
    """Appends a second to one log behind `batches` of records, and behind `flushes` of a record
    each.
    """
    return asyncio.run(_measure(run, batches, flushes))


async def _measure(run: PeerRun, batches: int, flushes: int) -> Measured:
    log = await open_log(run.peer, run.address, run.base)
    data, sizes = bytes(APPEND_BYTES), run.sizes
    await fill(log, batches, run.in_flight_max)
    for _ in range(flushes):
        await log.append(0, data)
        await log.flush()
    measured = await timed_callers(
        lambda _: log.append(0, data), CALLERS, sizes.warm_s, sizes.seconds, run.processes
    )
    await log.delete()
    await log.close()
    return measured
