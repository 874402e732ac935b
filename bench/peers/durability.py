"""Counts, with strace, the syncs of a peer under appends that each wait for their acknowledgement.

Equal durability means one sync for each of them, at least: no two appends share one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from bench import child
from bench.child import Measured
from bench.peers.cell import PeerRun, PeerSizes
from bench.peers.measure import child_arguments, in_child
from bench.peers.peer import Peer, open_log
from bench.workspace import BenchError

APPENDS: Final = 40
_SYNCS: Final = "fsync,fdatasync,msync,io_submit"
_LINE: Final = re.compile(r"\b(?:fsync|fdatasync|msync)\(|\bIOCB_CMD_FD?SYNC\b")
_REFUSED: Final = re.compile(r"\bio_submit\(.* = -1 E")
_ATTACHED: Final = "attached"


def syncs_of_appends(peer: Peer, folder: Path, sizes: PeerSizes) -> int:
    """Syncs of a peer that runs, while 40 appends are made, one after the other.

    Raises BenchError without strace, and if it may not trace.
    """
    if shutil.which("strace") is None:
        raise BenchError("strace is needed and was not found; install it (Debian: strace)")
    run = PeerRun(
        peer=peer.name,
        address=peer.address(folder),
        base="durable",
        processes=peer.processes(),
        in_flight_max=peer.in_flight_max,
        sizes=sizes,
    )
    if not peer.embedded:
        in_child(__name__, "append_round", run, {"appends": 1, "create": True})
        return _traced_server(run)
    # What opening and closing sync is taken off.
    without = _traced_process(run, folder / "without", 0)
    return _traced_process(run, folder / "with", APPENDS) - without


def append_round(run: PeerRun, appends: int, *, create: bool) -> Measured:
    """So many appends, one after the other."""

    async def work() -> None:
        log = await open_log(run.peer, run.address, run.base, create=create)
        for number in range(appends):
            await log.append(0, b"%0100d" % number)
        await log.close()

    asyncio.run(work())
    return {}


def _traced_process(run: PeerRun, folder: Path, appends: int) -> int:
    folder.mkdir()
    run = dataclasses.replace(run, address=str(folder))
    given = {"appends": appends, "create": True}
    program, environment = child.command(*child_arguments(__name__, "append_round", run, given))
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace"
        command = ["strace", "-f", "-qq", "-e", f"trace={_SYNCS}", "-o", str(trace), *program]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise BenchError(f"{run.peer} failed under strace:\n{ended.stderr[-2000:]}")
        return _count(trace)


def _traced_server(run: PeerRun) -> int:
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace"
        attached = [part for process in run.processes for part in ("-p", str(process))]
        command = ["strace", "-f", "-e", f"trace={_SYNCS}", "-o", str(trace), *attached]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
            try:
                _wait_until_attached(tracer, len(run.processes))
                given = {"appends": APPENDS, "create": False}
                in_child(__name__, "append_round", run, given)
            finally:
                tracer.send_signal(signal.SIGINT)
                tracer.communicate()
        return _count(trace)


def _wait_until_attached(tracer: subprocess.Popen[bytes], processes: int) -> None:
    assert tracer.stderr is not None
    seen = 0
    while seen < processes:
        line = os.fsdecode(tracer.stderr.readline())
        if not line:
            raise BenchError("strace has ended: it may not trace here")
        seen += _ATTACHED in line


def _count(trace: Path) -> int:
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(map(syncs_in, lines))


def syncs_in(line: str) -> int:
    """How many syncs a line of strace begins: one `io_submit` may have several.

    What that refused is synced in another way, with a line of its own.
    """
    return 0 if _REFUSED.search(line) else len(_LINE.findall(line))
