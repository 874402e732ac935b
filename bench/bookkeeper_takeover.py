"""How long a container is without an owner when its owner is killed: from the new process's start
to its first append.

One process fills a container's log on BookKeeper with operations of 1 KiB that only the log holds.
As in the recovery case, it goes round robin over more segments than appends are ever
un-acknowledged, with flushes and checkpoints held back. It is killed by SIGKILL while it appends;
its Java process ends with it. A new process, in a folder of its own as on another machine, opens
the store: it fences the old owner's ledgers, finds their ends, replays everything, and appends.

The time counts from the start of the new process, its interpreter and its imports included. The
start of its Java machine is measured apart, and taken off: a process that owns other containers has
one already.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from bench import child, rounds
from bench.bookkeeper_service import NOTE, bookkeeper_service
from bench.child import Measured
from bench.engine import open_store, sum_of
from bench.floor import MIB
from bench.loads import pipelined
from bench.recovery import HELD_BACK, REPLAYED, SEGMENTS, WINDOW
from bench.report import CaseResult, Row, Samples, extras_of
from bench.workspace import BenchError, subfolder
from durablelog.bookkeeper.gateway.shared_gateway import acquire_own

QUESTION = "take-over of a container from a killed owner, to the first acknowledged append"
APPEND_BYTES: Final = 1024
SECONDS: Final = 3.0
_FILL_S: Final = 120.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """100 MiB to replay, quick or not: some 30 s a round."""
    measured: list[Measured] = []
    appends = 100 * MIB // APPEND_BYTES
    with subfolder(directory, "bookkeeper") as folder, bookkeeper_service(folder) as cluster:
        for index in range(rounds.count_of(quick=quick)):
            with subfolder(folder, f"round-{index}") as place:
                measured.append(takeover(place, cluster.url(f"/bench-{index}"), appends))
    engine = Samples.of(measured)
    row = Row(
        name=f"{appends:,} operations of 1 KiB",
        unit="s",
        engine=engine,
        bar=f"≤ {SECONDS:.0f} s, the start of Java apart",
        met=engine.median <= SECONDS,
        extra=extras_of(measured),
    )
    return CaseResult(case="bookkeeper_takeover", question=QUESTION, rows=[row], notes=[NOTE])


def takeover(place: Path, tier1: str, appends: int) -> Measured:
    """Fill, kill, take over: seconds from the new owner's start to its first append, Java apart,
    and their parts.
    """
    arguments: dict[str, Any] = {
        "tier1": tier1,
        "tier2": (place / "tier2").as_uri(),
        "appends": appends,
    }
    command = [sys.executable, "-m", "bench.child", __name__, "owner"]
    command.append(json.dumps({"directory": str(place / "first"), **arguments}))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        try:
            filled = owner.stdout.readline()
        finally:
            owner.kill()
    if not filled:
        raise BenchError(f"the first owner ended with {owner.returncode}")
    begun = time.monotonic()
    return child.call(
        __name__, "new_owner", {"directory": str(place / "second"), "begun": begun, **arguments}
    )


def owner(directory: str, tier1: str, tier2: str, appends: int) -> Measured:
    """Never returns: says when it has appended so many, and goes on."""

    async def work() -> None:
        store = await open_store(
            Path(directory), tier1=tier1, tier2=tier2, **HELD_BACK
        ).__aenter__()
        for index in range(SEGMENTS):
            await store.create_segment(_segment(index))
        data = bytes(APPEND_BYTES)

        def append(number: int) -> Awaitable[object]:
            return store.append(_segment(number % SEGMENTS), data)

        async with asyncio.timeout(_FILL_S):
            await pipelined(append, appends, WINDOW)
        os.write(1, b"filled\n")
        while True:
            await append(0)

    asyncio.run(work())
    return {}


def new_owner(directory: str, tier1: str, tier2: str, appends: int, begun: float) -> Measured:
    """`begun` is when this process was started, by the machine's monotonic clock."""

    async def work() -> Measured:
        imported = time.monotonic()
        gateway = acquire_own(imported, SystemRandom())
        started = time.monotonic()
        async with open_store(Path(directory), tier1=tier1, tier2=tier2, **HELD_BACK) as store:
            opened = time.monotonic()
            await store.append(_segment(1), bytes(APPEND_BYTES))
            acknowledged = time.monotonic()
            replayed = sum_of(store.stats(), *REPLAYED)
        gateway.release()
        if replayed < appends:
            raise BenchError(f"{replayed} of {appends} operations replayed")
        java = started - imported
        return {
            "value": acknowledged - begun - java,
            "python_s": imported - begun,
            "java_s": java,
            "open_s": opened - started,
            "append_s": acknowledged - opened,
            "with_java_s": acknowledged - begun,
            "replayed": replayed,
        }

    return asyncio.run(work())


def _segment(index: int) -> str:
    return f"bench/segment-{index:04}"


if __name__ == "__main__":
    from bench.suite import main

    main("bookkeeper_takeover")
