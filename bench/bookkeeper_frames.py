"""Frames through the log on BookKeeper, against BookKeeper's own client by itself.

Three sides take turns in one process and on one cluster, shape by shape. Raw write + fdatasync of
one entry at a time is the floor. The table's skeleton is the native client in the gateway's own
Java process (entries of the same size, as many in flight, copied nowhere). The engine's column is
the log: header and checksum, the way to the gateway and back, a future for each frame. A fourth,
the way to the gateway without the log, is in the extras (`path_`). The order changes from round to
round, and ratios are of adjacent runs: the bar speaks of their median. The Java machine and the
bookies are warmed up before anything counts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import child, rounds
from bench.bookkeeper_service import NOTE, LogMaker, bookkeeper_service, log_maker
from bench.child import Measured
from bench.floor import MIB, preallocated, synced_writes
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples, extras_of
from bench.workspace import require_free_bytes, subfolder
from durablelog.bookkeeper.bookkeeper_log import PAYLOAD_BYTES_MAX
from durablelog.bookkeeper.ledger_store import OK, AddResult, Replication
from durablelog.data_frame import FRAME_HEADER_LENGTH

QUESTION = "frames on BookKeeper, against its own client"
KIB: Final = 1024
CPU_US_SMALL: Final = 5.0
CPU_US_LARGE: Final = 300.0
ADDED_MS: Final = 0.3
_FLOOR_SHARE: Final = 0.2
_FLOOR_BYTES: Final = 64 * MIB
_SAMPLED: Final = 16
"""Of so many frames one has its time taken, where many are in flight."""


class Shape(NamedTuple):
    """Entries of one size, header included, and how many are in flight."""

    name: str
    entry_bytes: int
    window: int
    share: float
    """The bar: of the native client's rate; 0 for none."""


SHAPES: Final = (
    Shape("1 KiB x 256", KIB, 256, 0.95),
    Shape("1 KiB x 16", KIB, 16, 0.95),
    Shape("1 KiB x 1", KIB, 1, 0.0),
    Shape("64 KiB x 16", 64 * KIB, 16, 0.95),
    Shape("64 KiB x 256", 64 * KIB, 256, 0.95),
    Shape("1 MiB x 8", PAYLOAD_BYTES_MAX + FRAME_HEADER_LENGTH, 8, 0.9),
)


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 60 s quick, 200 s else; 15 GiB of disk for a while."""
    require_free_bytes(directory, 20 << 30)
    count = rounds.count_of(quick=quick)
    seconds = 1.0 if quick else 2.5
    measured: dict[str, Measured] = {}
    with subfolder(directory, "bookkeeper") as folder, bookkeeper_service(folder) as cluster:
        arguments = {
            "directory": str(folder),
            "url": cluster.url(),
            "seconds": seconds,
            "count": count,
        }
        measured = child.call(__name__, "turns_round", arguments)
    rows = [row for shape in SHAPES for row in rows_of(shape, measured[shape.name])]
    notes = [
        NOTE,
        "skeleton: the native Java client in the process of our gateway; ratio: median of rounds",
    ]
    return CaseResult(case="bookkeeper_frames", question=QUESTION, rows=rows, notes=notes)


def rows_of(shape: Shape, sides: dict[str, list[Measured]]) -> Iterator[Row]:
    """What the bars say of one shape."""
    native, log, path = sides["native"], sides["log"], sides["path"]
    ratios = ratios_of(log, native)
    ratio = statistics.median(ratios)
    extra = {
        **{f"round_{index}": one for index, one in enumerate(ratios)},
        "path_ratio": statistics.median(ratios_of(path, native)),
        **{f"native_{key}": value for key, value in extras_of(native).items()},
        **extras_of(log),
        **{f"path_{key}": value for key, value in extras_of(path).items()},
    }
    yield Row(
        name=shape.name,
        unit="MB/s",
        floor=Samples.of(sides["floor"]),
        skeleton=Samples.of(native),
        engine=Samples.of(log),
        ratio=ratio,
        bar=f"≥ {shape.share * 100:.0f} % of native" if shape.share else "",
        met=ratio >= shape.share if shape.share else None,
        extra=extra,
    )
    if shape.window == 1:
        added = statistics.median(
            ours["p50_ms"] - theirs["p50_ms"] for ours, theirs in zip(log, native, strict=True)
        )
        yield Row(
            name=f"{shape.name}, p50",
            unit="ms",
            floor=Samples.of(sides["floor"], "p50_ms"),
            skeleton=Samples.of(native, "p50_ms"),
            engine=Samples.of(log, "p50_ms"),
            bar=f"≤ native + {ADDED_MS} ms",
            met=added <= ADDED_MS,
            extra={"added_ms": added},
        )
    allowed = {"1 KiB x 256": CPU_US_SMALL}.get(
        shape.name, CPU_US_LARGE if shape.entry_bytes > 512 * KIB else None
    )
    if allowed is not None:
        cpu = Samples.of(log, "python_us")
        yield Row(
            name=f"{shape.name}, Python's CPU",
            unit="us/frame",
            engine=cpu,
            bar=f"≤ {allowed:.0f} us",
            met=cpu.median <= allowed,
        )


def ratios_of(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[float]:
    """Rate by rate of the same round."""
    return [one["value"] / other["value"] for one, other in zip(ours, theirs, strict=True)]


def turns_round(
    directory: str, url: str, seconds: float, count: int, shapes: Sequence[Sequence[Any]] = SHAPES
) -> Measured:
    """By shape and side what each round gave: MB/s, latencies, CPU."""

    async def measure() -> Measured:
        async with log_maker(url) as maker:
            turns = _Turns(maker, Path(directory))
            await turns.round(Shape("warm-up", KIB, 256, 0.0), 2 * seconds, 0)
            measured: Measured = {}
            for shape in (Shape(*given) for given in shapes):
                # A shape's first frames pay for buffers of their size on all sides.
                await turns.round(shape, seconds / 2, 0)
                found = [await turns.round(shape, seconds, index) for index in range(count)]
                measured[shape.name] = {side: [one[side] for one in found] for side in found[0]}
            return measured

    return asyncio.run(measure())


class _Turns:
    def __init__(self, maker: LogMaker, folder: Path) -> None:
        self._maker = maker
        self._folder = folder

    async def round(self, shape: Shape, seconds: float, index: int) -> dict[str, Measured]:
        """All sides once, beginning with another one each time."""
        sides = {"native": self._native, "log": self._log, "path": self._path}
        names = list(sides)[index % 3 :] + list(sides)[: index % 3]
        os.sync()
        measured = {"floor": self._floor(shape, seconds)}
        for name in names:
            measured[name] = await sides[name](shape, seconds)
        return measured

    def _floor(self, shape: Shape, seconds: float) -> Measured:
        path = self._folder / "floor"
        file = preallocated(path, _FLOOR_BYTES)
        taken: list[float] = []
        while sum(taken) < seconds * _FLOOR_SHARE:
            taken += synced_writes(file, _FLOOR_BYTES, shape.entry_bytes, 8)
        file.close()
        path.unlink()
        return {"value": len(taken) * shape.entry_bytes / sum(taken) / 1e6, **_latencies(taken)}

    async def _native(self, shape: Shape, seconds: float) -> Measured:
        got = await self._maker.ledgers.native_bench(
            Replication(), shape.entry_bytes, shape.window, seconds
        )
        return {
            "value": got["mb_per_s"],
            "per_s": got["entries_per_s"],
            "p50_ms": got["p50_ms"],
            "p99_ms": got["p99_ms"],
            "java_us": got["cpu_us_per_entry"],
        }

    async def _log(self, shape: Shape, seconds: float) -> Measured:
        payload = [os.urandom(shape.entry_bytes - FRAME_HEADER_LENGTH)]
        async with self._maker.log() as log:
            await log.append(payload)
            return await self._counted(
                shape, lambda: pipelined_for(lambda: log.append(payload), seconds, shape.window)
            )

    async def _path(self, shape: Shape, seconds: float) -> Measured:
        """The way to the gateway, used as the log uses it."""
        writer = await self._maker.ledgers.create(Replication(), {})
        parts = [
            os.urandom(FRAME_HEADER_LENGTH),
            os.urandom(shape.entry_bytes - FRAME_HEADER_LENGTH),
        ]
        sent: deque[float] = deque()
        latencies: list[float] = []
        done = asyncio.get_running_loop().create_future()
        entries = 0

        def on_results(results: Sequence[AddResult]) -> None:
            nonlocal entries
            now = time.perf_counter()
            answered = 0
            for code, _, count in results:
                assert code == OK, code
                answered += count
            entries += answered
            latencies.extend(now - sent.popleft() for _ in range(answered))
            if now < until:
                for _ in range(answered):
                    sent.append(now)
                    writer.append(parts)
            elif not sent:
                done.set_result(None)

        async def press() -> tuple[int, list[float]]:
            for _ in range(shape.window):
                sent.append(time.perf_counter())
                writer.append(parts)
            await done
            return entries, latencies

        writer.on_results = on_results
        until = time.perf_counter() + seconds
        measured = await self._counted(shape, press)
        await writer.close()
        await self._maker.ledgers.delete(writer.ledger_id)
        return measured

    async def _counted(
        self, shape: Shape, press: Callable[[], Awaitable[tuple[int, list[float]]]]
    ) -> Measured:
        java, _, _ = await self._maker.ledgers.gateway_usage()
        begun, cpu = time.perf_counter(), time.process_time()
        frames, latencies = await press()
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        java_after, _, _ = await self._maker.ledgers.gateway_usage()
        return {
            "value": frames * shape.entry_bytes / took / 1e6,
            "per_s": frames / took,
            **_latencies(latencies),
            "java_us": (java_after - java) / frames,
            "python_us": cpu * 1e6 / frames,
        }


async def pipelined_for(
    append: Callable[[], Awaitable[object]], seconds: float, window: int
) -> tuple[int, list[float]]:
    """One producer with `window` appends un-acknowledged, for so long: how many, and seconds of
    those it checked.
    """
    latencies: list[float] = []
    mask = _SAMPLED - 1 if window >= _SAMPLED else 0
    pending: deque[Awaitable[object]] = deque()
    sampled: deque[tuple[int, float]] = deque()
    until = time.perf_counter() + seconds
    number = acknowledged = 0
    while True:
        if not number & mask:
            now = time.perf_counter()
            if now >= until:
                break
            sampled.append((number, now))
        pending.append(append())
        number += 1
        if len(pending) >= window:
            await pending.popleft()
            if sampled[0][0] == acknowledged:
                latencies.append(time.perf_counter() - sampled.popleft()[1])
            acknowledged += 1
    for rest in pending:
        await rest
    return number, latencies


def _latencies(seconds: list[float]) -> Measured:
    ordered = sorted(seconds)
    return {"p50_ms": percentile(ordered, 0.5) * 1e3, "p99_ms": percentile(ordered, 0.99) * 1e3}


if __name__ == "__main__":
    from bench.suite import main

    main("bookkeeper_frames")
