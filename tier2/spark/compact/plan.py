"""Which chunks of a container are worth rewriting, and which of them become one object: from a
catalog snapshot alone.

Rules of this file:

- a segment is checked in cells of the target's size, by offset: chunks of one cell are never
  joined with another's. So what was rewritten stays where it was checked, and a plan made after
  its commit is empty (but see GROUP_CHUNKS_MAX);
- chunks that lie behind one another in one object are a piece, unless two neighbours had better be
  one block. A stretch is neighbouring small pieces of a cell; it is worth rewriting from
  `min_input_files` pieces on. Leading pieces that are larger than all behind them are left out: a
  segment that grows is not written again and again for its end;
- an object that is mostly dead, or will be by what is chosen, is emptied, if all that is alive in
  it may be touched;
- only what is old enough is touched. Segments merged away are not: they are about to become
  another's chunks;
- a container of very many chunks is planned in ranges that end between cells (`compact.ranges`):
  what is chosen in a cell is the same. All ranges together determine whether an object is dead
  (`Deadness`);
- a group becomes one object: stretches in the order of segments and offsets, to the target's size.
  Its id is made of what is in it, so the same plan gives the same ids, wherever and whenever it is
  made.

Pure: Arrow tables in, numpy inside, no row is looped over but those of what is chosen. Some seconds
for ten million chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import HEADER_BYTES, HEADER_BYTES_MAX, NAMED_HEADER_BYTES_MAX
from tier2.copy_plan import Run
from tier2.spark.compact.group import GROUP_ID_DIGITS, Group
from tier2.spark.compact.options import GROUP_CHUNKS_MAX, CompactionOptions

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SHARES_MAX = 20_000
"""Rows of `PlanOutline.shares`."""

_NUMBERS = (
    "segment_id",
    "start_offset",
    "length",
    "block_offset",
    "block_segment_id",
    "block_start_offset",
    "object_size",
    "object_created_ms",
)


class PlannedGroup(NamedTuple):
    """What becomes one object, as rows of the plan's chunks."""

    group_id: str
    stretches: tuple[tuple[int, int], ...]
    """[first, end) of rows that are neighbours in one segment."""
    bytes: int
    """Of segments, in these chunks."""
    segments: int
    chunks: int
    sources: int
    """Objects they lie in."""


class PlanOutline(NamedTuple):
    """A plan without its chunks: what is known of its groups, and how objects are shared among
    them.
    """

    container_id: int
    groups: tuple[PlannedGroup, ...]
    shares: tuple[tuple[tuple[int, ...], int, int], ...]
    """Of some groups, by their places: objects with chunks in each of these and in no other; and
    how many of them are empty once all of these are committed. About what a group has is in one
    row; objects that many groups share have more.
    """

    def freed_objects(self, group_ids: Collection[str]) -> int:
        """Objects nothing lives in any more once these groups are committed."""
        committed = self._places(group_ids)
        return sum(freed for groups, _, freed in self.shares if committed.issuperset(groups))

    def source_objects(self, group_ids: Collection[str]) -> int:
        """Objects that chunks of these groups lie in."""
        wanted = self._places(group_ids)
        return sum(sources for groups, sources, _ in self.shares if not wanted.isdisjoint(groups))

    def _places(self, group_ids: Collection[str]) -> set[int]:
        return {place for place, planned in enumerate(self.groups) if planned.group_id in group_ids}


def _bounded(
    shares: list[tuple[tuple[int, ...], int, int]],
) -> tuple[tuple[tuple[int, ...], int, int], ...]:
    """Not more than SHARES_MAX, the largest first: the others count as if their groups shared them
    all.
    """
    shares.sort(key=lambda row: -row[1])
    kept, others = shares[:SHARES_MAX], shares[SHARES_MAX:]
    if others:
        groups = sorted({group for row in others for group in row[0]})
        kept.append((tuple(groups), sum(row[1] for row in others), sum(row[2] for row in others)))
    return tuple(kept)


class Deadness(NamedTuple):
    """What is left in objects after the stretches of one range were chosen: a row an object, as
    arrays.
    """

    objects: Ints
    """A hash of each name (`object_hash`)."""
    size: Ints
    chunks: Ints
    bytes: Ints
    untouchable: Ints
    """Chunks that may not be rewritten."""

    def is_dead(self, options: CompactionOptions) -> Flags:
        """Whether each is dead enough to be emptied, and may be."""
        # Compressed payload is taken for as long as it was: such an object looks less dead than it
        # is, never more.
        alive = (
            self.bytes
            + NAMED_HEADER_BYTES_MAX * self.chunks
            + 8 * (self.bytes // options.extent_bytes)
        )
        dead = self.size - alive >= options.delete_ratio_threshold * self.size
        result: Flags = (self.chunks > 0) & (self.untouchable == 0) & dead
        return result


class CompactionPlan:
    """The groups of one container, and the chunks they are made of. Made by `plan_groups`."""

    def __init__(
        self, container_id: int, epoch: int, chunks: _Chunks, names: dict[int, str], store_id: str
    ) -> None:
        self.store_id = store_id
        self.container_id = container_id
        self.epoch = epoch
        """Of the snapshot's owner: what new objects are named by."""
        self._chunks = chunks
        self._names = names
        self.is_cut = False
        """It is of a range of the container."""
        self.groups: list[PlannedGroup] = []
        """In the order they are to be worked at."""

    def group(self, planned: PlannedGroup) -> Group:
        """All a task needs to know of one group. O(its chunks)."""
        objects: dict[str, ObjectRecord] = {}
        runs = [self._run(first, end, objects) for first, end in planned.stretches]
        names = {run.segment_id: self._names[run.segment_id] for run in runs}
        return Group(
            self.container_id,
            self.epoch,
            planned.group_id,
            tuple(runs),
            names,
            objects,
            self.store_id,
        )

    def _run(self, first: int, end: int, objects: dict[str, ObjectRecord]) -> Run:
        chunks = self._chunks
        columns = [chunks.numbers[name][first:end].tolist() for name in _NUMBERS]
        held = []
        for name, _, start, length, place, block_segment, block_start, size, created_ms in zip(
            chunks.names_of(first, end), *columns, strict=True
        ):
            held.append(ChunkRecord(start, length, name, place, block_segment, block_start))
            if name not in objects:
                objects[name] = ObjectRecord(name, size, created_ms)
        return Run(columns[0][0], tuple(held))

    def outline(self) -> PlanOutline:
        """What a driver keeps of it: numbers. O(chunks)."""
        chunks, count = self._chunks, self._chunks.object_count
        moved = np.zeros(count, np.int64)
        sets: dict[int, tuple[int, ...]] = {}
        for number, planned in enumerate(self.groups):
            parts = [chunks.objects[first:end] for first, end in planned.stretches]
            objects, times = np.unique(np.concatenate(parts), return_counts=True)
            moved[objects] += times
            for each in objects.tolist():
                sets[each] = (*sets.get(each, ()), number)
        there = np.bincount(chunks.objects, minlength=count)
        freed = moved == there
        if self.is_cut:
            # Where the chunks here are as much as the object, none can live in another range.
            size, held = (
                np.zeros(count, np.int64),
                np.bincount(chunks.objects, chunks.length, count),
            )
            size[chunks.objects] = chunks.numbers["object_size"]
            freed &= held + NAMED_HEADER_BYTES_MAX * there >= size - size // 8
        shares: dict[tuple[int, ...], tuple[int, int]] = {}
        for each, groups in sets.items():
            sources, gone = shares.get(groups, (0, 0))
            shares[groups] = sources + 1, gone + int(freed[each])
        return PlanOutline(
            self.container_id,
            tuple(planned._replace(stretches=()) for planned in self.groups),
            _bounded([(groups, *counts) for groups, counts in shares.items()]),
        )


def plan_groups(
    segments: pa.Table,
    chunks: pa.Table,
    options: CompactionOptions,
    *,
    container_id: int,
    epoch: int,
    now_ms: int,
    store_id: str,
    dead: Ints | None = None,
) -> CompactionPlan:
    """What of a container is worth rewriting.

    `segments` and `chunks` are a snapshot's, `now_ms` the wall time of its copy.

    Of a range, whose cells are whole, `dead` has the hashes of the objects that all ranges together
    found to be dead.
    """
    table, names, choice = _scan(segments, chunks, options, container_id, now_ms)
    plan = CompactionPlan(container_id, epoch, table, names, store_id)
    if choice is None:
        return plan
    chosen, cell = choice.stretches, choice.cell
    if dead is None:
        left = _left_of(table, choice)
        chosen = chosen | (~chosen & left.is_dead(options)[table.objects])
    else:
        plan.is_cut = True
        chosen = chosen | (
            ~chosen & np.isin(table.object_hashes(), dead)[table.objects] & choice.may_touch
        )
    stretches = _cut_stretches(table, cell, chosen)
    plan.groups = [
        _planned(container_id, table, group) for group in _pack(table, stretches, options)
    ]
    _order(plan.groups, options.rewrite_job_order)
    return plan


def deadness_of(
    segments: pa.Table,
    chunks: pa.Table,
    options: CompactionOptions,
    *,
    container_id: int,
    now_ms: int,
) -> Deadness:
    """What a range leaves in objects that may be dead, or of which another range may hold
    chunks.
    """
    table, _, choice = _scan(segments, chunks, options, container_id, now_ms)
    if choice is None:
        return Deadness(*(np.zeros(0, np.int64) for _ in Deadness._fields))
    left = _left_of(table, choice)
    # Beside a block that is as long as its object there is no other. (Of a compressed one this
    # cannot be known: at worst such an object is emptied too soon.)
    has_room = left.bytes + HEADER_BYTES * (left.chunks + 1) < left.size
    some = (left.chunks > 0) & (has_room | left.is_dead(options))
    return Deadness(*(column[some] for column in left._replace(objects=table.object_hashes())))


def object_hash(name: str) -> int:
    """What stands for an object's name where there are very many: 64 bits, with a sign."""
    return int(mmh3.hash64(name)[0])


class _Choice(NamedTuple):
    """What stretches alone come to."""

    stretches: Flags
    may_touch: Flags
    cell: Ints


def _scan(
    segments: pa.Table, chunks: pa.Table, options: CompactionOptions, container_id: int, now_ms: int
) -> tuple[_Chunks, dict[int, str], _Choice | None]:
    """The chunks, the names of segments that may be touched, and what is chosen of stretches; None:
    nothing may be.
    """
    table = _Chunks(chunks)
    names: dict[int, str] = {
        segment_id: name
        for segment_id, name, merged_into in zip(
            _numbers(segments, "segment_id").tolist(),
            segments["name"].to_pylist(),
            segments["merged_into"].to_pylist(),
            strict=True,
        )
        if name is not None and merged_into is None and options.wants_segment(name)
    }
    if not len(table) or not options.wants_container(container_id):
        return table, names, None
    wanted = np.fromiter(names, np.int64, len(names))
    may_touch = np.isin(table.segment_id, wanted) & (
        table.numbers["object_created_ms"] <= now_ms - options.older_than_ms
    )
    cell = table.start // min(options.target_file_size_bytes, options.group_bytes_max)
    return (
        table,
        names,
        _Choice(_choose_stretches(table, cell, may_touch, options), may_touch, cell),
    )


def pieces_of(chunks: Sequence[ChunkRecord], join_bytes: int) -> int:
    """How many pieces neighbouring chunks are; as the plan counts them.

    For what a copy would leave.
    """
    return 1 + sum(
        not (
            left.object_name == right.object_name
            and 0
            <= right.block_offset - left.block_offset
            <= left.length + left.length // 2 + HEADER_BYTES_MAX
            and left.length + right.length > join_bytes
        )
        for left, right in pairwise(chunks)
    )


class _Chunks:
    """The columns of a chunks table as numpy arrays, sorted by segment and offset."""

    def __init__(self, table: pa.Table) -> None:
        numbers = {name: _numbers(table, name) for name in _NUMBERS}
        encoded: Any = table["object_name"].dictionary_encode().combine_chunks()
        objects: Ints = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if not _in_order(numbers["segment_id"], numbers["start_offset"]):
            order = np.lexsort((numbers["start_offset"], numbers["segment_id"]))
            numbers = {name: column[order] for name, column in numbers.items()}
            objects = objects[order]
        self.numbers = numbers
        self.segment_id = numbers["segment_id"]
        self.start = numbers["start_offset"]
        self.length = numbers["length"]
        self.objects = objects
        """Number of each chunk's object."""
        self._names = encoded.dictionary
        self.object_count = len(self._names)

    def names_of(self, first: int, end: int) -> list[str]:
        """The name of the object of each chunk of these rows."""
        names: list[str] = self._names.take(pa.array(self.objects[first:end])).to_pylist()
        return names

    def object_hashes(self) -> Ints:
        """`object_hash` of each object. O(objects)."""
        names: list[Any] = self._names.to_pylist()
        return np.fromiter(map(object_hash, names), np.int64, len(names))

    def __len__(self) -> int:
        return len(self.start)

    def follows(self) -> Flags:
        """Whether each chunk begins where the one before it ends."""
        result = np.zeros(len(self), bool)
        result[1:] = (self.segment_id[1:] == self.segment_id[:-1]) & (
            self.start[1:] == self.start[:-1] + self.length[:-1]
        )
        return result

    def lies_behind(self, join_bytes: int) -> Flags:
        """Whether each chunk lies behind the one before it in the same object, near enough, and
        need not be joined with it.
        """
        result = np.zeros(len(self), bool)
        place = self.numbers["block_offset"]
        apart = place[1:] - place[:-1]
        before = self.length[:-1]
        # Extents of 16 bytes make the table half of the payload: whatever the header says, it is
        # within this.
        near = (apart >= 0) & (apart <= before + before // 2 + HEADER_BYTES_MAX)
        result[1:] = (
            (self.objects[1:] == self.objects[:-1]) & near & (before + self.length[1:] > join_bytes)
        )
        return result


def _choose_stretches(
    table: _Chunks, cell: Ints, may_touch: Flags, options: CompactionOptions
) -> Flags:
    """The chunks of stretches with enough small pieces."""
    follows = table.follows()
    same_cell = np.concatenate(([False], cell[1:] == cell[:-1]))
    begins_piece = ~(follows & same_cell & table.lies_behind(options.join_bytes))
    piece_at = np.flatnonzero(begins_piece)
    size = np.add.reduceat(table.length, piece_at)
    # A piece is of one object and one segment: what its first chunk is, all are.
    fit = may_touch[piece_at] & (size < options.small_bytes)
    joined = (follows & same_cell)[piece_at] & fit & np.concatenate(([False], fit[:-1]))
    stretch = np.cumsum(~joined) - 1
    stretch_at = np.flatnonzero(~joined)
    stretch_end = np.append(stretch_at[1:], len(size))
    # Bytes behind each piece within its stretch: leading pieces larger than that stay.
    total = np.cumsum(size)
    behind = total[stretch_end[stretch] - 1] - total
    index = np.arange(len(size))
    kept_at = np.minimum.reduceat(np.where(size > behind, len(size), index), stretch_at)
    kept = index >= kept_at[stretch]
    count = stretch_end - np.minimum(kept_at, stretch_end)
    worth = fit & kept & (count >= options.min_input_files)[stretch]
    return np.repeat(worth, np.diff(np.append(piece_at, len(table))))


def _left_of(table: _Chunks, choice: _Choice) -> Deadness:
    """What stretches leave in each object, by its number."""
    objects, left, count = table.objects, ~choice.stretches, table.object_count
    size = np.zeros(count, np.int64)
    size[objects] = table.numbers["object_size"]
    return Deadness(
        np.arange(count),
        size,
        np.bincount(objects, left, count).astype(np.int64),
        np.bincount(objects, np.where(left, table.length, 0), count).astype(np.int64),
        np.bincount(objects, left & ~choice.may_touch, count).astype(np.int64),
    )


def _cut_stretches(table: _Chunks, cell: Ints, chosen: Flags) -> Iterator[tuple[int, int]]:
    """The chosen chunks as [first, end) of neighbours in a cell.

    As long as cells are, and the rest of a last chunk.
    """
    goes_on = table.follows() & chosen
    goes_on[1:] &= chosen[:-1] & (cell[1:] == cell[:-1])
    first = np.flatnonzero(chosen & ~goes_on)
    end = np.flatnonzero(chosen & ~np.append(goes_on[1:], False)) + 1
    for begin, stop in zip(first.tolist(), end.tolist(), strict=True):
        for at in range(begin, stop, GROUP_CHUNKS_MAX):
            yield at, min(stop, at + GROUP_CHUNKS_MAX)


def _pack(
    table: _Chunks, stretches: Iterable[tuple[int, int]], options: CompactionOptions
) -> Iterator[list[tuple[int, int]]]:
    """Stretches one after another into groups: full at the target, or beyond it where they would be
    small without.
    """
    total = np.concatenate(([0], np.cumsum(table.length)))
    target = min(options.target_file_size_bytes, options.group_bytes_max)
    held: list[tuple[int, int]] = []
    size = chunks = 0
    for first, end in stretches:
        more, count = int(total[end] - total[first]), end - first
        most = options.group_bytes_max if size < options.small_bytes else target
        if held and (size + more > most or chunks + count > GROUP_CHUNKS_MAX):
            yield held
            held, size, chunks = [], 0, 0
        held.append((first, end))
        size += more
        chunks += count
    if held:
        yield held


def _planned(container_id: int, table: _Chunks, stretches: list[tuple[int, int]]) -> PlannedGroup:
    digest = hashlib.sha256(f"{container_id:08x}".encode())
    names: list[str] = []
    size = 0
    segments = len({int(table.segment_id[first]) for first, _ in stretches})
    for first, end in stretches:
        for name in _NUMBERS:
            digest.update(table.numbers[name][first:end].astype("<i8").tobytes())
        names += table.names_of(first, end)
        size += int(table.length[first:end].sum())
    digest.update("\0".join(names).encode())
    return PlannedGroup(
        digest.hexdigest()[:GROUP_ID_DIGITS],
        tuple(stretches),
        size,
        segments,
        len(names),
        len(set(names)),
    )


def _order(groups: list[PlannedGroup], order: str) -> None:
    what, _, way = order.partition("-")
    if way:
        groups.sort(
            key=lambda each: each.bytes if what == "bytes" else each.sources, reverse=way == "desc"
        )


def _numbers(table: pa.Table, name: str) -> Ints:
    column: Ints = table[name].combine_chunks().to_numpy(zero_copy_only=False)
    return column.astype(np.int64, copy=False)


def _in_order(segment_id: Ints, start: Ints) -> bool:
    same = segment_id[1:] == segment_id[:-1]
    return bool(np.all((segment_id[1:] > segment_id[:-1]) | (same & (start[1:] >= start[:-1]))))
