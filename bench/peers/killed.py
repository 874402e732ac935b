"""W5: SIGKILL under appends, restart, and the time to the first append that is acknowledged. Then
every record that was acknowledged before the kill is read and checked.

An embedded store is killed with its process, and the time has the start of Python. Of a server it
has its start until it answers, and a client's connection without the start of the client. Of
Pravega the store is killed, and the bookie with the log goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import child
from bench.child import Measured
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.measure import child_arguments, in_child
from bench.peers.peer import Peer, open_log
from bench.peers.usage import Meter, wait_until_quiet
from bench.workspace import BenchError

RECORD_BYTES: Final = 100
_NUMBER_BYTES: Final = 8
_WINDOW: Final = 256
_CHECK_S: Final = 0.01
_WRITE_S: Final = 20.0
_ANSWER_S: Final = 60.0


def cells(sizes: PeerSizes) -> Sequence[Cell]:
    """One."""
    return [
        Cell(
            name="W5 killed: to the first append",
            unit="s",
            module=__name__,
            lower_is_better=True,
            left_out=("skeleton",),
            rounds_max=sizes.rounds_dear,
        )
    ]


def floor_round(directory: str) -> Measured:
    """The start of a Python process that does nothing, in seconds."""
    del directory
    wait_until_quiet()
    begun = time.monotonic()
    child.call(__name__, "nothing", {})
    return {"value": time.monotonic() - begun}


def nothing() -> Measured:
    """What the process of the floor does."""
    return {}


def suite_round(peer: Peer, run: PeerRun, folder: Path, parameters: Mapping[str, Any]) -> Measured:
    """Press, kill, restart, check."""
    del parameters
    counter = folder.parent / f"{run.base}.count"
    counter.write_bytes(bytes(_NUMBER_BYTES))
    command, environment = child.command(
        *child_arguments(__name__, "write_round", run, {"counter": str(counter)})
    )
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as writer:
        try:
            _wait(writer, counter, run.sizes.killed_records)
            if not peer.embedded:
                peer.kill()
        finally:
            writer.kill()
    acknowledged = int.from_bytes(counter.read_bytes())
    counter.unlink()
    wait_until_quiet()
    begun = time.monotonic()
    restart_s = 0.0
    if not peer.embedded:
        peer.restart()
        restart_s = time.monotonic() - begun
        run = dataclasses.replace(run, processes=peer.processes())
    given = {"acknowledged": acknowledged, "begun": begun if peer.embedded else 0.0}
    measured = in_child(__name__, "check_round", run, given)
    return {**measured, "value": measured["value"] + restart_s, "acknowledged": acknowledged}


def _wait(writer: subprocess.Popen[bytes], counter: Path, wanted: int) -> None:
    """Until so many are acknowledged, or as many as there are in 20 s."""
    end = time.monotonic() + _WRITE_S
    while (count := int.from_bytes(counter.read_bytes())) < wanted:
        if writer.poll() is not None:
            raise BenchError(f"the writer has ended by itself, with {writer.returncode}")
        if time.monotonic() > end + _ANSWER_S:
            raise BenchError(f"nothing was acknowledged in {_WRITE_S + _ANSWER_S:.0f} s")
        if time.monotonic() > end and count:
            return
        time.sleep(_CHECK_S)  # a page that two processes share: nothing wakes its reader


def record(number: int) -> bytes:
    """The record of that number."""
    return number.to_bytes(_NUMBER_BYTES) + bytes(RECORD_BYTES - _NUMBER_BYTES)


def write_round(run: PeerRun, counter: str) -> Measured:
    """Append until killed; the counter has how many are acknowledged, from the first one on."""
    with Path(counter).open("r+b") as file, mmap.mmap(file.fileno(), _NUMBER_BYTES) as shared:
        asyncio.run(_write(run, shared))
    return {}


async def _write(run: PeerRun, shared: mmap.mmap) -> None:
    log = await open_log(run.peer, run.address, run.base)
    pending: deque[Awaitable[object]] = deque()
    number = 0
    while True:
        pending.append(log.append(0, record(number)))
        number += 1
        if len(pending) >= _WINDOW:
            await pending.popleft()
            shared[:] = (number - len(pending)).to_bytes(_NUMBER_BYTES)


def check_round(run: PeerRun, acknowledged: int, begun: float) -> Measured:
    """Seconds to the first append, from `begun` or from the beginning of the connection; raises
    BenchError if a record is missing.
    """
    return asyncio.run(_check(run, acknowledged, begun))


async def _check(run: PeerRun, acknowledged: int, begun: float) -> Measured:
    begun, meter = begun or time.monotonic(), Meter(run.processes)
    log = await open_log(run.peer, run.address, run.base, create=False)
    await log.append(0, record(0))
    seconds = time.monotonic() - begun
    found = bytearray()
    async for data in log.read(0):
        found += data
    foreign_cores = meter.figures(1)["foreign_cores"]
    await log.delete()
    await log.close()
    missing = missing_records(bytes(found), acknowledged)
    if missing:
        raise BenchError(f"{missing:,} of {acknowledged:,} acknowledged records are lost")
    return {"value": seconds, "foreign_cores": foreign_cores}


def missing_records(found: bytes, acknowledged: int) -> int:
    """How many of the acknowledged records are not where they were appended."""
    return sum(
        found[number * RECORD_BYTES : (number + 1) * RECORD_BYTES] != record(number)
        for number in range(acknowledged)
    )
