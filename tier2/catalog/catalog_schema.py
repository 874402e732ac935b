"""The columns of a snapshot's tables, and how tables of other versions are brought to them.

Rules of this file:

- numbers are int64, also those that are unsigned elsewhere: Spark has no unsigned 64 bits, and none
  reaches 2**63;
- a column is added at the end, nullable, with the minor version it came with (`ADDED_IN`); a table
  without it is older, and gets nulls. A column never changes its meaning or its type: that is
  another major version, which is refused.

Pure: Arrow tables in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tier2.catalog.catalog_format_error import CatalogFormatError

SCHEMA_VERSION: Final = "1.0"
"""Major and minor, of all tables together."""
ADDED_IN: Final = b"added_in"
"""Metadata of a field that came after the first minor version: which one.

Tables may lack such a column.
"""


def _must(name: str, kind: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=False)


SEGMENTS: Final = pa.schema(
    [
        _must("segment_id", pa.int64()),
        pa.field("name", pa.string()),  # null of a merged segment: it has lost its name
        _must("start_offset", pa.int64()),
        _must("length", pa.int64()),
        _must("storage_length", pa.int64()),
        _must("sealed", pa.bool_()),
        pa.field("merged_into", pa.int64()),
        _must("created_ms", pa.int64()),
        _must("last_modified_ms", pa.int64()),
        _must("chunk_count", pa.int64()),
    ]
)
"""A row a segment, by segment_id."""

CHUNKS: Final = pa.schema(
    [
        _must("segment_id", pa.int64()),
        _must("start_offset", pa.int64()),
        _must("length", pa.int64()),
        _must("object_name", pa.string()),
        _must("block_offset", pa.int64()),
        _must("block_segment_id", pa.int64()),
        _must("block_start_offset", pa.int64()),
        _must("object_size", pa.int64()),
        _must("object_created_ms", pa.int64()),
    ]
)
"""A row a chunk, by segment_id and start_offset."""

BLOCK: Final = pa.struct(
    [
        pa.field("block_offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("block_segment_id", pa.int64()),
        pa.field("block_start_offset", pa.int64()),
        pa.field("segment_id", pa.int64()),
        pa.field("start_offset", pa.int64()),
    ]
)
"""A chunk, seen from the object it lies in."""

OBJECTS: Final = pa.schema(
    [
        _must("shard", pa.string()),
        _must("name", pa.string()),
        _must("size", pa.int64()),
        _must("created_ms", pa.int64()),
        _must("state", pa.string()),
        pa.field("unreferenced_ms", pa.int64()),
        _must("live_bytes", pa.int64()),
        _must("blocks", pa.list_(BLOCK)),
    ]
)
"""A row an object, by name; a row group holds rows of one shard."""

LIVE: Final = "live"
GARBAGE: Final = "garbage"

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "segments": SEGMENTS,
    "chunks": CHUNKS,
    "objects": OBJECTS,
}


def check_version(version: str, of_what: str) -> None:
    """Raise CatalogFormatError for a version whose tables this program cannot read.

    A newer minor one only has more.
    """
    major, dot, minor = version.partition(".")
    if not dot or not major.isdecimal() or not minor.isdecimal():
        raise CatalogFormatError(f"{of_what}: {version!r} is no schema version")
    known = SCHEMA_VERSION.partition(".")[0]
    if major != known:
        raise CatalogFormatError(
            f"{of_what}: schema version {version}; this program reads {known}.x"
        )


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`, in its order and of its types.

    Columns that the schema does not have are left out; one that came with a later minor version
    than the table is null throughout. Raises CatalogFormatError for a column that is missing, of
    another type, or null where none may be.
    """
    return pa.Table.from_arrays([_column(table, field) for field in schema], schema=schema)


def _column(table: pa.Table, field: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    places = table.schema.get_all_field_indices(field.name)
    if len(places) > 1:
        raise CatalogFormatError(f"column {field.name} is there {len(places)} times")
    if not places:
        if ADDED_IN not in (field.metadata or {}):
            raise CatalogFormatError(
                f"column {field.name} is missing; there are {', '.join(table.column_names)}"
            )
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(places[0])
    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise CatalogFormatError(
                f"column {field.name} is {column.type}, not {field.type}: {error}"
            ) from None
    if not field.nullable and column.null_count:
        raise CatalogFormatError(f"column {field.name} has {column.null_count:,} nulls")
    return column
