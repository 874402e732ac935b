"""Where the bytes of segments lie by a snapshot: its table of chunks as columns, looked up by
segment and offset.

A segment's chunks are a stretch of rows, and become records only where they are read: a plan of
a million segments holds some numbers for each. Pure: Arrow tables in, places and records out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentstore.contracts.chunks import ChunkRecord
from tier2.spark.source.errors import SourceCatalogError

CHUNK_COLUMNS: Final = (
    "segment_id",
    "start_offset",
    "length",
    "object_name",
    "block_offset",
    "block_segment_id",
    "block_start_offset",
    "object_size",
    "object_created_ms",
)


class SourceChunk(NamedTuple):
    """A chunk and the size of the object it lies in."""

    chunk: ChunkRecord
    object_size: int
    created_ms: int = 0
    """When the object was made, by the clock of the store's owner; milliseconds since 1970 UTC."""


class ChunkTable:
    """The chunks of a container, by segment and start offset; names of objects are held once
    each.
    """

    def __init__(self, table: pa.Table) -> None:
        """`table` has CHUNK_COLUMNS, in the order of the catalog."""
        coded: Any = table["object_name"].dictionary_encode().combine_chunks()
        place = table.schema.get_field_index("object_name")
        self.table = table.set_column(place, "object_name", coded).combine_chunks()
        self.segment_ids: NDArray[np.int64] = table["segment_id"].to_numpy()
        self.starts: NDArray[np.int64] = table["start_offset"].to_numpy()
        self.ends: NDArray[np.int64] = self.starts + table["length"].to_numpy()
        self.objects: NDArray[np.int32] = coded.indices.to_numpy()
        """A number for each chunk's object."""
        self.places: NDArray[np.int64] = table["block_offset"].to_numpy()

    def segments(self) -> dict[int, SegmentChunks]:
        """The chunks of each segment."""
        if not len(self.segment_ids):
            return {}
        borders = [
            0,
            *(np.flatnonzero(np.diff(self.segment_ids)) + 1).tolist(),
            len(self.segment_ids),
        ]
        ids = self.segment_ids[borders[:-1]].tolist()
        spans = zip(ids, pairwise(borders), strict=True)
        return {
            segment_id: SegmentChunks(segment_id, self, first, last)
            for segment_id, (first, last) in spans
        }


class SegmentChunks:
    """The chunks of one segment, in order: rows [first, last) of a table."""

    __slots__ = ("_first", "_last", "_segment_id", "table")

    def __init__(self, segment_id: int, table: ChunkTable, first: int, last: int) -> None:
        self._segment_id = segment_id
        self.table = table
        self._first = first
        self._last = last

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where in the segment each begins."""
        return self.table.starts[self._first : self._last]

    @property
    def created_ms(self) -> NDArray[np.int64]:
        """When each chunk's object was made."""
        column: Any = self.table.table["object_created_ms"]
        found: NDArray[np.int64] = column.slice(self._first, self._last - self._first).to_numpy()
        return found

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The rows of the table that cover [start, end). Raises SourceCatalogError if they have
        a gap there.
        """
        if start >= end:
            return self._first, self._first
        first, last = self._first, self._last
        starts, ends = self.table.starts, self.table.ends
        if last - first > 1:
            mine = starts[first:last]
            last = first + int(np.searchsorted(mine, end, "left"))
            first += max(int(np.searchsorted(mine, start, "right")) - 1, 0)
        if first >= last or starts[first] > start:
            raise self._gap(start, end)
        # Where one begins behind all that end before it, nothing covers what lies between.
        reached = np.maximum.accumulate(ends[first:last]) if last - first > 1 else ends[first:last]
        gaps = np.flatnonzero(starts[first + 1 : last] > reached[:-1])
        if len(gaps):
            raise self._gap(max(start, int(reached[gaps[0]])), end)
        if reached[-1] < end:
            raise self._gap(max(start, int(reached[-1])), end)
        return first, last

    def between(self, start: int, end: int) -> tuple[SourceChunk, ...]:
        """The chunks that cover [start, end). Raises SourceCatalogError if the table has a gap
        there.
        """
        first, last = self.span(start, end)
        return chunk_records(self.table.table.slice(first, last - first))

    def _gap(self, position: int, end: int) -> SourceCatalogError:
        return SourceCatalogError(
            f"the catalog has no chunk of segment {self._segment_id} at offset "
            f"{position}, below {end}"
        )


def chunk_records(table: pa.Table) -> tuple[SourceChunk, ...]:
    """The rows of a table of chunks as records."""
    columns = [
        table[name].to_pylist()
        for name in (*ChunkRecord._fields, "object_size", "object_created_ms")
    ]
    return tuple(
        SourceChunk(ChunkRecord(*row[:-2]), row[-2], row[-1]) for row in zip(*columns, strict=True)
    )


def split_chunks(table: pa.Table) -> dict[int, SegmentChunks]:
    """The rows of a table of chunks, by segment."""
    return ChunkTable(table).segments()
