"""Clients of a segment's lifetime: sealing, truncating, deleting and making again under the same
name.
"""

from __future__ import annotations

from recovery.harness.records import HEADER_BYTES
from recovery.harness.workloads.bench import ClientBench, Window
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    TierUnavailableError,
)


async def seal_segments(bench: ClientBench) -> None:
    """Makes segments, writes, seals them (with appends on their way, sometimes), and is refused
    afterwards.
    """
    while bench.goes_on():
        name = await bench.make_segment("sealed")
        if name is None:
            continue
        await _append_some(bench, name)
        sealing = bench.store.seal(name)
        if bench.rng(0.4):
            # In the order of the loop's turns: some get in before the seal, some after it.
            await bench.together(
                _append_after(bench, name, 0),
                sealing,
                _append_after(bench, name, 2),
                tolerated=(SegmentSealedError,),
            )
        else:
            await bench.try_to(sealing)
        await bench.try_to(bench.store.append(name, (bench.length(),)), SegmentSealedError)
        if bench.rng(0.2):
            await bench.try_to(bench.store.seal(name), SegmentSealedError)
        if bench.rng(0.3):
            await _truncate_somewhere(bench, name)
        if bench.rng(0.4):
            await bench.try_to(bench.store.delete(name))
        await bench.pause(0.05)


async def cut_heads(bench: ClientBench) -> None:
    """Appends, and truncates: mostly between two of its records, sometimes in one, sometimes
    outside of the segment.
    """
    name = bench.segment("cut")
    boundaries: list[int] = []
    while bench.goes_on():
        for _ in range(bench.random.randrange(1, 5)):
            length = bench.length()
            try:
                boundaries.append(await bench.store.append(name, (length,)) + HEADER_BYTES + length)
            except TierUnavailableError:
                await bench.back_off()
        if boundaries and bench.rng(0.7):
            at = bench.random.randrange(len(boundaries))
            await bench.try_to(bench.store.truncate(name, boundaries[at]), BadOffsetError)
            del boundaries[: at + 1]
        else:
            await _truncate_somewhere(bench, name)
        if bench.rng(0.3):
            await bench.pause(0.05)


async def delete_and_make_again(bench: ClientBench) -> None:
    """Deletes segments (with appends on their way, sometimes) and makes them again under the same
    name.
    """
    while bench.goes_on():
        name = await bench.make_segment("deleted")
        if name is None:
            continue
        for _ in range(bench.random.randrange(1, 4)):
            await _append_some(bench, name)
            if bench.rng(0.3):
                await bench.try_to(bench.store.flush(name), SegmentNotFoundError)
            if bench.rng(0.5):
                await bench.together(
                    bench.store.delete(name),
                    _append_after(bench, name, 1),
                    tolerated=(SegmentNotFoundError,),
                )
            else:
                await bench.try_to(bench.store.delete(name), SegmentNotFoundError)
            await bench.try_to(bench.store.append(name, (bench.length(),)), SegmentNotFoundError)
            await bench.try_to(bench.store.create(name), SegmentExistsError)
        await _append_some(bench, name)
        if bench.rng(0.5):
            await bench.try_to(bench.store.delete(name), SegmentNotFoundError)
        await bench.pause(0.05)


async def _append_some(bench: ClientBench, name: str) -> None:
    window = Window(bench, bench.random.choice((1, 8)), SegmentNotFoundError)
    for _ in range(bench.random.randrange(4)):
        await window.admit(bench.store.append(name, (bench.length(),)))
    await window.drain()


async def _append_after(bench: ClientBench, name: str, turns: int) -> None:
    """Append once the loop has gone round so often."""
    for _ in range(turns):
        await bench.pause(0.0)
    await bench.store.append(name, (bench.length(),))


async def _truncate_somewhere(bench: ClientBench, name: str) -> None:
    """Truncate anywhere in the segment; sometimes just outside of it, which is refused."""
    info = await bench.store.info(name)
    low = max(0, info.start_offset - (5 if bench.rng(0.2) else 0))
    high = info.length + (5 if bench.rng(0.2) else 0)
    await bench.try_to(bench.store.truncate(name, bench.random.randint(low, high)), BadOffsetError)
