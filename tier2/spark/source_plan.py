"""Planning a read: from segments and chunks of a catalog snapshot to partitions of about equal bytes.

Rules of this file:

- a range of rows is [start, end) of a segment: the rows whose first byte lies there, wherever they end; any cutting of it
  gives each row to exactly one part (tier2/spark/framing.py);
- lines can be found from anywhere, by the byte before; the rows of `raw` begin at multiples of their length; events cannot be
  found from the middle, so their segment is one part, unless the user says that chunks begin with events: then each part
  must end exactly where the next begins, which by induction from the first proves all borders right or fails the job;
- parts are cut where objects are, if that is near enough to equal sizes; small ones share a partition.

Pure: records and Arrow tables in, records out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentstore.contracts.chunks import ChunkRecord
from tier2.spark.source_errors import SourceCatalogError
from tier2.spark.source_filter import RowFilter
from tier2.spark.source_options import Format, SourceOptions

AHEAD_BYTES: Final = 1024 * 1024
"""Behind its end a part knows the chunks of so many bytes more, for its last row; a longer one asks the catalog."""
CUT_BYTES: Final = 64 * 1024
"""A chunk is cut at multiples of this: the least that is fetched of a block."""
SPLIT_BYTES_MIN: Final = 4 * 1024 * 1024
"""No smaller parts for the sake of `minPartitions`."""
OPEN_BYTES: Final = 1024 * 1024
"""What opening one more segment costs, in bytes read meanwhile."""


class SourceSegment(NamedTuple):
    """A segment as a snapshot has it."""

    container_id: int
    segment_id: int
    name: str
    start_offset: int
    storage_length: int
    """Bytes [start_offset, storage_length) are in Tier 2."""
    finished: bool
    """Sealed, and every byte of it is in Tier 2."""


class SourceChunk(NamedTuple):
    """A chunk and the size of the object it lies in."""

    chunk: ChunkRecord
    object_size: int


class RowRange(NamedTuple):
    """The rows of one segment that begin in [start, end): what one framer does, and what it needs for it."""

    segment: SourceSegment
    start: int
    end: int
    rows_from: int
    """Rows that begin before it are walked over and not given; only events need it."""
    limit: int
    """No byte from here on is read: the end of what is in Tier 2, or of a batch."""
    skip_first: bool = False
    """A line may have begun before `start`: the first row begins behind the first newline from `start - 1` on."""
    complete: bool = False
    """Nothing will ever follow `limit`: what stands before it without an end is a row."""
    exact_end: bool = False
    """`end` is said to be the border of an event."""
    chunks: tuple[SourceChunk, ...] = ()
    """They cover all that is read, and some bytes behind `end`."""

    @property
    def read_from(self) -> int:
        """The first byte needed."""
        return self.start - self.skip_first


class SegmentChunks:
    """The chunks of one segment out of a snapshot's table, in order."""

    def __init__(self, segment_id: int, table: pa.Table) -> None:
        self._segment_id = segment_id
        self._table = table
        self.starts: NDArray[np.int64] = table["start_offset"].to_numpy()

    def between(self, start: int, end: int) -> tuple[SourceChunk, ...]:
        """The chunks that cover [start, end). Raises SourceCatalogError if the table has a gap there."""
        if start >= end:
            return ()
        first = int(np.searchsorted(self.starts, start, "right")) - 1
        last = int(np.searchsorted(self.starts, end, "left"))
        found = tuple(_chunk(row) for row in self._table.slice(max(first, 0), last - max(first, 0)).to_pylist())
        position = start
        for each, _ in found:
            if each.start_offset > position:
                break
            position = each.end_offset
        if position < end:
            raise SourceCatalogError(
                f"the catalog has no chunk of segment {self._segment_id} at offset {position}, below {end}"
            )
        return found


def _chunk(row: dict[str, Any]) -> SourceChunk:
    return SourceChunk(
        ChunkRecord(
            row["start_offset"],
            row["length"],
            row["object_name"],
            row["block_offset"],
            row["block_segment_id"],
            row["block_start_offset"],
        ),
        row["object_size"],
    )


CHUNK_COLUMNS: Final = (
    "segment_id",
    "start_offset",
    "length",
    "object_name",
    "block_offset",
    "block_segment_id",
    "block_start_offset",
    "object_size",
)

Lost = Callable[[str, int, int, str], None]
"""Told of bytes that were asked for and are not there (segment, start, end, why): raises DataLossError, or notes it."""


def split_chunks(table: pa.Table) -> dict[int, SegmentChunks]:
    """The rows of a table of chunks, by segment."""
    ids = table["segment_id"].to_numpy()
    borders = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)] if len(ids) else [0]
    return {
        int(ids[first]): SegmentChunks(int(ids[first]), table.slice(first, last - first))
        for first, last in pairwise(borders)
    }


def batch_range(segment: SourceSegment, options: SourceOptions, rows: RowFilter, lost: Lost) -> RowRange | None:
    """What a batch reads of a segment; None: nothing. What was asked for and is truncated is told to `lost`."""
    start, end = segment.start_offset, segment.storage_length
    if options.start_offset is not None:
        if 0 < options.start_offset < start:
            lost(segment.name, options.start_offset, start, f"the segment is truncated up to {start}")
        start = max(start, options.start_offset)
    if options.end_offset is not None:
        end = min(end, options.end_offset)
    return row_range(segment, options, start, end, segment.storage_length, rows, complete=segment.finished)


def row_range(
    segment: SourceSegment,
    options: SourceOptions,
    start: int,
    end: int,
    limit: int,
    rows: RowFilter,
    *,
    complete: bool,
) -> RowRange | None:
    """The rows of [start, end) that `rows` lets through; None: there are none."""
    low, high = rows.offset_low, rows.offset_high
    rows_from = 0
    if options.format == "raw":
        # A row of the whole range is given as it is or not at all: where rows begin must not depend on the filter.
        piece = options.piece_bytes
        limit = end
        if high <= start:
            return None
        end = limit = min(end, -(-high // piece) * piece)
        if low > start:
            start = -(-low // piece) * piece
    elif options.format == "lines":
        start, end = max(start, low), min(end, high)
    else:
        rows_from, end = low, min(end, high)
    if start >= end or rows_from >= end:
        return None
    return RowRange(
        segment,
        start,
        end,
        rows_from,
        limit,
        skip_first=options.format == "lines" and start > segment.start_offset,
        complete=complete or (options.incomplete_tail and options.format == "lines"),
    )


def split_bytes(ranges: Sequence[RowRange], options: SourceOptions) -> int:
    """About how many bytes a partition gets."""
    total = sum(each.end - each.start for each in ranges)
    return min(options.partition_bytes, max(SPLIT_BYTES_MIN, -(-total // options.min_partitions)))


def cut_range(whole: RowRange, chunks: SegmentChunks | None, split: int, options: SourceOptions) -> Iterator[RowRange]:
    """The parts of a range, each of about `split` bytes, with their chunks; `chunks` None: nobody needs the bytes."""
    starts = chunks.starts if chunks is not None else np.empty(0, np.int64)
    borders = list(_borders(whole, starts, split, options))
    ahead = 0 if options.format == "raw" else AHEAD_BYTES
    for start, end in pairwise(borders):
        part = whole._replace(
            start=start,
            end=end,
            skip_first=whole.skip_first if start == whole.start else options.format == "lines",
            exact_end=whole.exact_end or (options.format == "events" and end != whole.end),
        )
        if chunks is not None:
            part = part._replace(chunks=chunks.between(part.read_from, min(end + ahead, whole.limit)))
        yield part


def _borders(whole: RowRange, starts: NDArray[np.int64], split: int, options: SourceOptions) -> Iterator[int]:
    """Where a range is cut, its own ends among them."""
    position = whole.start
    yield position
    while whole.end - position > split:
        position = _border(position, position + split, starts, options.format, options.piece_bytes)
        if position >= whole.end or (options.format == "events" and options.event_borders == "segment"):
            break
        yield position
    yield whole.end


def _border(start: int, wanted: int, starts: NDArray[np.int64], form: Format, piece: int) -> int:
    """Where a part ends that begins at `start` and should end near `wanted`."""
    if form == "raw":
        return max(wanted // piece, start // piece + 1) * piece
    if form == "events":
        index = int(np.searchsorted(starts, wanted, "left"))
        return int(starts[index]) if index < len(starts) else 2**63 - 1
    index = int(np.searchsorted(starts, wanted, "right")) - 1
    chunk_start = int(starts[index]) if index >= 0 else start
    if chunk_start > (start + wanted) // 2:
        return chunk_start
    cut = chunk_start + (wanted - chunk_start) // CUT_BYTES * CUT_BYTES
    return cut if cut > start else wanted


def pack(parts: Sequence[RowRange], split: int) -> list[tuple[RowRange, ...]]:
    """Parts, in their order, into partitions of about `split` bytes."""
    packed: list[tuple[RowRange, ...]] = []
    held: list[RowRange] = []
    weight = 0
    for part in parts:
        cost = part.end - part.start + OPEN_BYTES
        if held and weight + cost > split + OPEN_BYTES:
            packed.append(tuple(held))
            held, weight = [], 0
        held.append(part)
        weight += cost
    return [*packed, tuple(held)] if held else packed
