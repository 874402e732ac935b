"""W6: 256 callers whose appends go round robin over more and more logs. The cells of one log that
is long are in `bench.peers.long_logs`.

A log is a segment of the engine and of Pravega, and a prefix of keys in SQLite, LMDB and RocksDB.
It is a stream of Redis, a subject of NATS, a partition of Kafka. Kafka has no more than 1,000 on
one broker here, and Pravega as many, whose creation takes milliseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Final

from bench.child import Measured
from bench.peers import callers, long_logs
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import open_log
from bench.peers.timed_loads import timed_callers

CALLERS: Final = 256
APPEND_BYTES: Final = 100
_AT_ONCE: Final = 256


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One for each number of logs, and those of a long log."""
    by_number = [
        Cell(
            name=f"W6 {segments:,} log{'s' if segments > 1 else ''}",
            unit="appends/s",
            module=__name__,
            parameters={"segments": segments},
            segments=segments,
            left_out=("skeleton",),
            rounds_max=sizes.rounds_dear,
        )
        for segments in sizes.segments
    ]
    return [*by_number, *long_logs.cells(sizes)]


def floor_round(directory: str, **_: object) -> Measured:
    """As of 256 callers of W1."""
    return callers.floor_round(directory, CALLERS)


def peer_round(run: PeerRun, segments: int) -> Measured:
    """Appends a second; `create_s` is how long the creation of the logs took."""
    return asyncio.run(_measure(run, segments))


async def _measure(run: PeerRun, segments: int) -> Measured:
    begun = time.perf_counter()
    log = await open_log(run.peer, run.address, run.base, segments=segments)
    create_s = time.perf_counter() - begun
    data = bytes(APPEND_BYTES)
    # What the first append to a log costs is not measured.
    for start in range(0, segments, _AT_ONCE):
        first = range(start, min(start + _AT_ONCE, segments))
        await asyncio.gather(*(log.append(segment, data) for segment in first))
    following = itertools.cycle(range(segments))
    sizes = run.sizes
    measured = await timed_callers(
        lambda _: log.append(next(following), data),
        CALLERS,
        sizes.warm_s,
        sizes.seconds,
        run.processes,
    )
    await log.delete()
    await log.close()
    return {**measured, "create_s": create_s}
