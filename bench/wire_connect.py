"""`segmentstore.connect` through the Unix socket of a store that `serve` has open, beside the same
calls on an embedded store.

Four figures of each: appends of 100 B by one producer, records of atomic batches, a follower of
1,000 appends/s, and a listing of 10,000 segments. The follower's is the delay from when an append
was due until its bytes are there. Sides take turns, each round in processes and a folder of its
own. The client, the server and the disk share the machine's cores. Floor of the appends: write +
fdatasync of one full window of records.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol, cast

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, Store, open_store
from bench.floor import synced_write_rate
from bench.loads import concurrent_callers, pipelined
from bench.report import CaseResult, Row, Samples
from bench.tail_reader import follow_at_rate
from bench.workspace import BenchError
from recovery.harness.services.server import python_module

QUESTION: Final = "connect through the Unix socket, beside an embedded store"
APPENDED_PER_S: Final = 100_000
BATCHED_SHARE: Final = 0.6
FOLLOWED_MS: Final = 0.5
LISTED_S: Final = 0.4
SEGMENTS: Final = 10_000
_WINDOW: Final = 8_192
_APPEND_BYTES: Final = 100
_RECORDS: Final = 100
_CALLERS: Final = 64
_PER_S: Final = 1_000
_HEADER_BYTES: Final = 4
_CREATED_AT_ONCE: Final = 1_000


class _Listing(Protocol):
    """What the stores have besides `Store`."""

    def list_segments(self, prefix: str = "") -> AsyncIterator[object]:
        """Segments by name."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About a minute quick, 4 minutes else."""
    measured = rounds.interleaved(
        __name__,
        rounds.count_of(quick=quick),
        directory,
        sides=("floor", "embedded", "connected"),
        appends=100_000 if quick else 500_000,
        followed=2_000 if quick else 10_000,
        segments=SEGMENTS,
    )
    return CaseResult(case="wire_connect", question=QUESTION, rows=rows_of(measured))


def rows_of(measured: dict[str, list[Measured]]) -> list[Row]:
    """A row for each bar; the skeleton's column has the embedded store."""

    def samples(key: str) -> tuple[Samples, Samples]:
        return Samples.of(measured["embedded"], key), Samples.of(measured["connected"], key)

    rows = []
    embedded, connected = samples("appended_per_s")
    rows.append(
        Row(
            name=f"{_APPEND_BYTES} B, {_WINDOW:,} in flight",
            unit="appends/s",
            floor=Samples.of(measured["floor"]),
            skeleton=embedded,
            engine=connected,
            ratio=connected.median / embedded.median,
            bar=f"≥ {APPENDED_PER_S:,}",
            met=connected.median >= APPENDED_PER_S,
        )
    )
    embedded, connected = samples("batched_per_s")
    share = connected.median / embedded.median
    rows.append(
        Row(
            name=f"batches of {_RECORDS} x {_APPEND_BYTES} B, {_CALLERS} callers",
            unit="records/s",
            skeleton=embedded,
            engine=connected,
            ratio=share,
            bar=f"≥ {BATCHED_SHARE:.0%} of embedded",
            met=share >= BATCHED_SHARE,
        )
    )
    embedded, connected = samples("followed_p99_ms")
    more = connected.median - embedded.median
    rows.append(
        Row(
            name=f"follower at {_PER_S:,}/s, end to end p99",
            unit="ms",
            skeleton=embedded,
            engine=connected,
            bar=f"≤ embedded + {FOLLOWED_MS} ms",
            met=more <= FOLLOWED_MS,
            extra={
                "p50_ms": samples("followed_p50_ms")[1].median,
                "embedded_p50_ms": samples("followed_p50_ms")[0].median,
            },
        )
    )
    embedded, connected = samples("listed_s")
    rows.append(
        Row(
            name=f"ls of {SEGMENTS:,} segments",
            unit="s",
            skeleton=embedded,
            engine=connected,
            bar=f"≤ {LISTED_S} s",
            met=connected.median <= LISTED_S,
        )
    )
    return rows


def floor_round(directory: str, appends: int, followed: int, segments: int) -> Measured:
    """Appends per second the disk alone would take."""
    del followed, segments
    piece = _WINDOW * (_APPEND_BYTES + _HEADER_BYTES)
    rate = synced_write_rate(Path(directory), piece, min(appends // _WINDOW + 1, 50) * piece)
    return {"value": rate / (_APPEND_BYTES + _HEADER_BYTES)}


def embedded_round(directory: str, appends: int, followed: int, segments: int) -> Measured:
    """All figures of `segmentstore.open`."""
    location = Path(directory) / "store"
    return _measured(lambda: open_store(location, local_server=False), appends, followed, segments)


def connected_round(directory: str, appends: int, followed: int, segments: int) -> Measured:
    """All figures of `segmentstore.connect`, by another process than the store's."""
    location = Path(directory) / "store"
    with _served(location):
        return _measured(lambda: _connect(location), appends, followed, segments)


def _connect(location: Path) -> AbstractAsyncContextManager[Store]:
    # Not at the top: the floor's process needs nothing of the engine.
    import segmentstore  # noqa: PLC0415

    return cast("AbstractAsyncContextManager[Store]", segmentstore.connect(str(location)))


@contextmanager
def _served(location: Path) -> Iterator[None]:
    """`segmentstore serve` of a new store."""
    command = python_module("segmentstore", "serve", str(location), "--create")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith(b"serving"):
                message = f"segmentstore serve ended with {server.wait()}"
                raise BenchError(message)
            yield
        finally:
            server.terminate()


def _measured(
    opened: Callable[[], AbstractAsyncContextManager[Store]],
    appends: int,
    followed: int,
    segments: int,
) -> Measured:
    async def measure() -> Measured:
        async with opened() as store:
            await store.create_segment(SEGMENT)
            data, records = bytes(_APPEND_BYTES), [bytes(_APPEND_BYTES)] * _RECORDS

            def append(_: int) -> Awaitable[object]:
                return store.append(SEGMENT, data)

            def append_batch(_: int) -> Awaitable[object]:
                return store.append_batch(SEGMENT, records)

            await pipelined(append, 2 * _WINDOW, _WINDOW)
            single = await pipelined(append, appends, _WINDOW)
            await concurrent_callers(append_batch, _CALLERS, 2)
            batches = await concurrent_callers(
                append_batch, _CALLERS, max(1, appends // (10 * _CALLERS))
            )
            name = f"{SEGMENT}/followed"
            await store.create_segment(name)
            timeline = await follow_at_rate(store, name, followed, _PER_S)
            listed_s = await _listed(store, segments)
        return {
            "appended_per_s": single.rate,
            "batched_per_s": batches.rate * _RECORDS,
            "followed_p50_ms": timeline["end_to_end_p50_ms"],
            "followed_p99_ms": timeline["end_to_end_p99_ms"],
            "listed_s": listed_s,
        }

    return asyncio.run(measure())


async def _listed(store: Store, segments: int) -> float:
    """Seconds of a listing of that many."""
    for first in range(0, segments, _CREATED_AT_ONCE):
        numbers = range(first, min(first + _CREATED_AT_ONCE, segments))
        await asyncio.gather(*(store.create_segment(f"listed/{number:06}") for number in numbers))
    begun = time.perf_counter()
    found = [each async for each in cast("_Listing", store).list_segments("listed/")]
    took = time.perf_counter() - begun
    if len(found) != segments:
        message = f"{len(found):,} segments were listed, not {segments:,}"
        raise BenchError(message)
    return took


if __name__ == "__main__":
    from bench.suite import main

    main("wire_connect")
