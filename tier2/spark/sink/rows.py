"""From rows to the bytes of segments: which columns hold what, how rows are framed, which bytes go
to which segment. Pure.

Rules of this file: rows of a batch keep their order in each segment, and no loop goes over rows. A
row that its framing could not give back as it was is refused. One does, `batches_of`: for a Spark
that hands over rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.errors import ConfigError, InvalidArgumentError, InvalidNameError
from segmentstore.contracts.events import EVENT_BYTES_MAX
from segmentstore.contracts.segments import check_segment_name

FRAMINGS: Final = ("raw", "lines", "events")
PAYLOAD_COLUMNS: Final = ("payload", "value")
SEGMENT_COLUMN: Final = "segment"
PASSED_OVER: Final = ("offset", "length", "container", "segment_id")
"""Columns that reading gives: what was read may be written without naming its columns."""
BATCH_ROWS: Final = 10_000
"""Of a batch made of rows: as many as Spark puts into one of its own."""
_BYTES = pa.large_binary()
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What the rows of one write look like."""

    payload: str
    """The column whose values are written: binary, or text written as UTF-8."""
    has_segment_column: bool
    segment: str | None
    """For rows that name none."""
    framing: str


def row_layout(columns: Sequence[tuple[str, str]], options: Mapping[str, str]) -> RowLayout:
    """Of columns (name, type as Spark names it) and options (lower-case names).

    Raises ConfigError, InvalidNameError.
    """
    types = dict(columns)
    payloads = [name for name in PAYLOAD_COLUMNS if name in types]
    if len(payloads) != 1:
        raise ConfigError(
            "columns",
            f"exactly one of {' and '.join(PAYLOAD_COLUMNS)} is written; there are {list(types)}",
        )
    unknown = [name for name in types if name not in {*payloads, SEGMENT_COLUMN, *PASSED_OVER}]
    if unknown:
        raise ConfigError(
            "columns", f"{unknown} would not be written: select payload (or value) and segment"
        )
    if types[payloads[0]] not in {"binary", "string"}:
        raise ConfigError(
            "columns", f"{payloads[0]} is of type {types[payloads[0]]}; bytes are binary or string"
        )
    if types.get(SEGMENT_COLUMN, "string") != "string":
        raise ConfigError(
            "columns", f"{SEGMENT_COLUMN} is of type {types[SEGMENT_COLUMN]}; names are string"
        )
    segment = options.get("segment")
    if segment is not None:
        check_segment_name(segment)
    elif SEGMENT_COLUMN not in types:
        raise ConfigError(
            "segment", "no option names the segment, and there is no column of this name"
        )
    framing = options.get("format", "raw")
    if framing not in FRAMINGS:
        raise ConfigError("format", f"{framing!r} is not one of {', '.join(FRAMINGS)}")
    return RowLayout(payloads[0], SEGMENT_COLUMN in types, segment, framing)


def batches_of(layout: RowLayout, rows: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Rows one by one, as Arrow batches of what is written of them."""
    waiting = iter(rows)
    while some := list(itertools.islice(waiting, BATCH_ROWS)):
        columns: dict[str, pa.Array[Any]] = {
            layout.payload: pa.array([_raw(row[layout.payload]) for row in some], pa.binary())
        }
        if layout.has_segment_column:
            columns[SEGMENT_COLUMN] = pa.array([row[SEGMENT_COLUMN] for row in some], pa.string())
        yield pa.RecordBatch.from_pydict(columns)


def _raw(value: str | bytes | bytearray | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(value)


def pieces(layout: RowLayout, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """The batch's bytes for each segment, framed.

    Raises InvalidArgumentError for rows that cannot be written, and InvalidNameError.
    """
    if not batch.num_rows:
        return
    payload = batch.column(batch.schema.get_field_index(layout.payload))
    if payload.null_count:
        raise InvalidArgumentError(layout.payload, None, f"{payload.null_count} rows have none")
    rows = payload.cast(_BYTES)
    if not layout.has_segment_column:
        assert layout.segment is not None
        yield layout.segment, _bytes(_framed(rows, layout), 0, len(rows))
        return
    names = _names(batch.column(batch.schema.get_field_index(SEGMENT_COLUMN)), layout)
    codes = names.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    framed = _framed(rows.take(pa.array(order, pa.int64())), layout)
    ends = np.cumsum(np.bincount(codes, minlength=len(names.dictionary)))
    start = 0
    for name, end in zip(_given(names.dictionary), ends.tolist(), strict=True):
        if end > start:
            yield _checked(name), _bytes(framed, start, end)
        start = end


def _given(names: Any) -> list[bytes]:
    # As bytes: Spark's strings hold any bytes, and pyarrow's own error would name no value.
    return list(names.cast(pa.binary()).to_pylist())


def _checked(name: bytes) -> str:
    try:
        return check_segment_name(name.decode())
    except UnicodeDecodeError:
        raise InvalidNameError(name, "a name of a segment is UTF-8") from None


def _names(column: Any, layout: RowLayout) -> Any:
    if column.null_count:
        if layout.segment is None:
            raise InvalidArgumentError(
                SEGMENT_COLUMN, None, f"{column.null_count} rows name none, and no option does"
            )
        column = column.fill_null(layout.segment)
    return column.cast(pa.string()).dictionary_encode()


def _framed(rows: Any, layout: RowLayout) -> Any:
    """Each row as it will stand in the segment."""
    if layout.framing == "lines":
        framed = pc.binary_join_element_wise(rows, pa.scalar(b"", _BYTES), pa.scalar(b"\n", _BYTES))
        if np.count_nonzero(_contents(framed) == _NEWLINE) != len(rows):
            raise InvalidArgumentError(
                layout.payload, "...\\n...", "a line holds no newline: write raw or events"
            )
        return framed
    if layout.framing == "events":
        offsets = _offsets(rows)
        lengths = offsets[1:] - offsets[:-1]
        if lengths.max(initial=0) > EVENT_BYTES_MAX:
            raise InvalidArgumentError(
                layout.payload, int(lengths.max()), f"an event has {EVENT_BYTES_MAX} bytes at most"
            )
        heads = pa.py_buffer(lengths.astype(">u4").tobytes())
        prefixes = pa.Array.from_buffers(pa.binary(4), len(rows), [None, heads]).cast(_BYTES)
        return pc.binary_join_element_wise(prefixes, rows, pa.scalar(b"", _BYTES))
    return rows


def _offsets(rows: Any) -> Any:
    return np.frombuffer(rows.buffers()[1], dtype=np.int64)[
        rows.offset : rows.offset + len(rows) + 1
    ]


def _contents(rows: Any) -> Any:
    offsets = _offsets(rows)
    data = rows.buffers()[2]
    return (
        np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
        if data is not None
        else np.empty(0, np.uint8)
    )


def _bytes(rows: Any, start: int, end: int) -> bytes:
    """The values of rows in a row, which lie behind each other."""
    offsets, data = _offsets(rows), rows.buffers()[2]
    first, last = int(offsets[start]), int(offsets[end])
    return bytes(data.slice(first, last - first).to_pybytes()) if data is not None else b""
