"""A log written beside a bookie that hangs: the longest pause of the acknowledgements, and the
memory of the gateway.

    python -m bench.hanging_bookie [GIB] [BOOKIES]

Frames of 1 MiB, eight in flight, 1/8 of them before the bookie is stopped (SIGSTOP). It is started
again at the end, and must take part again. Ends with 1 if a bar is missed: PAUSE_S, and the
gateway's direct memory at MEMORY_BYTES.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.bookkeeper_service import log_maker
from durablelog.bookkeeper.bookkeeper_log import PAYLOAD_BYTES_MAX, BookKeeperLog
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.durable_data_log import LogAddress
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster

PAUSE_S: Final = 5.0
MEMORY_BYTES: Final = 600 << 20
"""Of 768 MiB that a gateway has."""
IN_FLIGHT: Final = 8


class Seen(NamedTuple):
    """What one run showed."""

    seconds: float
    pause_s: float
    memory_bytes: int
    owed_bytes: int
    health: tuple[str, ...]
    ledgers: int


async def measured(cluster: BookKeeperCluster, frames: int) -> Seen:
    """Write so many frames with one bookie of the ledger hanging."""
    async with log_maker(cluster.url("/hanging")) as maker, maker.log() as log:
        await _written(log, maker.ledgers, frames // 8)
        (item,) = log._keeper.record.ledgers  # noqa: SLF001 - a measurement
        bookies = (await maker.ledgers.describe(item.ledger_id)).bookies
        hung = next(
            index for index in range(cluster.bookies) if cluster.bookie_id(index) in bookies
        )
        cluster.pause_bookie(hung)
        try:
            seen = await _written(log, maker.ledgers, frames - frames // 8)
        finally:
            cluster.resume_bookie(hung)
        return seen


async def _written(log: BookKeeperLog, ledgers: GatewayLedgerStore, frames: int) -> Seen:
    payload = bytes(PAYLOAD_BYTES_MAX)
    begun = last = time.monotonic()
    pause = 0.0
    memory = owed = 0
    said: dict[str, None] = {}
    waiting: list[asyncio.Future[LogAddress]] = []
    for number in range(frames + IN_FLIGHT):
        if waiting and (len(waiting) == IN_FLIGHT or number >= frames):
            await waiting.pop(0)
            now = time.monotonic()
            pause, last = max(pause, now - last), now
        if number < frames:
            waiting.append(log.append([payload]))
        if number % 16 == 0:
            figures = log.statistics()
            _, direct, _ = await ledgers.gateway_usage()
            memory = max(memory, direct)
            owed = max(owed, figures.bookie_owed_bytes_max)
            said[log.health() or "all is well"] = None
    count = len(log._keeper.record.ledgers)  # noqa: SLF001
    return Seen(time.monotonic() - begun, pause, memory, owed, tuple(said), count)


def main(arguments: list[str]) -> int:
    """The exit code."""
    gib = float(arguments[0]) if arguments else 2.0
    wanted = [int(argument) for argument in arguments[1:2]] or [3, 4]
    missed = False
    for bookies in wanted:
        with (
            tempfile.TemporaryDirectory(prefix="hanging-bookie-") as folder,
            BookKeeperCluster(Path(folder) / "cluster", bookies, full_speed=True) as cluster,
        ):
            seen = asyncio.run(measured(cluster, int(gib * 1024)))
        missed = missed or seen.pause_s > PAUSE_S or seen.memory_bytes > MEMORY_BYTES
        sys.stdout.write(
            f"{bookies} bookies, {gib} GiB, one hangs: {seen.seconds:.0f} s, longest "
            f"pause {seen.pause_s:.2f} s,"
            f" gateway {seen.memory_bytes >> 20} MiB, owed {seen.owed_bytes >> 20} MiB, "
            f"{seen.ledgers} ledgers\n"
        )
        for line in seen.health:
            sys.stdout.write(f"  {line}\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
