"""Where a stream's batch may end in a segment: at the border of a row, as near below the wanted
place as there is one.

Rules of this file:

- a border that is given out is one. It is behind a newline, at the end of an event that was reached
  from a border, or at the end of a finished segment. What stands behind the last one waits for its
  end;
- if there is none up to the wanted place, the next one behind it is taken, so that a row longer
  than a batch gets through;
- lines cost one small read, and events one walk over the new bytes, for they cannot be found from
  the middle.

Coroutines; what they read is handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from segmentstore.contracts.events import EVENT_HEADER_BYTES, EventFormatError, event_length
from tier2.spark.source.framing import NEWLINE, FramingError
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import SourceSegment

SCAN_BYTES: Final = 64 * 1024
"""Of the first search for a newline; each further one is twice as long, up to the next."""
SCAN_BYTES_MAX: Final = 4 * 1024 * 1024

Read = Callable[[int, int], Awaitable[bytes]]
"""The bytes [start, end) of the segment."""


async def find_border(
    read: Read,
    options: SourceOptions,
    start: int,
    wanted: int,
    stored: int,
    *,
    finished: bool,
    chunk_starts: NDArray[np.int64],
) -> int:
    """The border of `start` < `wanted` <= `stored` to end a batch at; `start` itself, a border: no
    row is whole yet.

    `stored` is where the bytes in Tier 2 end, `finished` says that none will follow. Raises
    FramingError.
    """
    if options.format == "raw":
        even = wanted // options.piece_bytes * options.piece_bytes
        return even if start < even and wanted < stored else wanted
    if options.format == "lines":
        return await line_border(
            read, start, wanted, stored, finished=finished, row_bytes_max=options.record_bytes_max
        )
    if options.event_borders == "chunks":
        return chunk_border(chunk_starts, start, wanted, stored)
    return await event_border(
        read, start, wanted, stored, finished=finished, row_bytes_max=options.record_bytes_max
    )


async def line_border(
    read: Read, start: int, wanted: int, stored: int, *, finished: bool, row_bytes_max: int
) -> int:
    """`find_border` of lines."""
    if finished and wanted == stored:
        return stored
    high, size = wanted, SCAN_BYTES
    while high > start:
        low = max(start, high - size)
        place = (await read(low, high)).rfind(b"\n")
        if place >= 0:
            return low + place + 1
        high, size = low, min(2 * size, SCAN_BYTES_MAX)
        _check_length(high, wanted, row_bytes_max)
    low, size = wanted, SCAN_BYTES
    while low < stored:
        high = min(low + size, stored)
        place = (await read(low, high)).find(b"\n")
        if place >= 0:
            return low + place + 1
        low, size = high, min(2 * size, SCAN_BYTES_MAX)
        _check_length(start, low, row_bytes_max)
    return stored if finished else start


async def event_border(
    read: Read, start: int, wanted: int, stored: int, *, finished: bool, row_bytes_max: int
) -> int:
    """`find_border` of events. Reads what lies between, but for the insides of long events."""
    return (
        await _event_rows(
            read, start, wanted, stored, finished=finished, row_bytes_max=row_bytes_max, rows=None
        )
    )[0]


async def _event_rows(
    read: Read,
    start: int,
    wanted: int,
    stored: int,
    *,
    finished: bool,
    row_bytes_max: int,
    rows: int | None,
) -> tuple[int, int]:
    """The border of `event_border`, or that behind so many rows, and how many events lie before
    it.
    """
    border, window, data, count = start, start, b"", 0
    while border < wanted and count != rows:
        if border + EVENT_HEADER_BYTES > stored:
            return _cut_event(border, stored, finished=finished), count
        if border + EVENT_HEADER_BYTES > window + len(data):
            window, data = border, await read(border, min(border + SCAN_BYTES_MAX, stored))
        try:
            length = event_length(data, border - window)
        except EventFormatError as error:
            raise FramingError(border, str(error)) from error
        if length > row_bytes_max:
            raise FramingError(
                border, f"an event of {length} bytes, more than {row_bytes_max} (recordBytesMax)"
            )
        after = border + EVENT_HEADER_BYTES + length
        if after > stored:
            return _cut_event(border, stored, finished=finished), count
        if after > wanted and border > start:
            return border, count
        border, count = after, count + 1
    return border, count


async def first_border(
    read: Read, options: SourceOptions, segment: SourceSegment, wanted: int, *, known: bool
) -> int:
    """The border to begin a stream at, where `wanted`, in the segment's bytes in Tier 2, was asked
    for.

    Of lines the next one from there on, or the one before if none is whole there. Of events the
    nearest before, which is searched for from the segment's beginning on; `wanted` itself where it
    is `known` for one. Raises FramingError.
    """
    start, stored = segment.start_offset, segment.storage_length
    if wanted <= start or options.format == "raw" or (known and options.format == "events"):
        return max(wanted, start)
    find = partial(
        event_border if options.format == "events" else line_border,
        wanted=wanted,
        stored=stored,
        finished=segment.finished,
        row_bytes_max=options.record_bytes_max,
    )
    if options.format == "lines" and (border := await find(read, wanted - 1)) >= wanted:
        return border
    return await find(read, start)


async def end_of_rows(
    read: Read,
    options: SourceOptions,
    start: int,
    wanted: int,
    stored: int,
    rows: int,
    *,
    finished: bool,
) -> tuple[int | None, int]:
    """The border to end a batch at that has at most `rows` rows from the border `start` on, and how
    many it has.

    None: there are fewer up to `wanted`, so that `find_border` says where it ends. Reads what lies
    between, but of `raw` nothing. Raises FramingError.
    """
    if options.format == "raw":
        piece = options.piece_bytes
        end = (start // piece + rows) * piece
        return (end, rows) if end < wanted else (None, -(-wanted // piece) - start // piece)
    if options.format == "events":
        most = options.record_bytes_max
        return await _event_rows(
            read, start, wanted, stored, finished=finished, row_bytes_max=most, rows=rows
        )
    position, size, count = start, SCAN_BYTES, 0
    while position < wanted:
        data = await read(position, min(position + size, wanted))
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
        if count + len(newlines) >= rows:
            return position + int(newlines[rows - count - 1]) + 1, rows
        count += len(newlines)
        position, size = position + len(data), min(2 * size, SCAN_BYTES_MAX)
    return None, count


def chunk_border(chunk_starts: NDArray[np.int64], start: int, wanted: int, stored: int) -> int:
    """`find_border` of events whose borders are said to be those of chunks."""
    if wanted == stored:
        return stored
    index = int(np.searchsorted(chunk_starts, wanted, "right")) - 1
    if index >= 0 and chunk_starts[index] > start:
        return int(chunk_starts[index])
    return int(chunk_starts[index + 1]) if index + 1 < len(chunk_starts) else stored


def _check_length(row: int, end: int, row_bytes_max: int) -> None:
    if end - row > row_bytes_max:
        raise FramingError(
            row, f"no line ends in {end - row} bytes, more than {row_bytes_max} (recordBytesMax)"
        )


def _cut_event(border: int, stored: int, *, finished: bool) -> int:
    if finished:
        raise FramingError(border, f"the segment ends {stored - border} bytes into an event")
    return border
