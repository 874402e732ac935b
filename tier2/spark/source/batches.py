"""Arrow batches of rows: exactly the columns, types and nullability that were asked for.

Rules of this file:

- a batch has at most ROWS_MAX rows and, but for one long row, BYTES_MAX bytes of them;
- bytes are not copied, but where text is mended;
- text that goes out is UTF-8: Spark and what stands behind it fail on other bytes far from here,
  without a place.

Pure.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tier2.spark.source.errors import SegmentEncodingError
from tier2.spark.source.framing import Rows
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import RowRange

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 8 * 1024 * 1024
ROWS_GOOD: Final = 8192
BYTES_GOOD: Final = 1024 * 1024
"""Batches smaller than both are joined to the next."""

_TIME: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[dict[str, pa.DataType]] = {
    "container": pa.int64(),
    "segment": pa.string(),
    "segment_id": pa.int64(),
    "offset": pa.int64(),
    "length": pa.int32(),
    "payload": pa.binary(),
    "value": pa.string(),
    "stored_time": _TIME,
    "segment_created": _TIME,
    "segment_modified": _TIME,
}
"""The columns there are; `value` is of another type with invalidUtf8=binary."""
DATA_COLUMNS: Final = ("payload", "value")
"""They need the bytes of rows."""
CHUNK_COLUMNS: Final = (*DATA_COLUMNS, "stored_time")
"""They need to know where the bytes of rows lie."""


def types_of(options: SourceOptions) -> dict[str, pa.DataType]:
    """The columns there are with these options."""
    return TYPES | {"value": pa.binary()} if options.invalid_utf8 == "binary" else TYPES


class BatchMaker:
    """Makes batches of rows. Each of `schema` is one of `types_of(options)`."""

    def __init__(self, schema: pa.Schema, options: SourceOptions) -> None:
        self._schema = schema
        self._replace = options.invalid_utf8 == "replace"

    def batches(self, planned: RowRange, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows of one segment, in batches of bounded size. Raises SegmentEncodingError.

        `planned` is the range as it was planned: its chunks say since when the bytes are there.
        """
        total = len(rows.offsets)
        most = -(-total // -(-total // ROWS_MAX)) if total else 1
        start = 0
        while start < total:
            end = min(start + most, total)
            if (
                rows.data is not None
                and int(rows.bounds[end]) - int(rows.bounds[start]) > BYTES_MAX
            ):
                fits = (
                    int(np.searchsorted(rows.bounds, int(rows.bounds[start]) + BYTES_MAX, "right"))
                    - 1
                )
                end = min(end, max(fits, start + 1))
            yield self._batch(planned, rows, start, end)
            start = end

    def _batch(self, planned: RowRange, rows: Rows, start: int, end: int) -> pa.RecordBatch:
        columns = [self._column(field, planned, rows, start, end) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(
        self, field: pa.Field[Any], planned: RowRange, rows: Rows, start: int, end: int
    ) -> pa.Array[Any]:
        segment, offsets = planned.segment, rows.offsets[start:end]
        match field.name:
            case "container":
                return pa.array(np.full(len(offsets), segment.container_id, np.int64))
            case "segment":
                return pa.repeat(pa.scalar(segment.name, pa.string()), len(offsets))
            case "segment_id":
                return pa.array(np.full(len(offsets), segment.segment_id, np.int64))
            case "offset":
                return pa.array(offsets)
            case "length":
                return pa.array(np.diff(rows.bounds[start : end + 1]).astype(np.int32, copy=False))
            case "stored_time":
                return _times(_stored_ms(planned, offsets))
            case "segment_created":
                return _times(np.full(len(offsets), segment.created_ms, np.int64))
            case "segment_modified":
                return _times(np.full(len(offsets), segment.modified_ms, np.int64))
        column = _bytes(field.type, rows, start, end)
        return self._text(column, planned, offsets) if field.type == pa.string() else column

    def _text(
        self, column: pa.Array[Any], planned: RowRange, offsets: NDArray[np.int64]
    ) -> pa.Array[Any]:
        """The column, if all of it is UTF-8; what else is done about it."""
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raw: list[Any] = column.cast(pa.binary()).to_pylist()
        else:
            return column
        if self._replace:
            return pa.array([row.decode("utf-8", "replace") for row in raw], pa.string())
        for row, offset in zip(raw, offsets.tolist(), strict=True):
            try:
                row.decode("utf-8")
            except UnicodeDecodeError as error:
                detail = (
                    f"byte 0x{row[error.start]:02x} at offset {offset + error.start}, "
                    f"{error.reason}"
                )
                raise SegmentEncodingError(planned.segment.name, offset, detail) from None
        raise AssertionError("Arrow and Python know the same UTF-8")


def _bytes(kind: pa.DataType, rows: Rows, start: int, end: int) -> pa.Array[Any]:
    assert rows.data is not None, kind
    bounds = rows.bounds[start : end + 1]
    data = memoryview(rows.data)[int(bounds[0]) : int(bounds[-1])]
    places = bounds - bounds[0] if start else bounds
    return pa.Array.from_buffers(
        kind, end - start, [None, pa.py_buffer(places.data), pa.py_buffer(data)]
    )


def _stored_ms(planned: RowRange, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the object was made that has each row's first byte."""
    starts = np.fromiter(
        (chunk.start_offset for chunk, _, _ in planned.chunks), np.int64, len(planned.chunks)
    )
    made = np.fromiter((created for _, _, created in planned.chunks), np.int64, len(planned.chunks))
    found: NDArray[np.int64] = made[np.searchsorted(starts, offsets, "right") - 1]
    return found


def _times(ms: NDArray[np.int64]) -> pa.Array[Any]:
    return pa.array(ms * 1000, pa.int64()).cast(_TIME)


def joined(batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """The same rows; batches too small to be worth their way to Spark are joined.

    Closes what it takes from.
    """
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
    if len(batches) == 1:
        return batches[0]
    # It is not in the stubs.
    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    return joined
