"""Packing a read: ranges of rows become partitions, by their bytes and by the objects that hold
them.

Rules of this file:

- ranges go in the order of the objects they lie in, so that those of one object share a
  partition, where a few ranged GETs fetch them all (`source.group`);
- a range costs its bytes, something for itself, and something for each object that the range
  before it did not need;
- what opening costs makes at most OPENING_TASKS_MAX tasks more than the bytes do, however many
  segments there are;
- a range in many objects is cut smaller than its bytes alone ask for.

Pure. Costs some microseconds and 1 KiB a segment, and about 100 bytes a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from tier2.spark.source.chunks import SegmentChunks
from tier2.spark.source.errors import SourceCatalogError
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import RowPart, RowRange, cut_range, whole_part

SPLIT_BYTES_MIN: Final = 4 * 1024 * 1024
"""No smaller partitions for the sake of `minPartitions`, or of objects."""
RANGE_BYTES: Final = 32 * 1024
"""What one more range costs a task, in bytes read meanwhile: some 0.3 ms."""
OBJECT_BYTES: Final = 256 * 1024
"""What one more object costs, in bytes read meanwhile: a GET, of which several are under way."""
OPENING_TASKS_MAX: Final = 400
"""Filling partitions in order leaves them half empty at the worst: a million small segments stay
below 1,000 tasks."""
MANY_CHUNKS: Final = 64
"""From here on numpy counts objects faster than Python."""

Chunks = Mapping[int, Mapping[int, SegmentChunks]]
"""By container and segment."""


class _Sized(NamedTuple):
    part: RowPart
    chunks: SegmentChunks | None
    opened: int
    """Objects that the range before it does not need."""

    @property
    def opening(self) -> int:
        return RANGE_BYTES + self.opened * OBJECT_BYTES


def plan_parts(
    ranges: Sequence[RowRange], chunks: Chunks | None, options: SourceOptions
) -> list[tuple[RowPart, ...]]:
    """The partitions of these ranges; `chunks` None: the query needs no bytes.

    Raises SourceCatalogError for a range whose chunks are not known.
    """
    sized = _sized(ranges, chunks, options)
    bytes_in_all = sum(each.part.size for each in sized)
    opening_in_all = sum(each.opening for each in sized)
    wanted = -(-(bytes_in_all + opening_in_all) // options.min_partitions)
    split = min(options.partition_bytes, max(SPLIT_BYTES_MIN, wanted))
    scale = min(1.0, OPENING_TASKS_MAX * split / opening_in_all) if opening_in_all else 1.0
    packed: list[tuple[RowPart, ...]] = []
    held: list[RowPart] = []
    weight = 0.0
    for each in sized:
        opening = scale * each.opening
        parts = _cut(each, split, opening, options)
        for part in parts:
            cost = part.size + opening / len(parts)
            if held and weight + cost > split:
                packed.append(tuple(held))
                held, weight = [], 0.0
            held.append(part)
            weight += cost
    return [*packed, tuple(held)] if held else packed


def _cut(each: _Sized, split: int, opening: float, options: SourceOptions) -> list[RowPart]:
    size = each.part.size
    # As long as a range's objects are worth their bytes, `split` is for its bytes alone.
    fair = (
        split if opening <= size else max(min(split, SPLIT_BYTES_MIN), int(split * size / opening))
    )
    if size <= fair:
        return [each.part]
    return list(cut_range(each.part.rows, each.chunks, fair, options))


def _sized(
    ranges: Sequence[RowRange], chunks: Chunks | None, options: SourceOptions
) -> list[_Sized]:
    if chunks is None:
        return [_Sized(RowPart(each), None, 0) for each in ranges]
    sized: list[_Sized] = []
    for container_id, mine in _by_container(ranges).items():
        known = chunks.get(container_id, {})
        parts = []
        for rows in mine:
            held = known.get(rows.segment.segment_id)
            if held is None:
                raise SourceCatalogError(
                    f"the catalog has no chunk of segment {rows.segment.name!r}"
                )
            parts.append(whole_part(rows, held, options))
        before: frozenset[int] = frozenset()
        for index in _in_object_order(parts):
            objects = _objects_of(parts[index])
            chunks_of = known[parts[index].rows.segment.segment_id]
            sized.append(_Sized(parts[index], chunks_of, len(objects - before)))
            before = objects
    return sized


def _by_container(ranges: Iterable[RowRange]) -> dict[int, list[RowRange]]:
    found: dict[int, list[RowRange]] = {}
    for each in ranges:
        found.setdefault(each.segment.container_id, []).append(each)
    return found


def _in_object_order(parts: Sequence[RowPart]) -> list[int]:
    """The parts of a container by object and place in it; objects in the order in which the
    parts first need them.
    """
    if not parts:
        return []
    table = parts[0].table
    assert table is not None
    first = np.fromiter((part.first for part in parts), np.int64, len(parts))
    _, seen, number = np.unique(table.objects[first], return_index=True, return_inverse=True)
    order: list[int] = np.lexsort((table.places[first], seen[number])).tolist()
    return order


def _objects_of(part: RowPart) -> frozenset[int]:
    assert part.table is not None
    objects = part.table.objects[part.first : part.last]
    return frozenset((np.unique(objects) if len(objects) > MANY_CHUNKS else objects).tolist())
