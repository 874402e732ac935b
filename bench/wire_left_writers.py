"""Writers that come once, one at a time, to one segment: each leaves its number there for ever.

Over the wire, on the file log. A writer sets up, appends one event of 100 B, and never comes again.
Time is taken of the first tenth of them and of the last. Then come a checkpoint, beside which
KeepAlives go on, and two openings: after a close, and after a SIGKILL. Both end with a set-up of a
writer of before, which is given its number. The floor of a writer is two KeepAlives.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Final

import segmentstore
from bench import child
from bench.child import Measured
from bench.floor import MIB
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples
from bench.wire_codec_client import connected
from bench.wire_servers import MeasuredServer, OurServer, running
from bench.workspace import BenchError, subfolder

QUESTION: Final = "writers that come once, one at a time, and leave their number on a segment"
MEMORY_MIB: Final = 100
SLOWER: Final = 1.5
PAUSE_S: Final = 0.1
REOPENED_S: Final = 5.0
SEGMENT: Final = "bench/left/0.#epoch.0"
SETTINGS: Final = {"attributes_per_segment_max": 2_000_000}
_EVENT: Final = bytes(100)
_OF_ONE_CONNECTION: Final = 1_000
_SLICES: Final = 10
_QUIET_S: Final = 2.0
"""Before memory is read: what was appended is flushed meanwhile."""
_PAUSE: Final = 0.001


def run(directory: Path, *, quick: bool) -> CaseResult:
    """20 k writers and a minute quick; 200 k and ten minutes else, on a busy machine thirty."""
    writers = 20_000 if quick else 200_000
    with subfolder(directory, "wire") as folder:
        server = OurServer(folder / "ours", "file", settings=SETTINGS)
        measured = left_writers(server, writers)
    return CaseResult(case="wire_left_writers", question=QUESTION, rows=rows_of(measured, writers))


def rows_of(measured: Measured, writers: int) -> list[Row]:
    """A row for each bar."""

    def row(name: str, unit: str, key: str, limit: float, floor: str = "") -> Row:
        value = measured[key]
        return Row(
            name=name,
            unit=unit,
            floor=Samples.of([measured], floor) if floor else None,
            engine=Samples.of([measured], key),
            bar=f"≤ {limit:g} {unit}",
            met=value <= limit,
            extra={
                other: measured[other]
                for other in measured
                if other.partition("_")[0] == key.partition("_")[0] and other not in (key, floor)
            },
        )

    return [
        row(f"{writers:,} writers, resident more", "MiB", "memory_more", MEMORY_MIB),
        row("the last tenth, time by that of the first", "x", "writer_slower", SLOWER),
        row("longest pause in a checkpoint", "s", "checkpoint_pause_s", PAUSE_S),
        row("opened after a close", "s", "closed_s", REOPENED_S),
        row("opened after a SIGKILL", "s", "killed_s", REOPENED_S),
    ]


def left_writers(server: OurServer, writers: int) -> Measured:
    """Let all come, take a checkpoint, open again."""
    with running(server):
        _call(server, "come", first=0, count=1)
        time.sleep(_QUIET_S)
        before = server.resident_bytes()
        slices = [_slice(server, 1 + each * writers // _SLICES, writers) for each in range(_SLICES)]
        time.sleep(_QUIET_S)
        after = server.resident_bytes()
        checkpoint = _call(server, "checkpoint", folder=str(server.store))
        first, last = slices[0], slices[-1]
        found: Measured = {
            "memory_more": (after - before) / MIB,
            "memory_before": before / MIB,
            "memory_after_checkpoint": server.resident_bytes() / MIB,
            "writer_slower": last["ms"] / first["ms"],
            **{f"writer_first_{name}": value for name, value in first.items()},
            **{f"writer_last_{name}": value for name, value in last.items()},
            **checkpoint,
        }
        for name, kill in (("closed", False), ("killed", True)):
            begun = time.perf_counter()
            server.restart(kill=kill)
            _call(server, "come_again", number=writers // 2)
            # The child's start is in it: 0.3 s.
            found[f"{name}_s"] = time.perf_counter() - begun
            found[f"{name}_mib"] = server.resident_bytes() / MIB
        return found


def _slice(server: OurServer, first: int, writers: int) -> Measured:
    used = server.cpu_seconds()
    count = max(1, writers // _SLICES)
    measured = _call(server, "come", first=first, count=count)
    return {**measured, "cpu_us": (server.cpu_seconds() - used) * 1e6 / count}


def come(port: int, first: int, count: int) -> Measured:
    """Writers with these numbers, one behind the other: milliseconds of each, and of two round
    trips.
    """

    async def main() -> Measured:
        taken, set_ups, floor = list[float](), list[float](), list[float]()
        for begin in range(first, first + count, _OF_ONE_CONNECTION):
            async with connected(port) as client:
                await client.create(SEGMENT)
                for number in range(begin, min(begin + _OF_ONE_CONNECTION, first + count)):
                    begun = time.perf_counter()
                    if await client.set_up(SEGMENT, _id(number)):
                        raise BenchError(f"writer {number} was there before")
                    set_ups.append(time.perf_counter() - begun)
                    await client.append(1, _EVENT, _id(number))
                    taken.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                await client.keep_alive()
                await client.keep_alive()
                floor.append(time.perf_counter() - begun)
        for each in (taken, set_ups, floor):
            each.sort()
        return {
            "ms": sum(taken) / len(taken) * 1e3,
            "p50_ms": percentile(taken, 0.5) * 1e3,
            "p99_ms": percentile(taken, 0.99) * 1e3,
            "set_up_p50_ms": percentile(set_ups, 0.5) * 1e3,
            "floor_p50_ms": percentile(floor, 0.5) * 1e3,
        }

    return asyncio.run(main())


def checkpoint(port: int, folder: str) -> Measured:
    """Seconds of a checkpoint, and the longest time without an answer to a KeepAlive meanwhile."""

    async def main() -> Measured:
        longest = 0.0
        async with connected(port) as client, segmentstore.connect(folder) as store:
            await client.keep_alive()
            begun = time.perf_counter()
            taking = asyncio.ensure_future(store.checkpoint())
            while not taking.done():
                asked = time.perf_counter()
                await client.keep_alive()
                longest = max(longest, time.perf_counter() - asked)
                await asyncio.sleep(_PAUSE)
            await taking
            return {
                "checkpoint_s": time.perf_counter() - begun,
                "checkpoint_pause_s": longest,
            }

    return asyncio.run(main())


def come_again(port: int, number: int) -> Measured:
    """A writer of before is given its number."""

    async def main() -> Measured:
        async with connected(port) as client:
            begun = time.perf_counter()
            if await client.set_up(SEGMENT, _id(number)) != 1:
                raise BenchError(f"the number of writer {number} is lost")
            return {"value": time.perf_counter() - begun}

    return asyncio.run(main())


def _call(server: MeasuredServer, function: str, **given: object) -> Measured:
    return child.call(__name__, function, {"port": server.wire_port, **given})


def _id(number: int) -> bytes:
    """As of a client, which draws one."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


if __name__ == "__main__":
    from bench.suite import main

    main("wire_left_writers")
