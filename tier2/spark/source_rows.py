"""From a range of a segment to rows, and to Arrow batches of them.

Rules of this file:

- `read_rows` is a coroutine over ObjectStorage and Runtime; what drives it, and Spark, are elsewhere (`source_reader`);
- bytes nobody asked for are not fetched: rows of `raw` are known by counting;
- a batch has at most ROWS_MAX rows and, but for one long row, BYTES_MAX bytes of them; its types are exactly those asked for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from typing import Any, Final

import numpy as np
import pyarrow as pa

from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage
from tier2.spark.framing import EventFramer, Framer, FramingError, LineFramer, RawFramer, Rows, raw_offsets
from tier2.spark.source_errors import DataLossError, SegmentFramingError
from tier2.spark.source_fetch import RUN_BYTES, RangeLostError, SegmentBytes
from tier2.spark.source_options import SourceOptions
from tier2.spark.source_plan import CUT_BYTES, RowRange, SourceSegment

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 8 * 1024 * 1024
ROWS_GOOD: Final = 8192
BYTES_GOOD: Final = 1024 * 1024
"""Batches smaller than both are joined to the next."""

DATA_COLUMNS: Final = ("payload", "value")
TYPES: Final[dict[str, pa.DataType]] = {
    "container": pa.int64(),
    "segment": pa.string(),
    "segment_id": pa.int64(),
    "offset": pa.int64(),
    "length": pa.int32(),
    "payload": pa.binary(),
    "value": pa.string(),
}
"""The columns there are."""

_LOGGER: Final = logging.getLogger(__name__)


def needs_bytes(options: SourceOptions, columns: Iterable[str]) -> bool:
    """Whether rows with these columns cannot be told without reading the segments."""
    return options.format != "raw" or any(name in DATA_COLUMNS for name in columns)


def report_loss(options: SourceOptions, segment: str, start: int, end: int, why: str) -> None:
    """What `failOnDataLoss` says of bytes that are gone: raise DataLossError, or leave a line in the log."""
    if options.fail_on_data_loss:
        raise DataLossError(segment, start, end, why)
    _LOGGER.warning("segment %r: bytes %d to %d are passed over: %s", segment, start, end, why)


async def read_rows(
    storage: ObjectStorage, runtime: Runtime, rows: RowRange, options: SourceOptions, *, with_data: bool
) -> AsyncGenerator[Rows]:
    """The rows of a range, in order. Close it if it is not taken to its end.

    Raises SourceError of some kind, DataCorruptionError, StorageUnavailableError.
    """
    if options.format == "raw" and not with_data:
        for found in counted_rows(rows, options.piece_bytes):
            yield found
        return
    segment = rows.segment
    framer = new_framer(rows, options, with_data=with_data)
    source = SegmentBytes(storage, runtime, segment, rows.chunks, options)
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
            detail += ": chunks of this segment do not begin with events, read it with eventBorders=segment"
        raise SegmentFramingError(segment.name, error.offset, detail) from error
    finally:
        await source.close()


async def _framed(source: SegmentBytes, framer: Framer, rows: RowRange) -> AsyncGenerator[Rows]:
    """What the framer makes of the bytes of the range, and of those behind it that its last row needs."""
    end, size = rows.end, 0
    while not framer.done() and framer.position < rows.limit:
        start = framer.position
        if start >= rows.end:
            # The end of one row is looked for: little at first, more if it is a long one.
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
        return LineFramer(rows.start, rows.end, record_bytes_max=most, with_data=with_data, skip_first=rows.skip_first)
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


# --- Arrow -----------------------------------------------------------------------------------------------------------


class BatchMaker:
    """Makes batches of rows, of exactly the columns, types and nullability of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def batches(self, segment: SourceSegment, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows of one segment, in batches of bounded size. The bytes are not copied."""
        total = len(rows.offsets)
        most = -(-total // -(-total // ROWS_MAX)) if total else 1
        start = 0
        while start < total:
            end = min(start + most, total)
            if rows.data is not None and int(rows.bounds[end]) - int(rows.bounds[start]) > BYTES_MAX:
                fits = int(np.searchsorted(rows.bounds, int(rows.bounds[start]) + BYTES_MAX, "right")) - 1
                end = min(end, max(fits, start + 1))
            yield self._batch(segment, rows, start, end)
            start = end

    def _batch(self, segment: SourceSegment, rows: Rows, start: int, end: int) -> pa.RecordBatch:
        count = end - start
        bounds = rows.bounds[start : end + 1]
        columns: list[pa.Array[Any]] = []
        for field in self._schema:
            match field.name:
                case "container":
                    columns.append(pa.array(np.full(count, segment.container_id, np.int64)))
                case "segment":
                    columns.append(pa.repeat(pa.scalar(segment.name, pa.string()), count))
                case "segment_id":
                    columns.append(pa.array(np.full(count, segment.segment_id, np.int64)))
                case "offset":
                    columns.append(pa.array(rows.offsets[start:end]))
                case "length":
                    columns.append(pa.array(np.diff(bounds).astype(np.int32, copy=False)))
                case _:
                    assert rows.data is not None, field
                    data = memoryview(rows.data)[int(bounds[0]) : int(bounds[-1])]
                    places = bounds - bounds[0] if start else bounds
                    buffers = [None, pa.py_buffer(places.data), pa.py_buffer(data)]
                    columns.append(pa.Array.from_buffers(field.type, count, buffers))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def joined(batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """The same rows; batches too small to be worth their way to Spark are joined. Closes what it takes from."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    with closing(batches):
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= ROWS_GOOD or size >= BYTES_GOOD:
                yield _concatenated(held)
                held, rows, size = [], 0, 0
    if held:
        yield _concatenated(held)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined] # not in the stubs
