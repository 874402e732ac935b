"""Where a stream's batch may end in a segment: at the border of a row, as near below the wanted place as there is one.

Rules of this file:

- a border that is given out is one: behind a newline, at the end of an event that was reached from a border, or at the end
  of a finished segment; what stands behind the last one waits for its end;
- if there is none up to the wanted place, the next one behind it is taken, so that a row longer than a batch gets through;
- lines cost one small read, and events one walk over the new bytes, for they cannot be found from the middle.

Coroutines; what they read is handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from segmentstore.contracts.events import EVENT_HEADER_BYTES, EventFormatError, event_length
from tier2.spark.framing import FramingError
from tier2.spark.source_options import SourceOptions

LOOK_BYTES: Final = 64 * 1024
"""Of the first look for a newline; each further one is twice as long, up to the next."""
LOOK_BYTES_MAX: Final = 4 * 1024 * 1024

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
    """The border of `start` < `wanted` <= `stored` to end a batch at; `start` itself, a border: no row is whole yet.

    `stored` is where the bytes in Tier 2 end, `finished` says that none will follow. Raises FramingError.
    """
    if options.format == "raw":
        even = wanted // options.piece_bytes * options.piece_bytes
        return even if start < even and wanted < stored else wanted
    if options.format == "lines":
        return await line_border(read, start, wanted, stored, finished=finished, row_bytes_max=options.record_bytes_max)
    if options.event_borders == "chunks":
        return chunk_border(chunk_starts, start, wanted, stored)
    return await event_border(read, start, wanted, stored, finished=finished, row_bytes_max=options.record_bytes_max)


async def line_border(read: Read, start: int, wanted: int, stored: int, *, finished: bool, row_bytes_max: int) -> int:
    """`find_border` of lines."""
    if finished and wanted == stored:
        return stored
    high, size = wanted, LOOK_BYTES
    while high > start:
        low = max(start, high - size)
        place = (await read(low, high)).rfind(b"\n")
        if place >= 0:
            return low + place + 1
        high, size = low, min(2 * size, LOOK_BYTES_MAX)
        _check_length(high, wanted, row_bytes_max)
    low, size = wanted, LOOK_BYTES
    while low < stored:
        high = min(low + size, stored)
        place = (await read(low, high)).find(b"\n")
        if place >= 0:
            return low + place + 1
        low, size = high, min(2 * size, LOOK_BYTES_MAX)
        _check_length(start, low, row_bytes_max)
    return stored if finished else start


async def event_border(read: Read, start: int, wanted: int, stored: int, *, finished: bool, row_bytes_max: int) -> int:
    """`find_border` of events. Reads what lies between, but for the insides of long events."""
    border, window, data = start, start, b""
    while border < wanted:
        if border + EVENT_HEADER_BYTES > stored:
            return _cut_event(border, stored, finished=finished)
        if border + EVENT_HEADER_BYTES > window + len(data):
            window, data = border, await read(border, min(border + LOOK_BYTES_MAX, stored))
        try:
            length = event_length(data, border - window)
        except EventFormatError as error:
            raise FramingError(border, str(error)) from error
        if length > row_bytes_max:
            raise FramingError(border, f"an event of {length} bytes, more than {row_bytes_max} (recordBytesMax)")
        after = border + EVENT_HEADER_BYTES + length
        if after > stored:
            return _cut_event(border, stored, finished=finished)
        if after > wanted and border > start:
            return border
        border = after
    return border


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
        raise FramingError(row, f"no line ends in {end - row} bytes, more than {row_bytes_max} (recordBytesMax)")


def _cut_event(border: int, stored: int, *, finished: bool) -> int:
    if finished:
        raise FramingError(border, f"the segment ends {stored - border} bytes into an event")
    return border
