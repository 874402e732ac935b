"""How blocks of several objects come to lie in one: copied by the store itself, or written anew.

Rules of this file:

- in the new object the bytes of a segment lie together, in order;
- the store copies blocks itself only where it needs few ranges, long enough, with little dead
  between them. Else a request, and bytes copied in vain, cost more than a download.

The consolidation inside of the engine and the compaction from outside plan with the same terms.
Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import block_prefix_length
from tier2.object_storage import ObjectRange

RANGES_PER_SOURCE = 2
"""Ranges the store may be asked to copy, for each source: each costs as much as the put of a whole
object.
"""
_WASTE_SHARE = 4
"""Dead bytes copied along are at most a share of the living ones."""


class Run(NamedTuple):
    """Neighbouring chunks of one segment, all of them in objects of the group."""

    segment_id: int
    chunks: tuple[ChunkRecord, ...]


class PlacedBlock(NamedTuple):
    """A block of the new object, and the bytes of its segment that are in it."""

    start_offset: int
    length: int
    block_offset: int


class CopyPlan(NamedTuple):
    """The new object as ranges of old ones."""

    ranges: tuple[ObjectRange, ...]
    places: Mapping[tuple[str, int], int]
    """Where the block at a place in an old object comes to lie in the new one."""
    size: int


def chunks_by_source(runs: Iterable[Run]) -> dict[str, list[ChunkRecord]]:
    """The chunks of all runs under the object they lie in, in the order of their blocks."""
    found: dict[str, list[ChunkRecord]] = defaultdict(list)
    for run in runs:
        for chunk in run.chunks:
            found[chunk.object_name].append(chunk)
    for chunks in found.values():
        chunks.sort(key=_block_place)
    return found


def plan_copy(
    runs: Sequence[Run],
    names: Mapping[str, ObjectRecord],
    bytes_min: int,
    extent_bytes: int,
    block_ends: Mapping[tuple[str, int], int] | None = None,
) -> CopyPlan | None:
    """The group copied by the store itself, run after run; None if it had better be downloaded and
    uploaded.

    `bytes_min` is the least length of a range, but for one. `block_ends` says where in its object
    each block ends, by (object, place). Without it that is not known but by where the next one
    begins: what is dead there is copied along.
    """
    sources = chunks_by_source(runs)
    ends = _block_ends(sources, names) if block_ends is None else block_ends
    pieces: list[tuple[str, int, int]] = []
    seen: set[tuple[str, int]] = set()
    wanted = 0
    for run in runs:
        for chunk in run.chunks:
            place = (chunk.object_name, chunk.block_offset)
            wanted += block_prefix_length(chunk.length, extent_bytes) + chunk.length
            if place in seen:
                continue
            seen.add(place)
            if pieces and pieces[-1][0] == place[0] and pieces[-1][2] == place[1]:
                pieces[-1] = (place[0], pieces[-1][1], ends[place])
            else:
                pieces.append((*place, ends[place]))
    pieces.sort(
        key=lambda piece: piece[2] - piece[1] < bytes_min
    )  # stable: one that is too short goes last
    if len(pieces) > RANGES_PER_SOURCE * len(sources) or any(
        end - start < bytes_min for _, start, end in pieces[:-1]
    ):
        return None
    size = sum(end - start for _, start, end in pieces)
    return None if size > wanted + wanted // _WASTE_SHARE else _lay_out(pieces, seen)


def _block_ends(
    sources: Mapping[str, Sequence[ChunkRecord]], names: Mapping[str, ObjectRecord]
) -> dict[tuple[str, int], int]:
    """Where the block at each place ends at the latest: at the next living one, or with its
    object.
    """
    ends: dict[tuple[str, int], int] = {}
    for name, chunks in sources.items():
        places = sorted({chunk.block_offset for chunk in chunks})
        for place, end in zip(places, [*places[1:], names[name].size], strict=True):
            ends[name, place] = end
    return ends


def _lay_out(pieces: Sequence[tuple[str, int, int]], blocks: set[tuple[str, int]]) -> CopyPlan:
    starts: dict[str, list[int]] = defaultdict(list)
    for name, place in sorted(blocks):
        starts[name].append(place)
    places: dict[tuple[str, int], int] = {}
    position = 0
    for name, start, end in pieces:
        known = starts[name]
        for block in known[bisect_left(known, start) : bisect_left(known, end)]:
            places[name, block] = position + block - start
        position += end - start
    return CopyPlan(
        tuple(ObjectRange(name, start, end - start) for name, start, end in pieces),
        places,
        position,
    )


def blocks_to_write(run: Run, block_bytes: int) -> Iterator[tuple[ChunkRecord, ...]]:
    """The run's chunks in groups that become one block each, of at most `block_bytes` (or one
    chunk).
    """
    block: list[ChunkRecord] = []
    size = 0
    for chunk in run.chunks:
        if block and size + chunk.length > block_bytes:
            yield tuple(block)
            block, size = [], 0
        block.append(chunk)
        size += chunk.length
    if block:
        yield tuple(block)


def _block_place(chunk: ChunkRecord) -> tuple[int, int]:
    return chunk.block_offset, chunk.block_start_offset
