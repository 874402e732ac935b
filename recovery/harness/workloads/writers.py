"""Writers of plain appends: one record at a time, or batches, with few or many on their way."""

from __future__ import annotations

from recovery.harness.workloads.bench import ClientBench, Window
from segmentstore.contracts.errors import AppendTooLargeError

_CANCELLED = 0.005


async def write_plainly(bench: ClientBench) -> None:
    """Appends single records to one or two segments, keeping a window of drawn size full."""
    window = Window(bench, bench.random.choice((1, 2, 8, 32, 128)))
    names = [bench.segment("plain") for _ in range(bench.random.randrange(1, 3))]
    pauses = bench.rng(0.5)
    while bench.goes_on():
        future = bench.store.append(bench.random.choice(names), (bench.length(),))
        if bench.rng(_CANCELLED):
            # No caller waits for it any more; it may be stored all the same.
            future.cancel()
        else:
            await window.admit(future)
        if pauses and bench.rng(0.1):
            await bench.pause(0.05)
    await window.drain()


async def write_fast(bench: ClientBench) -> None:
    """Appends small records to one segment as fast as they are taken."""
    name = bench.segments["plain"][bench.place % len(bench.segments["plain"])]
    window = Window(bench, bench.random.choice((16, 64, 256)))
    store, rng = bench.store, bench.random.random
    while bench.goes_on():
        await window.admit(store.append(name, (int(rng() * 100),)))
    await window.drain()


async def write_batches(bench: ClientBench) -> None:
    """Appends batches of several records, now and then one that is larger than the store takes."""
    window = Window(bench, bench.random.choice((1, 4, 16)), AppendTooLargeError)
    name = bench.segment("plain")
    while bench.goes_on():
        lengths = bench.lengths()
        if bench.append_bytes_max <= 8192 and bench.rng(0.02):
            lengths = (bench.append_bytes_max - 40, 20)
        await window.admit(bench.store.append(name, lengths))
        if bench.rng(0.1):
            await bench.pause(0.05)
    await window.drain()
