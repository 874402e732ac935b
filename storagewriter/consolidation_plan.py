"""Which objects become one, and which chunks then stand for which.

How their blocks come to lie in it: tier2.copy_plan.

Rules of this file:

- an object is worth consolidating if little in it is alive (less than half of what a consolidated
  object holds) or if most of it is dead. A group is worth it if it fills a consolidated object, or
  frees enough. So what comes out is hardly ever a candidate again: each byte is written about once
  more in its lifetime;
- some objects are so small, or of so many chunks, that as many as a group may hold do not fill one.
  They are joined all the same, those of about one size: the objects and chunks in memory and log
  must not grow with every flush. Each byte goes up by sizes then, and is written again once or
  twice for each eightfold. Not where that would join neither: many chunks in few objects, hardly
  two of a segment (docs/decisions/0016);
- chunks are replaced only where the segment still has exactly those that were read. Ranges that
  were truncated, deleted, merged or replaced meanwhile are omitted here, and refused by the log
  where that comes later still.

Pure: no await, no clock, no I/O. Nothing here is on a path of callers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from durablelog.operations import ChunkReplacement
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from tier2.block_object import EXTENT_BYTES_DEFAULT, NAMED_HEADER_BYTES_MAX
from tier2.copy_plan import CopyPlan, PlacedBlock, Run

SOURCES_MAX = 4096
"""Objects that become one."""
CHUNKS_MAX = 65536
"""Chunks in them: bounds the memory of a plan, and what is written to the log for it."""
_SIZE_BITS = 3
"""Sizes between two powers of two so far apart count as about one."""
_ABOUT_ONE_SIZE_MIN = 4
"""Objects of about one size in a group, at least: what comes out is larger by so much."""
_DEAD_SHARE = 4
"""Dead bytes of a share of a consolidated object are worth rewriting what lives beside them."""
_CHUNKS_OF_AN_OBJECT = 64
"""One object less is worth as much as so many chunks less."""
_JOINED_SHARE = 4
"""Of one part of so many of the chunks, that must be saved: each is replaced by the log."""

P = TypeVar("P")


# --- which objects --------------------------------------------------------------------------------


def dead_bytes(live: LiveObject) -> int:
    """Bytes of an object that are read no more, at least; headers are not among them."""
    tables = NAMED_HEADER_BYTES_MAX * live.live_chunks + 8 * (
        live.live_bytes // EXTENT_BYTES_DEFAULT
    )
    return max(0, live.record.size - live.live_bytes - tables)


def is_candidate(live: LiveObject, consolidation_bytes: int) -> bool:
    """Whether an object may be a part of a group at all."""
    if live.live_chunks > CHUNKS_MAX or live.live_bytes > consolidation_bytes:
        return False
    return live.live_bytes < consolidation_bytes / 2 or is_mostly_dead(live)


def is_mostly_dead(live: LiveObject) -> bool:
    """Whether half of an object is dead, or more."""
    return 2 * dead_bytes(live) >= live.record.size


def choose_group(
    candidates: Iterable[LiveObject], consolidation_bytes: int
) -> tuple[LiveObject, ...]:
    """The oldest group that is worth consolidating; empty if none is.

    `candidates` in order of commit.

    It holds at most twice `consolidation_bytes` of living bytes. O(n log n).
    """
    ordered = sorted(candidates, key=_created_ms)
    for group in _neighbours(ordered, consolidation_bytes):
        if _live_bytes(group) >= consolidation_bytes / 2:
            return group
    mostly_dead = [live for live in ordered if is_mostly_dead(live)]
    for group in _neighbours([*mostly_dead, None], consolidation_bytes):
        if sum(map(dead_bytes, group)) >= consolidation_bytes / _DEAD_SHARE:
            return group
    by_size: dict[int, list[LiveObject]] = defaultdict(list)
    for live in ordered:
        by_size[live.live_bytes.bit_length() // _SIZE_BITS].append(live)
    for size in sorted(by_size):
        for group in _neighbours(by_size[size], consolidation_bytes):
            if len(group) >= _ABOUT_ONE_SIZE_MIN:
                return group
    return ()


def is_worth_joining(group: Sequence[LiveObject], runs: int, consolidation_bytes: int) -> bool:
    """Whether a chosen group is to be written anew, now that the runs of its chunks are counted.

    One that fills an object is, or that frees bytes. Another one has to leave fewer records: of
    chunks, which are joined in runs, and of objects. O(group).
    """
    if _live_bytes(group) >= consolidation_bytes / 2:
        return True
    dead = sum(map(dead_bytes, group))
    if dead >= consolidation_bytes / _DEAD_SHARE or 2 * dead >= sum(x.record.size for x in group):
        return True
    chunks = sum(live.live_chunks for live in group)
    saved = chunks - runs + _CHUNKS_OF_AN_OBJECT * len(group)
    return saved >= chunks / _JOINED_SHARE


def _neighbours(
    candidates: Sequence[LiveObject | None], consolidation_bytes: int
) -> Iterator[tuple[LiveObject, ...]]:
    """Groups that are full by bytes, sources or chunks; what is left over at the end only if None
    stands there.
    """
    group: list[LiveObject] = []
    size = chunks = 0
    for live in candidates:
        if group and (
            live is None or chunks + live.live_chunks > CHUNKS_MAX or len(group) == SOURCES_MAX
        ):
            yield tuple(group)
            group, size, chunks = [], 0, 0
        if live is not None:
            group.append(live)
            size += live.live_bytes
            chunks += live.live_chunks
        if size >= consolidation_bytes:
            yield tuple(group)
            group, size, chunks = [], 0, 0


def _created_ms(live: LiveObject) -> int:
    return live.record.created_ms


def _live_bytes(group: Iterable[LiveObject]) -> int:
    return sum(live.live_bytes for live in group)


# --- what is in them ------------------------------------------------------------------------------


def runs_of(segment_id: int, chunks: Iterable[ChunkRecord]) -> Iterator[Run]:
    """The runs of a segment's chunks, which are in order of offset. O(chunks)."""
    run: list[ChunkRecord] = []
    for chunk in chunks:
        if run and chunk.start_offset != run[-1].end_offset:
            yield Run(segment_id, tuple(run))
            run = []
        run.append(chunk)
    if run:
        yield Run(segment_id, tuple(run))


def next_batch(placed: Iterator[tuple[Run, P]], chunks_max: int) -> list[tuple[Run, P]]:
    """Take the next ones, of few more than `chunks_max` chunks, or one run. O(these)."""
    batch: list[tuple[Run, P]] = []
    chunks = 0
    for run, place in placed:
        batch.append((run, place))
        chunks += len(run.chunks)
        if chunks >= chunks_max:
            break
    return batch


# --- which chunks stand for which -----------------------------------------------------------------


def still_there(segment: SegmentMetadata, run: Run) -> Iterator[tuple[ChunkRecord, ...]]:
    """The stretches of a run that the segment still has exactly so. O(run)."""
    first, last = run.chunks[0], run.chunks[-1]
    there = {
        chunk.start_offset: chunk
        for chunk in segment.chunks.between(first.start_offset, last.end_offset)
    }
    kept: list[ChunkRecord] = []
    for chunk in run.chunks:
        if there.get(chunk.start_offset) == chunk:
            kept.append(chunk)
        elif kept:
            yield tuple(kept)
            kept = []
    if kept:
        yield tuple(kept)


def replaced_by_copy(
    segment: SegmentMetadata, run: Run, plan: CopyPlan, name: str
) -> Iterator[ChunkReplacement]:
    """What becomes of a run whose blocks were copied: each chunk keeps its block, which lies in
    `name` now.
    """
    for old in still_there(segment, run):
        new = [
            chunk._replace(
                object_name=name, block_offset=plan.places[chunk.object_name, chunk.block_offset]
            )
            for chunk in old
        ]
        yield ChunkReplacement(segment.segment_id, old, tuple(new))


def replaced_by_rewrite(
    segment: SegmentMetadata, run: Run, blocks: Sequence[PlacedBlock], name: str
) -> Iterator[ChunkReplacement]:
    """What becomes of a run that was written into `blocks` of `name`, which cover it in order."""
    for old in still_there(segment, run):
        start, end = old[0].start_offset, old[-1].end_offset
        new = []
        for block in blocks:
            first, last = (
                max(block.start_offset, start),
                min(block.start_offset + block.length, end),
            )
            if first < last:
                new.append(
                    ChunkRecord(
                        first, last - first, name, block.block_offset, segment.segment_id, first
                    )
                )
        yield ChunkReplacement(segment.segment_id, old, tuple(new))
