"""Mergers: transactions in segments of their own, merged into their target while others append to
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from recovery.harness.history import Update
from recovery.harness.workloads.attribute_clients import COUNTER
from recovery.harness.workloads.bench import ClientBench, Window
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    TierUnavailableError,
)

_REFUSED = (SegmentNotFoundError, SegmentSealedError, SegmentTruncatedError)


async def merge_segments(bench: ClientBench) -> None:
    """Makes sources and merges them: sealed or not, empty or not, in Tier 2 or not, through another
    source or not.
    """
    target = bench.segment("merged")
    while bench.goes_on():
        if bench.rng(0.15):
            await _merge_several(bench, target)
        source = await _make_source(bench, target)
        if source is None:
            continue
        if bench.rng(0.2):
            # A merge into what is then merged itself.
            inner = await _make_source(bench, target)
            if inner is not None:
                await bench.try_to(bench.store.merge(source, inner), *_REFUSED)
                await _append(bench, source)
        if bench.rng(0.3):
            await bench.try_to(bench.store.seal(source))
        if bench.rng(0.3):
            await bench.try_to(bench.store.flush(source), SegmentNotFoundError)
        if bench.rng(0.05):
            # A truncated source is refused.
            info = await bench.store.info(source)
            await bench.try_to(bench.store.truncate(source, info.length))
        await _merge(bench, target, source)
        if bench.rng(0.3):
            await bench.try_to(
                bench.store.append(source, (bench.length(),)),
                SegmentNotFoundError,
                SegmentSealedError,
            )
        await bench.pause(0.05)


async def _make_source(bench: ClientBench, target: str) -> str | None:
    name = bench.stage.source(target, bench.process_run, bench.index, bench.created)
    bench.created += 1
    if not await bench.try_to(bench.store.create(name), SegmentExistsError):
        return None
    window = Window(bench, 4)
    for _ in range(bench.random.randrange(4)):
        await window.admit(bench.store.append(name, (bench.length(),)))
    await window.drain()
    return name


async def _merge(bench: ClientBench, target: str, source: str) -> None:
    updates = (Update(COUNTER, "ACCUMULATE", 1),) if bench.rng(0.2) else ()
    merging = bench.store.merge(target, source, updates)
    if bench.rng(0.5):
        await bench.together(
            _append(bench, target),
            merging,
            _append(bench, target),
            _append(bench, source),
            tolerated=_REFUSED,
        )
    else:
        await bench.try_to(merging, *_REFUSED)


async def _merge_several(bench: ClientBench, target: str) -> None:
    """One call for several sources. A truncation beside it may have it refused half-way."""
    lengths: dict[str, int] = {}
    for _ in range(bench.random.randrange(2, 5)):
        source = await _make_source(bench, target)
        if source is not None:
            with suppress(TierUnavailableError):
                lengths[source] = await bench.store.seal(source)
    calls = [bench.store.merge_batch(target, lengths), _append(bench, target)]
    if lengths and bench.rng(0.2):
        calls.insert(0, _cut(bench, bench.random.choice(list(lengths)), lengths))
    await bench.together(*calls, tolerated=_REFUSED)


async def _cut(bench: ClientBench, source: str, lengths: Mapping[str, int]) -> None:
    await bench.store.truncate(source, lengths[source])


async def _append(bench: ClientBench, name: str) -> None:
    await bench.try_to(bench.store.append(name, (bench.length(),)), *_REFUSED)
