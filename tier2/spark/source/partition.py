"""SegmentPartition: what one task of a read gets, small enough for a driver that holds
thousands of them.

Ranges and chunks go as Arrow tables, compressed: some 30 bytes a range and as many a chunk.
Records are made of them in the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tier2.spark.source.chunks import ChunkTable, chunk_records
from tier2.spark.source.plan import RowPart, RowRange, SourceSegment

_SEGMENT: Final = SourceSegment._fields
_RANGE: Final = tuple(name for name in RowRange._fields if name not in {"segment", "chunks"})
_COUNT: Final = "chunk_count"
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")


class SegmentPartition(InputPartition):
    """What one task reads: ranges of rows, of one or several segments."""

    def __init__(self, parts: Sequence[RowPart]) -> None:
        super().__init__(None)
        self._ranges = _packed(_range_table(parts))
        chunks = _chunk_table(parts)
        self._chunks = _packed(chunks) if chunks is not None else None

    @property
    def ranges(self) -> Iterator[RowRange]:
        """The ranges with their chunks, made anew at each call."""
        table = _unpacked(self._ranges)
        chunks = chunk_records(_unpacked(self._chunks)) if self._chunks is not None else ()
        place = 0
        segments = zip(*(table[name].to_pylist() for name in _SEGMENT), strict=True)
        rest = zip(*(table[f"range_{name}"].to_pylist() for name in _RANGE), strict=True)
        counts: list[Any] = table[_COUNT].to_pylist()
        for segment, values, count in zip(segments, rest, counts, strict=True):
            given = dict(zip(_RANGE, values, strict=True))
            yield RowRange(SourceSegment(*segment), **given, chunks=chunks[place : place + count])
            place += count


def _range_table(parts: Sequence[RowPart]) -> pa.Table:
    columns: dict[str, Any] = {
        name: pa.array([getattr(part.rows.segment, name) for part in parts]) for name in _SEGMENT
    }
    columns |= {
        f"range_{name}": pa.array([getattr(part.rows, name) for part in parts]) for name in _RANGE
    }
    return pa.table({**columns, _COUNT: pa.array([part.last - part.first for part in parts])})


def _chunk_table(parts: Sequence[RowPart]) -> pa.Table | None:
    """The chunks of the parts, one part's behind the other's; those of one container lie
    together.
    """
    runs: list[tuple[ChunkTable, list[RowPart]]] = []
    for part in parts:
        if part.table is None:
            return None
        if not runs or runs[-1][0] is not part.table:
            runs.append((part.table, []))
        runs[-1][1].append(part)
    return pa.concat_tables([_taken(table, mine) for table, mine in runs])


def _taken(table: ChunkTable, parts: Sequence[RowPart]) -> pa.Table:
    rows = np.concatenate([np.arange(part.first, part.last) for part in parts])
    taken = table.table.take(pa.array(rows))
    # With the names of its own objects alone.
    names = taken["object_name"].cast(pa.string()).dictionary_encode()
    return taken.set_column(taken.schema.get_field_index("object_name"), "object_name", names)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table.unify_dictionaries().combine_chunks())
    return sink.getvalue().to_pybytes()


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
