"""Planning a read: which rows of which segments, and where a long range of them may be cut.

Rules of this file:

- a range of rows is [start, end) of a segment: the rows whose first byte lies there, wherever they
  end. Any cutting of it gives each row to exactly one part (tier2/spark/source/framing.py);
- lines can be found from anywhere, by the byte before, and the rows of `raw` begin at multiples of
  their length. Events cannot be found from the middle, so their segment is one part, unless the
  user says that chunks begin with events. Then each part must end exactly where the next begins,
  which by induction from the first proves all borders right or fails the job;
- parts are cut where objects are, if that is near enough to equal sizes. What shares a
  partition: `source.packing`.

Pure: records and Arrow tables in, records out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tier2.spark.source.chunks import ChunkTable, SegmentChunks, SourceChunk
from tier2.spark.source.filter import RowFilter
from tier2.spark.source.options import Format, SourceOptions

AHEAD_BYTES: Final = 1024 * 1024
"""Behind its end a part knows the chunks of so many bytes more, for its last row; a longer one asks
the catalog.
"""
CUT_BYTES: Final = 64 * 1024
"""A chunk is cut at multiples of this: the least that is fetched of a block."""


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
    created_ms: int = 0
    modified_ms: int = 0
    """When it was made and when it was last changed, as of the snapshot: milliseconds since 1970
    UTC.
    """


class RowRange(NamedTuple):
    """The rows of one segment that begin in [start, end): what one framer does, and what it needs
    for it.
    """

    segment: SourceSegment
    start: int
    end: int
    rows_from: int
    """Rows that begin before it are walked over and not given; only events need it."""
    limit: int
    """No byte from here on is read: the end of what is in Tier 2, or of a batch."""
    skip_first: bool = False
    """A line may have begun before `start`: the first row begins behind the first newline from
    `start - 1` on.
    """
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


Lost = Callable[[str, int, int, str], None]
"""Called with bytes that were asked for and are not there (segment, start, end, why): raises
DataLossError, or notes it.
"""


def batch_range(
    segment: SourceSegment, options: SourceOptions, rows: RowFilter, lost: Lost
) -> RowRange | None:
    """What a batch reads of a segment; None: nothing.

    What was asked for and is truncated is asked to `lost`.
    """
    start, end = segment.start_offset, segment.storage_length
    wanted = options.starts.get(segment.name, options.start_offset)
    if wanted is not None:
        if 0 < wanted < start:
            lost(segment.name, wanted, start, f"the segment is truncated up to {start}")
        start = max(start, wanted)
    if options.end_offset is not None:
        end = min(end, options.end_offset)
    return row_range(
        segment, options, start, end, segment.storage_length, rows, complete=segment.finished
    )


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
        # A row of the whole range is given as it is or not at all: where rows begin must not depend
        # on the filter.
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


def stored_since(
    rows: RowRange, chunks: SegmentChunks, since_ms: int, options: SourceOptions
) -> RowRange | None:
    """The rows from the first byte on that lies in an object made at that time or later; None:
    there are none.

    An object is made after its bytes were appended: no row appended since then is left out.
    """
    place = place_since(chunks, since_ms)
    if place is None or place >= rows.end:
        return None
    if place <= rows.start:
        return rows
    if options.format == "raw":
        return rows._replace(
            start=max(rows.start, place // options.piece_bytes * options.piece_bytes)
        )
    if options.format == "lines":
        return rows._replace(start=place, skip_first=True)
    if options.event_borders == "chunks":
        return rows._replace(start=place)
    return rows._replace(rows_from=max(rows.rows_from, place))


def place_since(chunks: SegmentChunks, since_ms: int) -> int | None:
    """Where the first chunk begins whose object was made at that time or later; None: there is
    none.
    """
    later = np.flatnonzero(chunks.created_ms >= since_ms)
    return int(chunks.starts[later[0]]) if len(later) else None


class RowPart(NamedTuple):
    """A range of rows and its chunks: rows [first, last) of a table; no table: the query needs no
    bytes.
    """

    rows: RowRange
    table: ChunkTable | None = None
    first: int = 0
    last: int = 0

    @property
    def size(self) -> int:
        """Bytes of the range."""
        return self.rows.end - self.rows.start


def whole_part(rows: RowRange, chunks: SegmentChunks | None, options: SourceOptions) -> RowPart:
    """A range that is not cut, with its chunks. Raises SourceCatalogError if they have a gap."""
    if chunks is None:
        return RowPart(rows)
    ahead = 0 if options.format == "raw" else AHEAD_BYTES
    return RowPart(
        rows, chunks.table, *chunks.span(rows.read_from, min(rows.end + ahead, rows.limit))
    )


def cut_range(
    whole: RowRange, chunks: SegmentChunks | None, split: int, options: SourceOptions
) -> Iterator[RowPart]:
    """The parts of a range, each of about `split` bytes, with their chunks; `chunks` None: the
    query needs no bytes.
    """
    starts = chunks.starts if chunks is not None else np.empty(0, np.int64)
    borders = list(_borders(whole, starts, split, options))
    for start, end in pairwise(borders):
        part = whole._replace(
            start=start,
            end=end,
            skip_first=whole.skip_first if start == whole.start else options.format == "lines",
            exact_end=whole.exact_end or (options.format == "events" and end != whole.end),
        )
        yield whole_part(part, chunks, options)


def _borders(
    whole: RowRange, starts: NDArray[np.int64], split: int, options: SourceOptions
) -> Iterator[int]:
    """Where a range is cut, its own ends among them."""
    position = whole.start
    yield position
    while whole.end - position > split:
        position = _border(position, position + split, starts, options.format, options.piece_bytes)
        if position >= whole.end or (
            options.format == "events" and options.event_borders == "segment"
        ):
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
