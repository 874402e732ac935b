"""Planning and filters, pure: every byte to one partition, and only filters that are kept exactly
are taken.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from segmentstore.contracts.chunks import ChunkRecord
from tests.tier2.spark.source_world import SourceWorld, source_of
from tier2.spark.data_source import SegmentStoreSource
from tier2.spark.source.batches import BYTES_MAX, ROWS_MAX, TYPES, BatchMaker
from tier2.spark.source.chunks import CHUNK_COLUMNS, SegmentChunks, SourceChunk, split_chunks
from tier2.spark.source.errors import SourceCatalogError
from tier2.spark.source.fetch import plan_fetches
from tier2.spark.source.filter import COLUMNS, EVERYTHING, Condition, RowFilter, with_condition
from tier2.spark.source.framing import Rows
from tier2.spark.source.options import SourceOptions, parse_options
from tier2.spark.source.partition import SegmentPartition
from tier2.spark.source.plan import RowRange, SourceSegment, cut_range, row_range
from tier2.spark.source.pushdown import FilteringBatchReader
from tier2.spark.source.reader import SegmentBatchReader

BORDERS = st.lists(st.integers(1, 5000), min_size=1, max_size=20, unique=True).map(sorted)


def options_of(**given_: object) -> SourceOptions:
    return parse_options(
        {"path": "/x", "segment": "s", **{key: str(value) for key, value in given_.items()}},
        streaming=False,
    )


def chunks_of(borders: list[int], segment_id: int = 1) -> SegmentChunks:
    rows = [
        dict(
            zip(
                CHUNK_COLUMNS,
                (segment_id, low, high - low, f"o{low // 3}", low, segment_id, low, 10**6, 0),
                strict=True,
            )
        )
        for low, high in pairwise([0, *borders])
    ]
    return split_chunks(pa.Table.from_pylist(rows))[segment_id]


@given(BORDERS, st.integers(1, 3000), st.sampled_from(["raw", "lines", "events"]), st.data())
def test_parts_follow_one_another_and_know_their_chunks(
    borders: list[int], split: int, form: str, data: st.DataObject
) -> None:
    options = options_of(
        format=form, pieceBytes=100, **({"eventBorders": "chunks"} if form == "events" else {})
    )
    stored = borders[-1]
    low = data.draw(st.integers(0, stored - 1))
    segment = SourceSegment(0, 1, "s", low, stored, False)
    whole = row_range(segment, options, low, stored, stored, EVERYTHING, complete=False)
    assert whole is not None
    parts = list(
        SegmentPartition(list(cut_range(whole, chunks_of(borders), split, options))).ranges
    )
    assert [part.start for part in parts] == [low, *[part.end for part in parts[:-1]]]
    assert parts[-1].end == stored
    for part in parts:
        assert part.start < part.end
        assert part.chunks[0].chunk.start_offset <= part.read_from
        assert part.chunks[-1].chunk.end_offset >= part.end
        assert part.skip_first == (form == "lines" and part.start > low)
        assert part.exact_end == (form == "events" and part.end < stored)
        if form == "raw" and part.end < stored:
            assert part.end % 100 == 0
        if form == "events" and part.end < stored:
            assert part.end in borders
        if form == "lines" and part is not parts[-1]:
            assert part.end - part.start <= 2 * split


def test_a_gap_in_the_catalog_is_reported() -> None:
    table = pa.Table.from_pylist(
        [
            dict(zip(CHUNK_COLUMNS, (1, low, 10, "o", 0, 1, low, 100, 0), strict=True))
            for low in (0, 10, 30)
        ]
    )
    chunks = split_chunks(table)[1]
    assert [each.chunk.start_offset for each in chunks.between(5, 20)] == [0, 10]
    with pytest.raises(SourceCatalogError, match="no chunk of segment 1 at offset 20, below 31"):
        chunks.between(5, 31)
    with pytest.raises(SourceCatalogError, match="at offset 40"):
        chunks.between(30, 41)
    assert split_chunks(table.slice(0, 0)) == {}


@given(BORDERS, st.integers(1, 500), st.data())
def test_fetches_cover_the_range_in_order(
    borders: list[int], run_bytes: int, data: st.DataObject
) -> None:
    known = chunks_of(borders).between(0, borders[-1])
    start = data.draw(st.integers(0, borders[-1] - 1))
    end = data.draw(st.integers(start + 1, borders[-1]))
    position = start
    for run in plan_fetches(known, start, end, run_bytes):
        assert run.start == run.end or len(run.stretches)
        for chunk, offset, length in run.stretches:
            assert chunk.object_name == run.object_name
            assert offset == position
            assert chunk.start_offset <= offset
            assert offset + length <= chunk.end_offset
            position += length
    assert position == end


def test_neighbours_in_one_object_are_fetched_together() -> None:
    known = [
        SourceChunk(ChunkRecord(100 * number, 100, "o", 300 * number, 1, 100 * number), 3000)
        for number in range(10)
    ]
    assert len(list(plan_fetches(known, 0, 1000, 1 << 20))) == 1
    assert [len(run.stretches) for run in plan_fetches(known, 50, 950, 1 << 20)] == [1, 8, 1]


CONDITIONS = st.one_of(
    st.builds(
        Condition,
        st.just("offset"),
        st.sampled_from(["=", "<", "<=", ">", ">="]),
        st.integers(-5, 120),
    ),
    st.builds(
        Condition,
        st.just("segment"),
        st.sampled_from(["=", "starts with"]),
        st.sampled_from(["a", "ab", "b"]),
    ),
    st.builds(
        Condition, st.just("container"), st.sampled_from(["=", "<", ">=", "in"]), st.integers(0, 2)
    ),
    st.builds(
        Condition,
        st.just("container"),
        st.just("in"),
        st.tuples(st.integers(0, 2), st.integers(0, 2)),
    ),
    st.builds(Condition, st.sampled_from(["length", "segment", "offset"]), st.just("is not null")),
)


def holds(row: dict[str, Any], condition: Condition) -> bool:
    actual, value = row[condition.column], condition.value
    match condition.kind:
        case "=":
            return bool(actual == value)
        case "<":
            return bool(actual < value)
        case "<=":
            return bool(actual <= value)
        case ">":
            return bool(actual > value)
        case ">=":
            return bool(actual >= value)
        case "in":
            return actual in (value if isinstance(value, tuple) else (value,))
        case "starts with":
            return bool(actual.startswith(value))
    return True


@pytest.mark.parametrize("form", ["raw", "lines", "events"])
def test_filters_that_are_taken_are_kept_exactly(form: str) -> None:
    world = SourceWorld(f"memory://filters-{form}", 2)
    records = [b"x" * (number % 7) for number in range(30)]
    text = b"".join(record + b"\n" for record in records)
    if form == "events":
        from segmentstore.contracts.events import frame_events

        text = frame_events(records)
    for name, container_id in (("a", 0), ("ab", 1), ("b", 1)):
        world.append(name, text, range(0, len(text), 11), container_id)
    world.export(0)
    world.export(1)
    columns = "container,segment,offset,length"
    source = source_of(
        world, prefix="", format=form, columns=columns, pieceBytes=10, partitionBytes=40
    )
    options = parse_options(source.options, streaming=False)

    def rows(chosen: RowFilter) -> list[dict[str, Any]]:
        reader = SegmentBatchReader(options, source.schema())
        reader._filter = chosen
        return [
            row
            for each in reader.partitions()
            for batch in reader.read(each)
            for row in batch.to_pylist()
        ]

    everything = rows(EVERYTHING)

    @given(st.lists(CONDITIONS, max_size=4))
    def check(conditions: list[Condition]) -> None:
        chosen, taken = EVERYTHING, []
        for condition in conditions:
            more = with_condition(chosen, condition)
            if more is not None:
                chosen = more
                taken.append(condition)
        assert rows(chosen) == [
            row for row in everything if all(holds(row, condition) for condition in taken)
        ]

    check()


def test_filters_of_spark_are_taken_or_given_back() -> None:
    options = options_of()
    reader = FilteringBatchReader(options, SegmentStoreSource({"path": "/x"}).schema())
    kept: list[Filter] = [
        EqualTo(("segment",), "a"),
        In(("container",), (1, 2)),
        GreaterThan(("offset",), 4),
        GreaterThanOrEqual(("offset",), 7),
        LessThan(("offset",), 100),
        LessThanOrEqual(("offset",), 50),
        StringStartsWith(("segment",), "a"),
        IsNotNull(("payload",)),
    ]
    given_back: list[Filter] = [
        Not(EqualTo(("segment",), "b")),
        EqualTo(("length",), 5),
        StringEndsWith(("segment",), "a"),
        EqualTo(("payload",), b"x"),
        GreaterThan(("segment",), "a"),
        EqualTo(("offset",), None),
        In(("offset",), (1, 2)),
        EqualTo(("offset", "inner"), 1),
        IsNotNull(("unknown",)),
    ]
    assert list(reader.pushFilters([*kept, *given_back])) == given_back
    assert (reader._filter.offset_low, reader._filter.offset_high) == (7, 51)
    assert [each.column for each in reader._filter.conditions] == [
        "segment",
        "container",
        "segment",
    ]


def test_a_reader_takes_filters_only_where_spark_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reader(**options: object) -> type:
        source = SegmentStoreSource(
            {"path": "/x", "segment": "s", **{key: str(value) for key, value in options.items()}}
        )
        return type(source.reader(source.schema()))

    assert reader() is SegmentBatchReader
    assert reader(filterPushdown="true") is FilteringBatchReader
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    assert reader() is FilteringBatchReader
    assert reader(filterPushdown="false") is SegmentBatchReader


def test_batches_are_bounded_by_rows_and_by_bytes() -> None:
    segment = SourceSegment(1, 2, "s", 0, 10, False)
    chunk = SourceChunk(ChunkRecord(0, 10, "o", 0, 2, 0), 1000, 5)
    planned = RowRange(segment, 0, 10, 0, 10, chunks=(chunk,))
    schema = pa.schema([pa.field(name, TYPES[name], nullable=False) for name in COLUMNS])
    maker = BatchMaker(schema, options_of())
    many = 3 * ROWS_MAX + 1
    rows = Rows(np.arange(many), np.arange(many + 1, dtype=np.int32), bytes(many))
    batches = list(maker.batches(planned, rows))
    assert [batch.num_rows for batch in batches] == [-(-many // 4)] * 3 + [many - 3 * -(-many // 4)]
    assert [batch["offset"][0].as_py() for batch in batches] == [
        0,
        *np.cumsum([each.num_rows for each in batches])[:-1],
    ]
    large = BYTES_MAX // 2 + 1
    bounds = np.array([0, large, 2 * large, 2 * large + 3, 5 * large], np.int32)
    batches = list(maker.batches(planned, Rows(np.array([0, 5, 7, 9]), bounds, bytes(5 * large))))
    assert [batch.num_rows for batch in batches] == [1, 2, 1]
    assert [length for batch in batches for length in batch["length"].to_pylist()] == np.diff(
        bounds
    ).tolist()
    for batch in batches:
        batch.validate(full=True)
