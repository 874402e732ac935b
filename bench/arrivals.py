"""What 10,000 appends a second cost that arrive in an open loop: evenly, and in bursts.

No append waits for another, as those of a server's clients. How much of a core the process takes,
how many syncs it makes, and how long an append takes from its call. The floor receives the same
arrivals and appends nothing: the engine's own share is what it takes above that.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store, sum_of
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms
from bench.skeleton import Skeleton

QUESTION = "10,000 appends/s of 100 B in an open loop: share of a core above the floor"
RATE = 10_000
APPEND_BYTES = 100
CORE_MAX = 0.15
PATTERNS = {"evenly, each 100 µs": 1, "10 each ms": 10, "100 each 10 ms": 100}
"""How they arrive, and how many come together."""
_SAMPLED = 8
_RECEIVED_MAX = 65_536
_WARM_S = 0.3

AppendOne = Callable[[], "asyncio.Future[int]"]


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 40 s quick, 2 minutes else."""
    rows = []
    for name, burst in PATTERNS.items():
        measured = rounds.interleaved(
            __name__,
            rounds.count_of(quick=quick),
            directory,
            burst=burst,
            seconds=1.5 if quick else 4.0,
        )
        floor, engine = Samples.of(measured["floor"]), Samples.of(measured["engine"])
        own = engine.median - floor.median
        rows.append(
            Row(
                name=name,
                unit="cores",
                floor=floor,
                skeleton=Samples.of(measured["skeleton"]),
                engine=engine,
                ratio=own,
                bar=f"≤ {CORE_MAX} above the floor",
                met=own <= CORE_MAX,
                extra=extras_of(measured["engine"])
                | {f"skeleton_{k}": v for k, v in extras_of(measured["skeleton"]).items()},
            )
        )
    note = "ratio: engine less floor"
    return CaseResult(case="arrivals", question=QUESTION, rows=rows, notes=(note,))


def floor_round(directory: str, burst: int, seconds: float) -> Measured:
    """Share of a core that the arrivals alone take."""
    del directory

    async def measure() -> Measured:
        loop = asyncio.get_running_loop()

        def append() -> asyncio.Future[int]:
            future = loop.create_future()
            future.set_result(0)
            return future

        return await _measure(append, burst, seconds, lambda: 0)

    return asyncio.run(measure())


def skeleton_round(directory: str, burst: int, seconds: float) -> Measured:
    """The same with the skeleton."""

    async def measure() -> Measured:
        skeleton = Skeleton(Path(directory) / "skeleton")
        data = bytes(APPEND_BYTES)
        measured = await _measure(
            lambda: skeleton.append(data), burst, seconds, lambda: skeleton.syncs
        )
        await skeleton.close()
        return measured

    return asyncio.run(measure())


def engine_round(directory: str, burst: int, seconds: float) -> Measured:
    """The same with the engine, default settings, one segment."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            data = bytes(APPEND_BYTES)
            return await _measure(
                lambda: store.append(SEGMENT, data),  # type: ignore[arg-type, return-value]
                burst,
                seconds,
                lambda: sum_of(store.stats(), "log", "syncs"),
            )

    return asyncio.run(measure())


async def _measure(
    append: AppendOne, burst: int, seconds: float, syncs: Callable[[], int]
) -> Measured:
    """Share of a core, syncs a second and latencies, of what arrives once it is warm."""
    arrivals = _Arrivals(append)
    await arrivals.receive(burst, _WARM_S)
    arrivals.latencies.clear()
    syncs_before, begun, cpu = syncs(), time.perf_counter(), time.process_time()
    await arrivals.receive(burst, seconds)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {
        "value": cpu / took,
        "syncs_per_s": (syncs() - syncs_before) / took,
        **latency_ms(sorted(arrivals.latencies)),
    }


class _Arrivals:
    """Appends as they become due."""

    def __init__(self, append: AppendOne) -> None:
        self._append = append
        self._left = 0
        self._ended = False
        self._done: asyncio.Future[None] | None = None
        self.latencies: list[float] = []

    async def receive(self, burst: int, seconds: float) -> None:
        """Append what a source says, until all of it is acknowledged."""
        loop = asyncio.get_running_loop()
        self._ended, self._done = False, loop.create_future()
        here, there = socket.socketpair()
        with here, there:
            here.settimeout(0)
            arguments = map(str, (there.fileno(), burst / RATE, burst, seconds))
            source = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.arrival_source", *arguments),
                pass_fds=(there.fileno(),),
            )
            there.close()
            loop.add_reader(here, self._received, here)
            try:
                await self._done
            finally:
                loop.remove_reader(here)
        await source.wait()

    def _received(self, channel: socket.socket) -> None:
        due = len(channel.recv(_RECEIVED_MAX))
        if not due:
            asyncio.get_running_loop().remove_reader(channel)
            self._ended = True
        self._left += due
        for number in range(due):
            called = 0.0 if number % _SAMPLED else time.perf_counter()
            self._append().add_done_callback(partial(self._settled, called))
        self._check_end()

    def _settled(self, called: float, done: asyncio.Future[int]) -> None:
        done.result()
        if called:
            self.latencies.append(time.perf_counter() - called)
        self._left -= 1
        self._check_end()

    def _check_end(self) -> None:
        if self._ended and not self._left and self._done is not None and not self._done.done():
            self._done.set_result(None)


if __name__ == "__main__":
    from bench.suite import main

    main("arrivals")
