"""A container's plan made range by range: what a planning task reads, and how ranges exchange which
objects are dead.

Rules of this file:

- a range is row groups of `chunks`, and has the cells that begin in it, whole. The first rows of a
  range that belong to a cell of the one before are that one's, and for the last cell rows of the
  next are read;
- a container of one range is planned at once. Of others each range first reports what it leaves of
  objects (`left_rows`). All rows of an object come together somewhere (`dead_rows`), and each range
  learns of its own that are dead.

Coroutines over ObjectStorage, and Arrow tables; no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tier2.catalog.catalog_groups import TableGroups, open_groups
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_schema import CHUNKS
from tier2.object_storage import ObjectStorage
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import (
    CompactionPlan,
    Deadness,
    PlannedGroup,
    PlanOutline,
    deadness_of,
    plan_groups,
)

CHUNKS_PER_RANGE: Final = 1_000_000
"""Of one planning task, about: 300 bytes each while it plans."""
SEGMENT_COLUMNS: Final = ("segment_id", "name", "merged_into")

_RANGES: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("container_id", pa.int64()),
    pa.field("part", pa.int64()),
    pa.field("parts", pa.int64()),
    pa.field("object", pa.int64()),
]
RANGES: Final = pa.schema(_RANGES)
"""A range to plan, in a row whose object is null; and in others, objects of it that are dead."""

_LEFT: Final[list[pa.Field[Any]]] = [
    *(field for field in _RANGES if field.name != "bin"),
    pa.field("size", pa.int64()),
    pa.field("chunks", pa.int64()),
    pa.field("bytes", pa.int64()),
    pa.field("untouchable", pa.int64()),
]
LEFT: Final = pa.schema(_LEFT)
"""What a range leaves of an object."""

_PLANNED: Final[list[pa.Field[Any]]] = [
    pa.field("container_id", pa.int64()),
    pa.field("part", pa.int64()),
    pa.field("group_id", pa.string()),
    pa.field("bytes", pa.int64()),
    pa.field("segments", pa.int64()),
    pa.field("chunks", pa.int64()),
    pa.field("sources", pa.int64()),
    pa.field("data", pa.binary()),
]
PLANNED: Final = pa.schema(_PLANNED)
"""A group a row, encoded in `data`; behind those of a range a row without a group, whose data are
the plan's shares.
"""


class ChunkRange(NamedTuple):
    """One of `parts` ranges of a container's chunks."""

    container_id: int
    part: int
    parts: int


def ranges_of(manifests: Iterable[Manifest]) -> Iterator[ChunkRange]:
    """The ranges of some containers. Reads nothing: how many rows there are the manifests say."""
    for manifest in manifests:
        parts = max(1, -(-manifest.tables["chunks"].rows // CHUNKS_PER_RANGE))
        for part in range(parts):
            yield ChunkRange(manifest.container_id, part, parts)


async def read_range(
    storage: ObjectStorage, manifest: Manifest, where: ChunkRange, options: CompactionOptions
) -> tuple[pa.Table, pa.Table]:
    """Segments and chunks of a range, its cells whole.

    Raises CatalogFormatError, StorageUnavailableError.
    """
    groups = await open_groups(storage, manifest, "chunks", CHUNKS.names)
    segments = await open_groups(storage, manifest, "segments", SEGMENT_COLUMNS)
    place = groups.range(where.part, where.parts)
    if place is None or place.start == place.stop:
        return await segments.read(0, 0), await groups.read(0, 0)
    size = min(options.target_file_size_bytes, options.group_bytes_max)
    rows = await groups.read(place.start, place.stop)
    if place.start:
        before = await groups.read(place.start - 1, place.start)
        rows = _behind_cell(rows, _cell(before, before.num_rows - 1, size), size)
    if rows.num_rows:
        rows = await _to_the_end_of_its_cell(groups, rows, place.stop, size)
    ids = rows["segment_id"]
    if not rows.num_rows:
        return await segments.read(0, 0), rows
    least, most = int(ids[0].as_py() or 0), int(ids[-1].as_py() or 0)
    known = await segments.read(*segments.of_segments(least, most))
    return known.filter(pc.is_in(known["segment_id"], value_set=pc.unique(ids))), rows


def _cell(rows: pa.Table, row: int, size: int) -> tuple[int, int]:
    return int(rows["segment_id"][row].as_py() or 0), int(
        rows["start_offset"][row].as_py() or 0
    ) // size


def _in_cell(rows: pa.Table, cell: tuple[int, int], size: int) -> int:
    """How many of the first rows are in this cell."""
    ids, starts = rows["segment_id"].to_numpy(), rows["start_offset"].to_numpy()
    others = np.flatnonzero((ids != cell[0]) | (starts // size != cell[1]))
    return int(others[0]) if len(others) else rows.num_rows


def _behind_cell(rows: pa.Table, cell: tuple[int, int], size: int) -> pa.Table:
    return rows.slice(_in_cell(rows, cell, size))


async def _to_the_end_of_its_cell(
    groups: TableGroups, rows: pa.Table, stop: int, size: int
) -> pa.Table:
    cell = _cell(rows, rows.num_rows - 1, size)
    tables = [rows]
    for group in range(stop, len(groups)):
        more = await groups.read(group, group + 1)
        count = _in_cell(more, cell, size)
        tables.append(more.slice(0, count))
        if count < more.num_rows:
            break
    return pa.concat_tables(tables)


async def left_rows(
    storage: ObjectStorage, manifest: Manifest, where: ChunkRange, options: CompactionOptions
) -> pa.Table:
    """LEFT of one range."""
    segments, chunks = await read_range(storage, manifest, where, options)
    left = deadness_of(
        segments, chunks, options, container_id=manifest.container_id, now_ms=manifest.time_ms
    )._asdict()
    count = len(left["size"])
    columns: list[Any] = [pa.array(np.full(count, each)) for each in where]
    columns += [
        pa.array(left[name]) for name in ("objects", "size", "chunks", "bytes", "untouchable")
    ]
    return pa.Table.from_arrays(columns, schema=LEFT)


def dead_rows(left: pa.Table, options: CompactionOptions) -> pa.Table:
    """RANGES: the dead ones of objects, all of whose rows are in `left`, in each range that has
    chunks of them.
    """
    keys = ["container_id", "object"]
    sums = [("chunks", "sum"), ("bytes", "sum"), ("untouchable", "sum"), ("size", "max")]
    # The stubs want more of a tuple.
    found = left.group_by(keys).aggregate(sums)  # type: ignore[arg-type]
    numbers = [
        found[name].to_numpy()
        for name in ("object", "size_max", "chunks_sum", "bytes_sum", "untouchable_sum")
    ]
    dead = found.filter(pa.array(Deadness(*numbers).is_dead(options))).select(keys)
    rows = left.select(["container_id", "part", "parts", "object"]).join(
        dead, keys, join_type="inner"
    )
    return (
        rows.append_column("bin", pa.nulls(rows.num_rows, pa.int32()))
        .select(RANGES.names)
        .cast(RANGES)
    )


async def plan_range(
    storage: ObjectStorage,
    manifest: Manifest,
    where: ChunkRange,
    options: CompactionOptions,
    dead: Sequence[int] = (),
) -> CompactionPlan:
    """The plan of one range; `dead` are the objects that all ranges together found to be so, if
    there is more than one.
    """
    segments, chunks = await read_range(storage, manifest, where, options)
    return plan_groups(
        segments,
        chunks,
        options,
        container_id=manifest.container_id,
        epoch=manifest.epoch,
        now_ms=manifest.time_ms,
        store_id=manifest.store_id,
        dead=None if where.parts == 1 else np.array(dead, np.int64),
    )


def planned_rows(plan: CompactionPlan, part: int, *, with_data: bool = True) -> pa.Table:
    """PLANNED of one range."""
    outline = plan.outline()
    rows: list[dict[str, Any]] = [
        {
            "container_id": plan.container_id,
            "part": part,
            "group_id": planned.group_id,
            "bytes": planned.bytes,
            "segments": planned.segments,
            "chunks": planned.chunks,
            "sources": planned.sources,
            "data": plan.group(planned).encode() if with_data else None,
        }
        for planned in plan.groups
    ]
    shares = json.dumps(outline.shares).encode()
    rows.append({"container_id": plan.container_id, "part": part, "data": shares})
    return pa.Table.from_pylist(rows, schema=PLANNED)


def outlines_of(rows: pa.Table) -> Iterator[tuple[PlanOutline, Mapping[str, bytes]]]:
    """Of PLANNED each range's outline, and its groups' data by id; by container and range."""
    found: dict[tuple[int, int], tuple[list[PlannedGroup], dict[str, bytes], list[Any]]] = {}
    for row in rows.to_pylist():
        groups, datas, shares = found.setdefault((row["container_id"], row["part"]), ([], {}, []))
        if row["group_id"] is None:
            shares += json.loads(row["data"])
            continue
        numbers = (row[name] for name in ("bytes", "segments", "chunks", "sources"))
        groups.append(PlannedGroup(row["group_id"], (), *numbers))
        datas[row["group_id"]] = bytes(row["data"] or b"")
    for (container_id, _), (groups, datas, shares) in sorted(
        found.items(), key=lambda each: each[0]
    ):
        told = tuple((tuple(places), sources, freed) for places, sources, freed in shares)
        yield PlanOutline(container_id, tuple(groups), told), datas
