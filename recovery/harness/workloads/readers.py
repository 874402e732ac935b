"""Readers: at offsets all over a segment, and at its tail."""

from __future__ import annotations

import asyncio

from recovery.harness.workloads.bench import ClientBench
from segmentstore.contracts.errors import (
    BadOffsetError,
    EndOfSegmentError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TierUnavailableError,
)
from segmentstore.contracts.segments import SegmentInfo

_EXPECTED = (BadOffsetError, EndOfSegmentError, SegmentNotFoundError, SegmentTruncatedError)


async def read_anywhere(bench: ClientBench) -> None:
    """Reads tiny and large stretches from anywhere, sometimes from outside of what is there."""
    while bench.goes_on():
        info = await _choose(bench)
        if info is None:
            continue
        for _ in range(bench.random.randrange(1, 6)):
            low = info.start_offset - (10 if bench.rng(0.1) else 0)
            high = info.length + (10 if bench.rng(0.1) else 0)
            offset = max(0, bench.random.randint(low, high))
            length = bench.random.choice((1, 7, 64, 500, 5000, 1 << 20))
            await bench.try_to(bench.store.read(info.name, offset, length), *_EXPECTED)
        await bench.pause(0.1)


async def read_tail(bench: ClientBench) -> None:
    """Goes after the tail: waits there for what comes next, by single reads or with a following
    reader.
    """
    while bench.goes_on():
        info = await _choose(bench)
        if info is None:
            continue
        offset = bench.random.choice((info.start_offset, info.length))
        if bench.rng(0.5):
            await _follow(bench, info.name, offset)
        else:
            await _read_on(bench, info.name, offset)


async def _choose(bench: ClientBench) -> SegmentInfo | None:
    """A shared segment, or any that is there now: another client may be about to delete it or merge
    it away.
    """
    name = bench.any_segment()
    if bench.rng(0.3):
        name = bench.random.choice(await bench.store.segment_names(f"{bench.stage.label}/"))
    try:
        return await bench.store.info(name)
    except SegmentNotFoundError:
        return None


async def _read_on(bench: ClientBench, name: str, offset: int) -> None:
    for _ in range(bench.random.randrange(1, 8)):
        wait = bench.random.choice((None, 0.0, 0.05, 2.0))
        try:
            data = await bench.store.read(
                name, offset, 200, wait if wait is None else wait * bench.pace
            )
        except SegmentTruncatedError as error:
            offset = error.start_offset
        except (EndOfSegmentError, SegmentNotFoundError):
            return
        except TierUnavailableError:
            await bench.back_off()
        else:
            offset += len(data)


async def _follow(bench: ClientBench, name: str, offset: int) -> None:
    """Follow for a drawn while; a client that gives up in the middle of a wait cancels a read."""
    try:
        reader = bench.store.follow(name, offset)
        async with asyncio.timeout(bench.random.uniform(0.0, 3.0) * bench.pace):
            for _ in range(8):
                if await reader.next_piece() is None:
                    return
    except (TimeoutError, *_EXPECTED):
        return
    except TierUnavailableError:
        await bench.back_off()
