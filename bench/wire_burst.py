"""After idle time a burst larger than the cache, then 10,000 events/s: the longest time without an
acknowledgement.

Pravega's Java client writes events of 10 KiB as fast as they go, and then events of 100 B in an
open loop, into the same segment. Floor: the slowest write + fdatasync of 4 KiB out of 300. In the
skeleton's column: Pravega.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from bench.child import Measured
from bench.report import CaseResult, Row, Samples, beside_extras, extras_of
from bench.wire_floors import disk_floor
from bench.wire_load import java_load
from bench.wire_servers import (
    CACHE_BYTES,
    NOTE,
    MeasuredServer,
    OurServer,
    PravegaServer,
    bookkeeper_url,
    one_bookie,
    running,
)
from bench.workspace import subfolder

QUESTION: Final = "longest gap between acknowledgements around a burst (skeleton: Pravega 0.13.0)"
GAP_S: Final = 1.0
LARGE: Final = 10 * 1024
RATE: Final = 10_000


def run(directory: Path, *, quick: bool) -> CaseResult:
    """A burst of 1.2 times the cache of 1 GiB. Idle for 5 s quick, 300 s else, for each side."""
    idle, seconds, rounds = (5, 10, 1) if quick else (300, 60, 1)
    events = CACHE_BYTES * 6 // 5 // LARGE
    floors, found, others = list[Measured](), list[Measured](), list[Measured]()
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        ours = OurServer(folder / "ours", bookkeeper_url(cluster, "ours"))
        with running(ours), running(PravegaServer(folder / "peer", cluster)) as peer:
            for index in range(rounds):
                os.sync()
                floors.append(disk_floor(folder))
                others.append(burst(peer, f"burst{index}", events, idle, seconds))
                found.append(burst(ours, f"burst{index}", events, idle, seconds))
    rows = [row_of(floors, found, others)]
    return CaseResult(case="wire_burst", question=QUESTION, rows=rows, notes=[NOTE])


def burst(server: MeasuredServer, stream: str, events: int, idle: int, seconds: int) -> Measured:
    """One burst; `value` is the gap in seconds."""
    given: dict[str, Any] = {"bytes": 100, "large": LARGE, "count": events, "warm": 1, "rate": RATE}
    measured = java_load(server, "burst", stream=stream, idle=idle, seconds=seconds, **given)
    return {**measured, "value": measured["max_gap_ms"] / 1e3, "per_s": measured["value"]}


def row_of(floors: list[Measured], found: list[Measured], others: list[Measured]) -> Row:
    """The row of the bar; `others` may be empty."""
    engine = Samples.of(found)
    return Row(
        name="burst of 1.2 caches, then 10,000/s: longest gap",
        unit="s",
        floor=Samples(tuple(one["max_ms"] / 1e3 for one in floors)),
        skeleton=Samples.of(others) if others else None,
        engine=engine,
        bar=f"< {GAP_S:g} s",
        met=engine.median < GAP_S,
        extra=extras_of(found) | beside_extras(others),
    )


if __name__ == "__main__":
    from bench.suite import main

    main("wire_burst")
