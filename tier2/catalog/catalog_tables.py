"""A container's metadata as Arrow tables. Pure: records in, tables out.

Equal metadata make equal tables, byte for byte once they are encoded. Columns are built whole, one
pass over the records each, and what belongs to a chunk's object is joined by Arrow: some four
microseconds a chunk, in one thread.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.metadata import ContainerMetadata
from tier2.catalog.catalog_copy import CatalogCopy, copy_catalog
from tier2.catalog.catalog_schema import BLOCK, CHUNKS, GARBAGE, LIVE, OBJECTS, SEGMENTS, conform

__all__ = ["SHARD_CHARACTERS", "CatalogTables", "build_tables", "build_tables_of", "conform"]

SHARD_CHARACTERS = 2
"""The shard of an object is so many characters, the first, of its name."""

_INT = pa.int64()
_LIVE_CHUNKS = "live_chunks"
"""Of an object; no column of any table."""


class CatalogTables(NamedTuple):
    """The tables of one snapshot, of the schemas of `catalog_schema`."""

    segments: pa.Table
    chunks: pa.Table
    objects: pa.Table


def build_tables(metadata: ContainerMetadata) -> CatalogTables:
    """The tables of these metadata, which must not change meanwhile. O(everything)."""
    return build_tables_of(copy_catalog(metadata))


def build_tables_of(copy: CatalogCopy) -> CatalogTables:
    """The tables of a copy. O(everything).

    No step of it holds the interpreter for long: what Python would sort in one go, Arrow sorts.
    """
    listed, order = _objects_but_blocks(copy)
    index_of = {record.name: index for index, record in enumerate(copy.objects)}
    places = pa.array([index_of[chunk.object_name] for chunk in copy.chunks], _INT)
    # The order of an order is where each now is.
    object_index = pc.sort_indices(order).take(places)
    chunks = _chunks(copy, listed, object_index)
    return CatalogTables(_segments(copy), chunks, _with_blocks(listed, chunks, object_index))


def _segments(copy: CatalogCopy) -> pa.Table:
    columns: list[pa.Array[Any]] = [
        pa.array(copy.segments[field.name], field.type) for field in SEGMENTS
    ]
    return pa.Table.from_arrays(columns, schema=SEGMENTS)


def _chunks(
    copy: CatalogCopy, objects: dict[str, pa.Array[Any]], object_index: pa.Array[Any]
) -> pa.Table:
    ids, counts = copy.segments["segment_id"], copy.segments["chunk_count"]
    # Of each chunk the place of its segment: as often as the segment has chunks.
    repeated = map(repeat, range(len(ids)), counts)  # type: ignore[arg-type]
    segment_index = pa.array(chain.from_iterable(repeated), _INT)
    columns: list[pa.Array[Any]] = [
        pa.array(ids, _INT).take(segment_index),
        pa.array([chunk.start_offset for chunk in copy.chunks], _INT),
        pa.array([chunk.length for chunk in copy.chunks], _INT),
        pa.array([chunk.object_name for chunk in copy.chunks], pa.string()),
        pa.array([chunk.block_offset for chunk in copy.chunks], _INT),
        pa.array([chunk.block_segment_id for chunk in copy.chunks], _INT),
        pa.array([chunk.block_start_offset for chunk in copy.chunks], _INT),
        objects["size"].take(object_index),
        objects["created_ms"].take(object_index),
    ]
    return pa.Table.from_arrays(columns, schema=CHUNKS)


def _objects_but_blocks(copy: CatalogCopy) -> tuple[dict[str, pa.Array[Any]], pa.Array[Any]]:
    """The columns by name of the object, and in which order the copy's objects have come to
    stand.
    """
    lives, dead = len(copy.live_bytes), len(copy.unreferenced_ms)
    names = pa.array([record.name for record in copy.objects], pa.string())
    columns: dict[str, pa.Array[Any]] = {
        "shard": pa.array([record.name[:SHARD_CHARACTERS] for record in copy.objects], pa.string()),
        "name": names,
        "size": pa.array([record.size for record in copy.objects], _INT),
        "created_ms": pa.array([record.created_ms for record in copy.objects], _INT),
        "state": pa.array([LIVE] * lives + [GARBAGE] * dead, pa.string()),
        "unreferenced_ms": pa.array([None] * lives + copy.unreferenced_ms, _INT),
        "live_bytes": pa.array(copy.live_bytes + [0] * dead, _INT),
        _LIVE_CHUNKS: pa.array(copy.live_chunks + [0] * dead, _INT),
    }
    order = pc.sort_indices(names)
    return {name: column.take(order) for name, column in columns.items()}, order


def _with_blocks(
    listed: dict[str, pa.Array[Any]], chunks: pa.Table, object_index: pa.Array[Any]
) -> pa.Table:
    ends: Any = pc.cumulative_sum(listed[_LIVE_CHUNKS]).cast(pa.int32())
    assert (ends[-1].as_py() if len(ends) else 0) == chunks.num_rows, (
        "every chunk is counted by its object"
    )
    by_object = pc.sort_indices(
        pa.table(
            {
                "object": object_index,
                "block_offset": chunks["block_offset"],
                "segment_id": chunks["segment_id"],
            }
        ),
        [("object", "ascending"), ("block_offset", "ascending"), ("segment_id", "ascending")],
    )
    fields = [chunks[field.name].take(by_object).combine_chunks() for field in BLOCK]
    blocks = pa.ListArray.from_arrays(
        pa.concat_arrays([pa.array([0], pa.int32()), ends]),
        pa.StructArray.from_arrays(fields, fields=list(BLOCK)),
    )
    columns = [blocks if field.name == "blocks" else listed[field.name] for field in OBJECTS]
    return pa.Table.from_arrays(columns, schema=OBJECTS)
