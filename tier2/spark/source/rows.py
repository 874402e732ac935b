"""From a range of a segment to rows.

Rules of this file:

- `read_rows` is a coroutine over ObjectStorage and Runtime; what drives it, and Spark, are
  elsewhere (`source.reader`);
- bytes that the query does not need are not fetched: rows of `raw` are known by counting.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Final

import numpy as np

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage
from tier2.spark.source.batches import CHUNK_COLUMNS, ROWS_MAX
from tier2.spark.source.errors import DataLossError, SegmentFramingError
from tier2.spark.source.fetch import RUN_BYTES, RangeLostError, SegmentBytes
from tier2.spark.source.framing import (
    EventFramer,
    Framer,
    FramingError,
    LineFramer,
    RawFramer,
    Rows,
    raw_offsets,
)
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import CUT_BYTES, RowRange

_LOGGER: Final = logging.getLogger(__name__)


def needs_bytes(options: SourceOptions, columns: Iterable[str]) -> bool:
    """Whether rows with these columns cannot be known without knowing where the bytes lie."""
    return options.format != "raw" or any(name in CHUNK_COLUMNS for name in columns)


def report_loss(options: SourceOptions, segment: str, start: int, end: int, why: str) -> None:
    """What `failOnDataLoss` says of bytes that are missing: raise DataLossError, or leave a line in
    the log.
    """
    if options.fail_on_data_loss:
        raise DataLossError(segment, start, end, why)
    _LOGGER.warning("segment %r: bytes %d to %d are passed over: %s", segment, start, end, why)


async def read_rows(
    storage: ObjectStorage,
    runtime: Runtime,
    rows: RowRange,
    options: SourceOptions,
    *,
    with_data: bool,
    held: Mapping[ChunkRecord, bytes] = MappingProxyType({}),
) -> AsyncGenerator[Rows]:
    """The rows of a range, in order. Close it if it is not taken to its end.

    `held` are chunks that were fetched already. Raises SourceError of some kind,
    DataCorruptionError, StorageUnavailableError.
    """
    if options.format == "raw" and not with_data:
        for found in counted_rows(rows, options.piece_bytes):
            yield found
        return
    segment = rows.segment
    framer = new_framer(rows, options, with_data=with_data)
    source = SegmentBytes(storage, runtime, segment, rows.chunks, options, held)
    try:
        while not framer.done():
            try:
                async with aclosing(_framed(source, framer, rows)) as framed:
                    async for found in framed:
                        yield found
                break
            except RangeLostError as lost:
                report_loss(options, segment.name, lost.start, lost.end, lost.why)
                framer.jump(lost.end)
        last = framer.finish(complete=rows.complete)
        if last is not None:
            yield last
    except FramingError as error:
        detail = error.detail
        if rows.exact_end:
            detail += (
                ": chunks of this segment do not begin with events, read it with "
                "eventBorders=segment"
            )
        raise SegmentFramingError(segment.name, error.offset, detail) from error
    finally:
        await source.close()


async def _framed(source: SegmentBytes, framer: Framer, rows: RowRange) -> AsyncGenerator[Rows]:
    """What the framer makes of the bytes of the range, and of those behind it that its last row
    needs.
    """
    end, size = rows.end, 0
    while not framer.done() and framer.position < rows.limit:
        start = framer.position
        if start >= rows.end:
            # The end of one row is searched for: little at first, more if it is a long one.
            size = min(2 * size, RUN_BYTES) if size else CUT_BYTES
            end = min(start + size, rows.limit)
        async with aclosing(source.pieces(start, end, size or None)) as pieces:
            async for piece in pieces:
                found = framer.feed(piece)
                if found is not None:
                    yield found
                if framer.done():
                    return


def new_framer(rows: RowRange, options: SourceOptions, *, with_data: bool) -> Framer:
    """The framer of a range."""
    if options.format == "raw":
        return RawFramer(rows.start, rows.end, row_bytes=options.piece_bytes, with_data=with_data)
    most = options.record_bytes_max
    if options.format == "lines":
        return LineFramer(
            rows.start,
            rows.end,
            record_bytes_max=most,
            with_data=with_data,
            skip_first=rows.skip_first,
        )
    return EventFramer(
        rows.start,
        rows.end,
        rows_from=rows.rows_from,
        record_bytes_max=most,
        with_data=with_data,
        exact_end=rows.exact_end,
    )


def counted_rows(rows: RowRange, piece_bytes: int) -> Iterator[Rows]:
    """The rows of format `raw`, without their bytes."""
    step = ROWS_MAX * piece_bytes
    start = rows.start
    while start < rows.end:
        end = min((start // step + 1) * step, rows.end)
        offsets = raw_offsets(start, end, piece_bytes)
        yield Rows(offsets, np.append(offsets, end), None)
        start = end
