"""A container's metadata as Arrow tables. Pure: records in, tables out.

Equal metadata make equal tables, byte for byte once they are encoded, in whatever parts they come.
Columns are built part by part, one pass over the records each. What belongs to a chunk's object is
joined by Arrow. It takes some four microseconds a chunk, in one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata
from tier2.catalog.catalog_copy import CatalogCopy, copy_catalog
from tier2.catalog.catalog_schema import BLOCK, CHUNKS, GARBAGE, LIVE, OBJECTS, SEGMENTS, conform

__all__ = [
    "SHARD_CHARACTERS",
    "CatalogTables",
    "TablesBuilder",
    "build_tables",
    "build_tables_of",
    "conform",
]

SHARD_CHARACTERS: Final = 2
"""The shard of an object is so many characters, the first, of its name."""
RECORDS_OF_A_PART: Final = 8192
"""Of a copy: a list is made a column with the interpreter's lock held, a millisecond or two."""

_INT = pa.int64()
_LIVE_CHUNKS = "live_chunks"
"""Of an object; no column of any table."""
_RECORDED = [field for field in SEGMENTS if field.name != "chunk_count"]
_OBJECT_FIELDS = pa.schema(
    [*(field for field in OBJECTS if field.name != "blocks"), pa.field(_LIVE_CHUNKS, _INT)]
)
_CHUNK_FIELDS = pa.schema(
    [CHUNKS.field("segment_id"), *(CHUNKS.field(name) for name in ChunkRecord._fields)]
)
_RELEASED_FIELDS = pa.schema([CHUNKS.field("object_name"), CHUNKS.field("length")])
_FIELDS_OF_CHUNK = [itemgetter(place) for place in range(len(ChunkRecord._fields))]


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
    builder = TablesBuilder()
    ids, counts = copy.segments["segment_id"], copy.segments["chunk_count"]
    for begin in range(0, len(ids), RECORDS_OF_A_PART):
        end = begin + RECORDS_OF_A_PART
        builder.add_segments({name: some[begin:end] for name, some in copy.segments.items()})
    # Of each chunk its segment: as often as the segment has chunks.
    of_chunks = chain.from_iterable(map(repeat, ids, counts))  # type: ignore[arg-type]
    for begin in range(0, len(copy.chunks), RECORDS_OF_A_PART):
        chunks = copy.chunks[begin : begin + RECORDS_OF_A_PART]
        builder.add_chunks(list(islice(of_chunks, len(chunks))), chunks)  # type: ignore[arg-type]
    for begin in range(0, len(copy.released), RECORDS_OF_A_PART):
        builder.add_released(copy.released[begin : begin + RECORDS_OF_A_PART])
    lives = len(copy.live_bytes)
    for begin in range(0, lives, RECORDS_OF_A_PART):
        end = min(begin + RECORDS_OF_A_PART, lives)
        numbers = (copy.live_bytes[begin:end], copy.live_chunks[begin:end])
        builder.add_live(copy.objects[begin:end], *numbers)
    dead = copy.objects[lives:]
    for begin in range(0, len(dead), RECORDS_OF_A_PART):
        end = begin + RECORDS_OF_A_PART
        builder.add_garbage(dead[begin:end], copy.unreferenced_ms[begin:end])
    return builder.build()


class TablesBuilder:
    """Tables of records that come in parts: any number of each kind, in any order of kinds.

    Segments and chunks come in the order of their tables, objects in any. What is added is not kept
    as Python's objects.
    """

    def __init__(self) -> None:
        self._segments: list[pa.RecordBatch] = []
        self._chunks: list[pa.RecordBatch] = []
        self._released: list[pa.RecordBatch] = []
        self._objects: list[pa.RecordBatch] = []

    def add_segments(self, columns: Mapping[str, Sequence[object]]) -> None:
        """Columns of the table `segments` by name; that of `chunk_count` is counted, and ignored
        here.
        """
        arrays: list[pa.Array[Any]] = [
            pa.array(columns[field.name], field.type) for field in _RECORDED
        ]
        self._segments.append(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_RECORDED)))

    def add_chunks(self, segment_ids: Sequence[int], chunks: Sequence[ChunkRecord]) -> None:
        """Chunks, and of each its segment."""
        columns = [segment_ids, *(list(map(field, chunks)) for field in _FIELDS_OF_CHUNK)]
        arrays: list[pa.Array[Any]] = [
            pa.array(column, field.type)
            for field, column in zip(_CHUNK_FIELDS, columns, strict=True)
        ]
        self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=_CHUNK_FIELDS))

    def add_released(self, chunks: Sequence[ChunkRecord]) -> None:
        """Chunks that objects count, and that are in no table: no segment has them any more."""
        columns: list[list[Any]] = [
            [chunk.object_name for chunk in chunks],
            [chunk.length for chunk in chunks],
        ]
        arrays: list[pa.Array[Any]] = [
            pa.array(column, field.type)
            for field, column in zip(_RELEASED_FIELDS, columns, strict=True)
        ]
        self._released.append(pa.RecordBatch.from_arrays(arrays, schema=_RELEASED_FIELDS))

    def add_live(
        self, records: Sequence[ObjectRecord], live_bytes: Sequence[int], live_chunks: Sequence[int]
    ) -> None:
        """Objects that chunks are in, and how much of them."""
        count = len(records)
        self._add_objects(records, LIVE, [None] * count, live_bytes, live_chunks)

    def add_garbage(self, records: Sequence[ObjectRecord], unreferenced_ms: Sequence[int]) -> None:
        """Objects that no chunk is in any more, and since when."""
        zeros = [0] * len(records)
        self._add_objects(records, GARBAGE, unreferenced_ms, zeros, zeros)

    def _add_objects(
        self,
        records: Sequence[ObjectRecord],
        state: str,
        unreferenced_ms: Sequence[int | None],
        live_bytes: Sequence[int],
        live_chunks: Sequence[int],
    ) -> None:
        columns: dict[str, Sequence[object]] = {
            "shard": [record.name[:SHARD_CHARACTERS] for record in records],
            "name": [record.name for record in records],
            "size": [record.size for record in records],
            "created_ms": [record.created_ms for record in records],
            "state": [state] * len(records),
            "unreferenced_ms": unreferenced_ms,
            "live_bytes": live_bytes,
            _LIVE_CHUNKS: live_chunks,
        }
        arrays: list[pa.Array[Any]] = [
            pa.array(columns[field.name], field.type) for field in _OBJECT_FIELDS
        ]
        self._objects.append(pa.RecordBatch.from_arrays(arrays, schema=_OBJECT_FIELDS))

    def build(self) -> CatalogTables:
        """The tables. Once.

        Raises ValueError if they do not fit together: a chunk's object is not there, or counts
        other chunks.
        """
        segments = _table(self._segments, pa.schema(_RECORDED))
        chunks = _table(self._chunks, _CHUNK_FIELDS)
        objects = _table(self._objects, _OBJECT_FIELDS)
        objects = objects.take(pc.sort_indices(objects["name"])).combine_chunks()
        objects = _without(objects, _table(self._released, _RELEASED_FIELDS))
        places = pc.index_in(chunks["object_name"], value_set=objects["name"])
        if places.null_count:
            (first,) = chunks.filter(pc.is_null(places)).slice(0, 1).to_pylist()
            raise ValueError(f"a chunk is in {first['object_name']}, which is not known")
        counted = _with_counts(segments, chunks)
        joined = _with_objects(chunks, objects, places)
        return CatalogTables(counted, joined, _with_blocks(objects, joined, places))


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    batches.clear()
    return table


def _without(objects: pa.Table, released: pa.Table) -> pa.Table:
    """The objects without what they count of chunks that are in no table."""
    if not released.num_rows:
        return objects
    counts = released.group_by("object_name", use_threads=False).aggregate(
        [("length", "sum"), ("length", "count")]
    )
    places: Any = pc.index_in(objects["name"], value_set=counts["object_name"])
    if len(places) - places.null_count != counts.num_rows:
        raise ValueError("a chunk that is to be released is in an object that is not known")
    for name, column in (("live_bytes", "length_sum"), (_LIVE_CHUNKS, "length_count")):
        taken: Any = counts[column].combine_chunks().take(places.combine_chunks())
        left = pc.subtract(objects[name], pc.fill_null(taken, pa.scalar(0, _INT)))
        place = objects.schema.get_field_index(name)
        objects = objects.set_column(place, objects.schema.field(place), left)
    return objects


def _with_counts(segments: pa.Table, chunks: pa.Table) -> pa.Table:
    counts = chunks.group_by("segment_id", use_threads=False).aggregate([("segment_id", "count")])
    places: Any = pc.index_in(segments["segment_id"], value_set=counts["segment_id"])
    if len(places) - places.null_count != counts.num_rows:
        raise ValueError("a chunk is of a segment that is not known")
    found: Any = counts["segment_id_count"].combine_chunks().take(places.combine_chunks())
    whole: Any = pc.fill_null(found, pa.scalar(0, _INT))
    columns = [*segments.columns, whole]
    return pa.Table.from_arrays(columns, schema=SEGMENTS)


def _with_objects(chunks: pa.Table, objects: pa.Table, places: Any) -> pa.Table:
    of_object = objects.select(["size", "created_ms"]).take(places)
    return pa.Table.from_arrays([*chunks.columns, *of_object.columns], schema=CHUNKS)


def _with_blocks(objects: pa.Table, chunks: pa.Table, places: Any) -> pa.Table:
    ends: Any = pc.cumulative_sum(objects[_LIVE_CHUNKS]).cast(pa.int32()).combine_chunks()
    if (ends[-1].as_py() if len(ends) else 0) != chunks.num_rows:
        raise ValueError("objects count more or fewer chunks than there are")
    by_object = pc.sort_indices(
        pa.table(
            {
                "object": places,
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
    mine = places.take(by_object).cast(_INT).combine_chunks()
    if not pc.list_parent_indices(blocks).equals(mine):
        raise ValueError("objects count other chunks than those in them")
    columns = [blocks if field.name == "blocks" else objects[field.name] for field in OBJECTS]
    return pa.Table.from_arrays(columns, schema=OBJECTS)
