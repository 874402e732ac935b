"""Reading the ranges of a task: small ones together, a few ranged GETs for all whose bytes lie
side by side.

Rules of this file:

- a range is small by its chunks, which are fetched whole. A group of small ranges is bounded in
  bytes and in ranges, and the next one is fetched while the rows of one are given out;
- chunks of one object become one GET as long as at most GAP_BYTES between two of them are unneeded,
  and a GET takes no more than RUN_BYTES;
- what an object does not give, for it is missing or damaged, is left to `SegmentBytes`, which asks
  again and says what is wrong. Before that, the newest catalog is asked once for all ranges of the
  group that lay in objects that are missing.

Coroutines over ObjectStorage and Runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_reader import BlockReader
from tier2.block_runs import BlockRun, plan_runs
from tier2.object_storage import ObjectNotFoundError, ObjectStorage
from tier2.spark.source.catalog import load_chunks, load_segments_of, load_snapshots
from tier2.spark.source.chunks import SegmentChunks, SourceChunk
from tier2.spark.source.fetch import fetch_run
from tier2.spark.source.framing import Rows
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import RowRange, SourceSegment
from tier2.spark.source.rows import read_rows

SMALL_BYTES: Final = 1024 * 1024
"""Of all chunks of a small range."""
SMALL_CHUNKS: Final = 256
GROUP_BYTES_FIRST: Final = 1024 * 1024
"""Of the chunks of the first group of a task; each further one may have twice as many: a reader of
few rows waits for few.
"""
GROUP_BYTES: Final = 16 * 1024 * 1024
GROUP_RANGES: Final = 4096
RUN_BYTES: Final = 8 * 1024 * 1024
"""The most one GET takes."""
GAP_BYTES: Final = 256 * 1024
"""Bytes no range asks for that are fetched rather than begin another GET."""
IN_FLIGHT: Final = 4
"""GETs of a group under way."""

Held = Mapping[ChunkRecord, bytes]
"""Chunks that were fetched already, whole and checked."""


async def read_ranges(
    storage: ObjectStorage,
    runtime: Runtime,
    ranges: Iterable[RowRange],
    options: SourceOptions,
    *,
    with_data: bool,
) -> AsyncGenerator[tuple[RowRange, Rows]]:
    """The rows of the ranges, each with the range it is of. Close it if it is not taken to its
    end.

    Raises what `read_rows` raises. Holds the chunks of two groups.
    """
    group_of = (
        groups(ranges) if with_data or options.format != "raw" else ((each,) for each in ranges)
    )
    coming: asyncio.Task[tuple[list[RowRange], Held]] | None = None
    group = next(group_of, None)
    try:
        while group is not None:
            held: Held = {}
            now: Sequence[RowRange] = group
            if len(group) > 1:
                now, held = await (coming or fetch_group(storage, runtime, group, options))
            coming = None
            following = next(group_of, None)
            if following is not None and len(following) > 1:
                coming = asyncio.create_task(fetch_group(storage, runtime, following, options))
            for planned, each in zip(group, now, strict=True):
                reading = read_rows(storage, runtime, each, options, with_data=with_data, held=held)
                async with aclosing(reading) as found:
                    async for rows in found:
                        yield planned, rows
            group = following
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def groups(
    ranges: Iterable[RowRange], small_bytes: int | None = None
) -> Iterator[tuple[RowRange, ...]]:
    """The ranges in their order; small ones that follow one another together. Pure.

    `small_bytes` takes the place of SMALL_BYTES.
    """
    held: list[RowRange] = []
    size, most = 0, GROUP_BYTES_FIRST
    for each in ranges:
        small = is_small(each.chunks, small_bytes)
        more = sum(chunk.length for chunk, _, _ in each.chunks) if small else 0
        if held and (not small or size + more > most or len(held) == GROUP_RANGES):
            yield tuple(held)
            held, size, most = [], 0, min(2 * most, GROUP_BYTES)
        if small:
            held.append(each)
            size += more
        else:
            yield (each,)
    if held:
        yield tuple(held)


def is_small(chunks: Sequence[SourceChunk], small_bytes: int | None = None) -> bool:
    """Whether a range with these chunks is read in a group."""
    most = SMALL_BYTES if small_bytes is None else small_bytes
    return 0 < len(chunks) <= SMALL_CHUNKS and sum(chunk.length for chunk, _, _ in chunks) <= most


async def fetch_group(
    storage: ObjectStorage, runtime: Runtime, group: Sequence[RowRange], options: SourceOptions
) -> tuple[list[RowRange], Held]:
    """The chunks of small ranges; and the ranges, where objects are missing with the chunks of the
    newest catalog.
    """
    held, missing = await _fetch(storage, runtime, group)
    if not missing:
        return list(group), held
    again = await _asked_again(storage, options, group, missing)
    more, _ = await _fetch(
        storage, runtime, [each for each, old in zip(again, group, strict=True) if each is not old]
    )
    return again, {**held, **more}


async def _fetch(
    storage: ObjectStorage, runtime: Runtime, group: Sequence[RowRange]
) -> tuple[dict[ChunkRecord, bytes], set[str]]:
    """What the objects give of the chunks, and the names of those that are not there."""
    held: dict[ChunkRecord, bytes] = {}
    missing: set[str] = set()
    sizes = {chunk.object_name: size for each in group for chunk, size, _ in each.chunks}
    for container_id in sorted({each.segment.container_id for each in group}):
        mine = [each for each in group if each.segment.container_id == container_id]
        reader = BlockReader(storage, container_id, runtime, object_size=sizes.get)
        runs = iter(group_runs(mine))
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(_fetch_runs(reader, runtime, runs, held, missing))
        except ExceptionGroup as errors:
            # One of them says enough, and under its own name.
            raise errors.exceptions[0] from None
        finally:
            await reader.close()
    return held, missing


async def _fetch_runs(
    reader: BlockReader,
    runtime: Runtime,
    runs: Iterator[BlockRun],
    held: dict[ChunkRecord, bytes],
    missing: set[str],
) -> None:
    for run in runs:
        try:
            payloads = await fetch_run(reader, run, runtime.random)
        except ObjectNotFoundError:
            missing.add(run.object_name)
        except DataCorruptionError:
            continue
        else:
            # Copied: a view would keep what lies between the chunks.
            held.update((chunk, bytes(data)) for chunk, _, data in payloads)


def group_runs(group: Iterable[RowRange]) -> list[BlockRun]:
    """The GETs that fetch all chunks of small ranges of one container. Pure."""
    by_object: dict[str, dict[ChunkRecord, int]] = {}
    for each in group:
        for chunk, size, _ in each.chunks:
            by_object.setdefault(chunk.object_name, {})[chunk] = size
    runs: list[BlockRun] = []
    for name, chunks in by_object.items():
        size = max(chunks.values())
        ordered = sorted(chunks, key=lambda chunk: chunk.block_offset)
        runs += plan_runs(name, size, ordered, run_bytes=RUN_BYTES, gap_bytes=GAP_BYTES)
    return runs


async def _asked_again(
    storage: ObjectStorage, options: SourceOptions, group: Sequence[RowRange], missing: set[str]
) -> list[RowRange]:
    """The ranges with objects that are missing, as the newest catalog has them; as they are where
    it has them otherwise.
    """
    lost = [
        each for each in group if any(chunk.object_name in missing for chunk, _, _ in each.chunks)
    ]
    snapshots = await load_snapshots(storage, options)
    now = list(group)
    for container_id in sorted({each.segment.container_id for each in lost}):
        manifest = snapshots.get(container_id)
        if manifest is None:
            continue
        ids = {
            each.segment.segment_id for each in lost if each.segment.container_id == container_id
        }
        segments = await load_segments_of(storage, manifest, ids)
        chunks = await load_chunks(storage, manifest, ids & segments.keys())
        for index, each in enumerate(group):
            if each.segment.container_id == container_id and each.segment.segment_id in ids:
                segment_id = each.segment.segment_id
                now[index] = _found_again(each, segments.get(segment_id), chunks.get(segment_id))
    return now


def _found_again(
    each: RowRange, segment: SourceSegment | None, chunks: SegmentChunks | None
) -> RowRange:
    end = min(each.chunks[-1].chunk.end_offset, each.limit)
    if (
        segment is None
        or chunks is None
        or segment.start_offset > each.read_from
        or segment.storage_length < end
    ):
        return each
    found = chunks.between(each.read_from, end)
    return each._replace(chunks=found) if is_small(found) else each
