"""The server killed by SIGKILL with events that only the log holds: from the start of the new
process to its first acknowledgement, its opening of the port included.

Pravega's Java client writes a million events of 100 B into one segment. The settings of both sides
hold them back from Tier 2. A client of our codec then tries to append to that segment, again and
again, until one append is acknowledged. Floor: starting an interpreter that imports nothing, and
reading as many bytes as were written. In the skeleton's column: Pravega, whose Controller stays.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB
from bench.report import CaseResult, Row, Samples, beside_extras, extras_of
from bench.wire_codec_client import connected
from bench.wire_load import java_load
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

QUESTION: Final = "from SIGKILL's restart to the first acknowledgement (skeleton: Pravega 0.13.0)"
EVENT_BYTES: Final = 100
TIMES: Final = 0.5
_STREAM: Final = "killed"
_SEGMENT: Final = f"bench/{_STREAM}/0.#epoch.0"
_HOLD: Final = 1 << 30
HELD_BACK: Final[Mapping[str, object]] = {
    "flush_bytes": _HOLD,
    "object_bytes": _HOLD,
    "upload_bytes_max": _HOLD,
    "flush_age_s": 86_400.0,
}
"""Options under which a gigabyte of one segment stays in the log. Of Pravega: wire_servers.py."""
_TRY_S: Final = 0.02
_ACK_S: Final = 120.0
_ANSWER_S: Final = 5.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """100,000 events and a minute quick; a million and three minutes else."""
    events, rounds = (100_000, 1) if quick else (1_000_000, 3)
    found, others = list[Measured](), list[Measured]()
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        tier1 = bookkeeper_url(cluster, "ours")
        ours = OurServer(folder / "ours", tier1, settings=HELD_BACK)
        with running(ours), running(PravegaServer(folder / "peer", cluster, _HOLD)) as peer:
            for server in (peer, ours):
                java_load(server, "count", stream=_STREAM, bytes=EVENT_BYTES, count=events)
            floors = [interpreter_s(folder, events * EVENT_BYTES) for _ in range(rounds)]
            # Each round replays the same events, and what rounds before it appended.
            for _ in range(rounds):
                others.append(restarted(peer))
                found.append(restarted(ours))
    row = row_of(events, floors, found, others)
    return CaseResult(case="wire_restart", question=QUESTION, rows=[row], notes=[NOTE])


def row_of(
    events: int, floors: list[Measured], found: list[Measured], others: list[Measured]
) -> Row:
    """The row of the bar; `others` may be empty."""
    ratio = None
    if others:
        pairs = zip(found, others, strict=True)
        ratio = statistics.median(one["value"] / other["value"] for one, other in pairs)
    return Row(
        name=f"{events:,} events in the log alone",
        unit="s",
        floor=Samples.of(floors),
        skeleton=Samples.of(others) if others else None,
        engine=Samples.of(found),
        ratio=ratio,
        bar=f"≤ {TIMES:g} x",
        met=None if ratio is None else ratio <= TIMES,
        extra=extras_of(found) | beside_extras(others),
    )


def interpreter_s(folder: Path, length: int) -> Measured:
    """Seconds of starting Python, and of reading a file of `length` bytes."""
    path = folder / "bytes"
    path.write_bytes(os.urandom(MIB) * (length // MIB + 1))
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    with path.open("rb") as file:
        while file.read(MIB):
            pass
    seconds = time.perf_counter() - begun
    path.unlink()
    return {"value": seconds}


def restarted(server: MeasuredServer) -> Measured:
    """`value` is from the start of the process to the first acknowledgement."""
    server.kill()
    outcome = list[float | None]()
    begun = time.monotonic()
    # Its first moments count, so the client tries from the beginning.
    client = threading.Thread(
        target=lambda: outcome.append(asyncio.run(_first_ack(server.wire_port)))
    )
    client.start()
    server.start()
    listening = time.monotonic()
    client.join()
    first = outcome[0] if outcome else None
    if first is None:
        raise BenchError(f"{server.name} acknowledged nothing in {_ACK_S:.0f} s")
    return {
        "value": first - begun,
        "listening_s": listening - begun,
        "cpu_s": server.cpu_seconds(),
    }


async def _first_ack(port: int) -> float | None:
    """The moment, of the monotonic clock; None if it does not come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ACK_S):
            return await _acknowledged(port)
    return None


async def _acknowledged(port: int) -> float:
    while True:
        try:
            async with connected(port) as client, asyncio.timeout(_ANSWER_S):
                number = await client.set_up(_SEGMENT)
                await client.append(number + 1, bytes(EVENT_BYTES))
                return time.monotonic()
        except (OSError, BenchError):
            await asyncio.sleep(_TRY_S)


if __name__ == "__main__":
    from bench.suite import main

    main("wire_restart")
