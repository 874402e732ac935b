"""Ten thousand connections, each with a read that waits at the end of one segment.

Memory of the server for them; latency of Pravega's Java client at 10,000 events/s beside them and
alone, in turns; and how long one append takes to answer them all. Beside stands a plain asyncio
server that does nothing but hold as many connections and write the same answer to each: a ceiling.
On the file log.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.child import Measured
from bench.floor import MIB
from bench.report import CaseResult, Row, Samples, beside_extras, extras_of
from bench.wire_codec_client import HOST, CodecClient, connected
from bench.wire_floors import disk_floor
from bench.wire_load import java_load
from bench.wire_plain_server import PlainServer
from bench.wire_servers import MeasuredServer, OurServer, running
from bench.workspace import BenchError, subfolder
from recovery.harness.services.server import python_module
from segmentstore.wire.commands import ReadSegment, SegmentRead

QUESTION: Final = "connections whose reads wait (skeleton: a plain asyncio server)"
MEMORY_MIB: Final = 400
P99_TIMES: Final = 1.5
WAKE_S: Final = 1.0
RATE: Final = 10_000
SEGMENT: Final = "bench/waiting/0.#epoch.0"
SPARE: Final = 50
"""Connections that the bound of the server leaves to the writer."""
_CONNECTIONS: Final = 10_000
_AT_ONCE: Final = 100
_ANSWER_S: Final = 60.0
_EVENT: Final = bytes(100)
_READ_BYTES: Final = 1 << 20


def run(directory: Path, *, quick: bool) -> CaseResult:
    """1,000 connections and a minute quick; 9,950 and three minutes else."""
    connections = 1_000 if quick else _CONNECTIONS - SPARE
    seconds, rounds = (3, 2) if quick else (8, 3)
    floors, alone, beside = list[Measured](), list[Measured](), list[Measured]()
    held, plain = list[Measured](), list[Measured]()
    given: dict[str, Any] = {"bytes": 100, "warm": 2, "seconds": seconds, "rate": RATE}
    with (
        subfolder(directory, "wire") as folder,
        running(OurServer(folder / "ours", "file")) as ours,
    ):
        for index in range(rounds):
            floors.append(disk_floor(folder))
            alone.append(java_load(ours, "paced", stream=f"alone{index}", **given))
            with held_connections(ours, connections) as holder:
                beside.append(java_load(ours, "paced", stream=f"beside{index}", **given))
                held.append(holder.wake())
            plain.append(plain_round(folder / f"plain-{index}", connections))
    rows = rows_of(connections, floors, alone, beside, held, plain)
    return CaseResult(case="wire_connections", question=QUESTION, rows=rows)


def rows_of(
    connections: int,
    floors: list[Measured],
    alone: list[Measured],
    beside: list[Measured],
    held: list[Measured],
    plain: list[Measured],
) -> list[Row]:
    """A row for each bar."""
    ratio = statistics.median(
        one["p99_ms"] / other["p99_ms"] for one, other in zip(beside, alone, strict=True)
    )
    # The first round's, as a rule: later ones find what the allocator kept.
    memory = max(float(one["more_mib"]) for one in held)
    wake = Samples.of(held, "wake_s")
    return [
        Row(
            name=f"{connections:,} waiting reads, resident more",
            unit="MiB",
            skeleton=Samples.of(plain, "more_mib"),
            engine=Samples.of(held, "more_mib"),
            bar=f"≤ {MEMORY_MIB} MiB",
            met=memory <= MEMORY_MIB,
        ),
        Row(
            name=f"p99 at {RATE:,}/s beside them (alone)",
            unit="ms",
            floor=Samples.of(floors, "p99_ms"),
            skeleton=Samples.of(alone, "p99_ms"),
            engine=Samples.of(beside, "p99_ms"),
            ratio=ratio,
            bar=f"≤ {P99_TIMES:g} x",
            met=ratio <= P99_TIMES,
            extra=extras_of(beside) | {"alone_p50_ms": extras_of(alone)["p50_ms"]},
        ),
        Row(
            name="one append answers them all",
            unit="s",
            skeleton=Samples.of(plain, "wake_s"),
            engine=wake,
            bar=f"< {WAKE_S:g} s",
            met=wake.median < WAKE_S,
            extra=extras_of(held) | beside_extras(plain),
        ),
    ]


class Holder:
    """A process that holds connections to a server."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        server: MeasuredServer | PlainServer,
        more_bytes: int,
    ) -> None:
        self._process = process
        self._server = server
        self._more_bytes = more_bytes

    def wake(self) -> Measured:
        """Append one event to their segment; `wake_s` from then until all are answered, and what
        the server used meanwhile.
        """
        assert self._process.stdin is not None
        before = self._server.cpu_seconds()
        self._process.stdin.write("wake\n")
        self._process.stdin.flush()
        seconds = float(_line(self._process))
        more = self._more_bytes / MIB
        used = self._server.cpu_seconds() - before
        return {"value": more, "more_mib": more, "wake_s": seconds, "wake_cpu_s": used}


@contextmanager
def held_connections(server: MeasuredServer | PlainServer, count: int) -> Iterator[Holder]:
    """So many connections whose reads wait, from a process of their own."""
    before = server.resident_bytes()
    command = python_module("bench.wire_connections", "hold", str(server.wire_port), str(count))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if _line(process) != "held":
                raise BenchError(f"{count} connections could not be held")
            yield Holder(process, server, server.resident_bytes() - before)
        finally:
            process.kill()


def plain_round(folder: Path, connections: int) -> Measured:
    """The same with the plain server."""
    server = PlainServer(folder)
    with server, held_connections(server, connections) as holder:
        return holder.wake()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def hold(port: int, count: int) -> None:
    """Connect, ask for what is not there yet, write "held"; at a line, append, and write how long
    the answers took.
    """

    async def work() -> None:
        loop = asyncio.get_running_loop()
        clients = list[CodecClient]()
        waiting = list[asyncio.Future[SegmentRead]]()

        async def connect(offset: int) -> None:
            _, client = await loop.create_connection(CodecClient, HOST, port)
            clients.append(client)
            waiting.append(client.send(1, ReadSegment(SEGMENT, offset, _READ_BYTES, "", 1)))

        async with connected(port) as writer:
            await writer.create(SEGMENT)
            number = await writer.set_up(SEGMENT)
            for begun in range(0, count, _AT_ONCE):
                some = range(min(_AT_ONCE, count - begun))
                await asyncio.gather(*(connect(number * len(_EVENT)) for _ in some))
            # A request that was answered was begun after the read before it.
            await asyncio.gather(*(client.keep_alive() for client in clients))
            print("held", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            started = time.perf_counter()
            appended = loop.create_task(writer.append(number + 1, _EVENT))
            async with asyncio.timeout(_ANSWER_S):
                answers = await asyncio.gather(*waiting)
            seconds = time.perf_counter() - started
            await appended
            if any(bytes(answer.data) != _EVENT for answer in answers):
                raise BenchError("a read was answered by something else")
            print(seconds, flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)

    asyncio.run(work())


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        hold(int(sys.argv[2]), int(sys.argv[3]))
    else:
        from bench.suite import main

        main("wire_connections")
