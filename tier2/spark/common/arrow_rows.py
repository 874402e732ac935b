"""Arrow tables on their way through Spark: as schemas for Spark, and as bytes in a column.

Pure, without pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_DDL: Final[Mapping[pa.DataType, str]] = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
}


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark's functions take it."""
    return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in schema)


def is_text(column: pa.ChunkedArray[Any], text: str) -> Any:
    """Where a column says `text`; null where it is null."""
    return pc.equal(column, pa.scalar(str(text), pa.string()))


def pack(table: pa.Table) -> bytes:
    """The table as bytes, for a row that carries one."""
    # Of empty slices among its chunks Arrow would write all that they are slices of.
    table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack(data: bytes) -> pa.Table:
    """What `pack` made bytes of. No copy of the columns."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
