"""Cold catch-up by Pravega's Java reader: events of 1 KiB that are in Tier 2, after a restart.

Both servers are restarted before each round, and the kernel forgets the pages of their Tier 2.
The time is of the reader alone: its group is there. Floor: preads of our objects in 1 MiB. In the
skeleton's column: Pravega.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB, evict, files_under, read_rate
from bench.report import CaseResult, Row
from bench.wire_clients import KIB, ClientLoad, Sizes, byte_rate, rows_of, sizes_of
from bench.wire_codec_client import wait_until_all_serve
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
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster

QUESTION: Final = "cold catch-up by Pravega's Java reader (skeleton: Pravega 0.13.0)"
_FLUSHED_S: Final = 180.0
_STREAM: Final = "cold"
READ: Final = ClientLoad("java", "read", KIB, byte_rate("Java, cold catch-up, 1 KiB", KIB, 1.0))


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 4 minutes; 200 MB quick, 1 GB else."""
    sizes = sizes_of(quick=quick)
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        ours = OurServer(folder / "ours", bookkeeper_url(cluster, "ours"))
        with running(ours), running(PravegaServer(folder / "peer", cluster)) as peer:
            rows = compare_cold(cluster, ours, peer, sizes)
    return CaseResult(case="wire_catch_up", question=QUESTION, rows=rows, notes=[NOTE])


def compare_cold(
    cluster: BookKeeperCluster, ours: MeasuredServer, peer: MeasuredServer, sizes: Sizes
) -> Sequence[Row]:
    """The row, the sides taking turns."""
    floors, found, others = list[Measured](), list[Measured](), list[Measured]()
    for server in (peer, ours):
        write_to_tier2(server, sizes.read_events)
    for _ in range(sizes.rounds):
        for server, measured in ((peer, others), (ours, found)):
            restart_cold(server)
            if server is ours:
                files = files_under(server.tier2)
                count, seconds = read_rate(files, MIB)
                floors.append({"bytes_per_s": count / seconds})
                evict(files)
            measured.append(READ.run(server, cluster, _STREAM, sizes))
    return rows_of(READ, floors, found, others)


def write_to_tier2(server: MeasuredServer, events: int) -> None:
    """So many events, and wait until Tier 2 has them. Raises BenchError."""
    wanted = stored_bytes(server) + events * KIB
    java_load(server, "count", stream=_STREAM, bytes=KIB, count=events)
    end = time.monotonic() + _FLUSHED_S
    while stored_bytes(server) < wanted:
        if time.monotonic() > end:
            raise BenchError(f"{server.name} did not flush within {_FLUSHED_S:.0f} s")
        # Pravega announces no flush: its files are all that can be seen from here.
        time.sleep(0.5)


def restart_cold(server: MeasuredServer) -> None:
    """Memory and pages have none of Tier 2 when it serves again."""
    server.restart()
    asyncio.run(wait_until_all_serve(server.wire_port))
    os.sync()
    evict(files_under(server.tier2))


def stored_bytes(server: MeasuredServer) -> int:
    """Of the files in its Tier 2."""
    return sum(path.stat().st_size for path in files_under(server.tier2))


if __name__ == "__main__":
    from bench.suite import main

    main("wire_catch_up")
