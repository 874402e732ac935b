"""Where a read begins, what it takes at once, times of rows, and text that is none: without a Spark
session.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.events import frame_events
from tests.tier2.spark.source_world import (
    Row,
    SourceWorld,
    payloads,
    read_batch,
    read_stream,
    rows_of,
    source_of,
    stream_of,
)
from tier2.locations import PROCESS_MEMORY
from tier2.spark.source.errors import (
    DataLossError,
    SegmentEncodingError,
    SourceCatalogError,
    SourceStartError,
    TableOptionsError,
)
from tier2.spark.source.options import parse_options
from tier2.spark.source.pushdown import FilteringBatchReader
from tier2.spark.source.stream import SegmentStreamReader

NUMBERS = itertools.count()
ALL = ReadAllAvailable()
SOLE = StructType([StructField("payload", BinaryType(), nullable=False)])


def new_world(containers: int = 1) -> SourceWorld:
    return SourceWorld(f"memory://starts-{next(NUMBERS)}", containers)


@pytest.fixture
def world() -> Iterator[SourceWorld]:
    made = new_world()
    yield made
    PROCESS_MEMORY.drop(made.url.removeprefix("memory://"))


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def stream_rows(reader: SegmentStreamReader, limit: ReadLimit = ALL) -> list[list[Row]]:
    """The batches of a stream, up to where nothing new comes."""
    offset = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(offset, limit)) != offset:
        batches.append(read_stream(reader, offset, end))
        offset = end
    return batches


# --- times of rows --------------------------------------------------------------------------------


def test_rows_say_when_their_bytes_came_to_tier_2(world: SourceWorld) -> None:
    for ms, data in ((1000, b"a\nb"), (2500, b"b\nc\n"), (2500, b"d\n")):
        world.now_ms = ms
        world.append("s", data)
    world.segment("s").last_modified_ms = 7000
    world.export()
    rows = read_batch(
        world,
        segment="s",
        format="lines",
        columns="payload,stored_time,segment_created,segment_modified",
    )
    assert [(row["payload"], row["stored_time"]) for row in rows] == [
        (b"a", at(1000)),
        (b"bb", at(1000)),
        (b"c", at(2500)),
        (b"d", at(2500)),
    ]
    assert {(row["segment_created"], row["segment_modified"]) for row in rows} == {
        (at(0), at(7000))
    }
    counted = read_batch(world, segment="s", columns="offset,stored_time", pieceBytes=2)
    assert [(row["offset"], row["stored_time"]) for row in counted] == [
        (0, at(1000)),
        (2, at(1000)),
        (4, at(2500)),
        (6, at(2500)),
        (8, at(2500)),
    ]


@pytest.mark.parametrize("form", ["lines", "events"])
@pytest.mark.parametrize("since", [0, 999, 1000, 1001, 2000, 9999])
def test_a_batch_since_a_time_leaves_nothing_out_that_came_since(
    world: SourceWorld, form: str, since: int
) -> None:
    written = {}
    for ms in (500, 1000, 2000):
        world.now_ms = ms
        records = [b"%d %d" % (ms, number) for number in range(3)]
        written[ms] = records
        data = (
            frame_events(records)
            if form == "events"
            else b"".join(record + b"\n" for record in records)
        )
        world.append("s", data)
    world.export()
    wanted = [record for ms, records in written.items() if ms >= since for record in records]
    chosen: dict[str, Any] = {"segment": "s", "format": form, "startingTimestamp": since}
    assert payloads(read_batch(world, **chosen)) == wanted
    if form == "events":
        assert (
            payloads(read_batch(world, **chosen, eventBorders="chunks", partitionBytes=30))
            == wanted
        )
    assert [
        payload for batch in stream_rows(stream_of(world, **chosen)) for payload in payloads(batch)
    ] == wanted


def test_raw_since_a_time_begins_with_the_piece_that_has_the_first_byte(world: SourceWorld) -> None:
    for ms, data in ((500, b"0123456789"), (1000, b"abcdefghij")):
        world.now_ms = ms
        world.append("s", data)
    world.export()
    since = datetime.fromtimestamp(0.7, UTC).isoformat()
    chosen: dict[str, Any] = {"segment": "s", "pieceBytes": 4, "startingTimestamp": since}
    assert payloads(read_batch(world, **chosen)) == [b"89ab", b"cdef", b"ghij"]
    assert read_batch(world, **chosen, columns="offset,length") == [
        {"offset": place, "length": 4} for place in (8, 12, 16)
    ]
    assert payloads(stream_rows(stream_of(world, **chosen))[0]) == [b"ab", b"cdef", b"ghij"]


def test_a_stream_since_a_time_reads_later_segments_whole(world: SourceWorld) -> None:
    world.now_ms = 500
    world.append("old", b"x\ny")
    world.export()
    reader = stream_of(world, prefix="", format="lines", startingTimestamp=1000)
    offset = reader.initialOffset()
    world.append("old", b"y\nz\n")
    world.append("new", b"n\n")
    world.export()
    end = reader.latestOffset(offset, ALL)
    # The line that was not whole then is; it may have been finished since.
    assert sorted(map(str, payloads(read_stream(reader, offset, end)))) == ["b'n'", "b'yy'", "b'z'"]


# --- offsets of segments --------------------------------------------------------------------------


def test_each_segment_begins_where_it_is_said_to(world: SourceWorld) -> None:
    for name in "abc":
        world.append(name, b"one\ntwo\nthree\n")
    world.export()
    starts = '{"a": 4, "b": 5, "c": 14}'
    expected = [("a", b"two"), ("a", b"three"), ("b", b"three")]
    rows = read_batch(world, prefix="", format="lines", startingOffsets=starts)
    assert [(row["segment"], row["payload"]) for row in rows] == expected
    (batch,) = stream_rows(stream_of(world, prefix="", format="lines", startingOffsets=starts))
    assert [(row["segment"], row["payload"]) for row in batch] == expected
    others = read_batch(world, prefix="", format="lines", startingOffsets='{"b": 14, "c": 14}')
    assert payloads(others) == [b"one", b"two", b"three"]


def test_a_filter_hides_no_name_that_is_misspelt(world: SourceWorld) -> None:
    world.append("a", b"one\ntwo\n")
    world.export()

    def filtered(*filters: Filter, **chosen: object) -> list[Row]:
        source = source_of(world, columns="payload", format="lines", **chosen)
        reader = FilteringBatchReader(parse_options(source.options, streaming=False), SOLE)
        assert list(reader.pushFilters(list(filters))) == []
        return [row for each in reader.partitions() for row in rows_of(reader.read(each))]

    behind, elsewhere = GreaterThan(("offset",), 0), EqualTo(("container",), 9)
    for some in (behind, elsewhere):
        with pytest.raises(SourceCatalogError, match="no segment 'A'"):
            filtered(some, segment="A")
        with pytest.raises(SourceStartError, match="no segment 'A' is among those"):
            filtered(some, prefix="", startingOffsets='{"A": 4}')
        with pytest.raises(SourceStartError, match="offset 9 is behind the end of segment 'a'"):
            filtered(some, prefix="", startingOffsets='{"a": 9}')
    for chosen in ({"segment": "a"}, {"prefix": "", "startingOffsets": '{"a": 0}'}):
        assert payloads(filtered(behind, **chosen)) == [b"two"]
        assert filtered(elsewhere, **chosen) == []


def test_starts_that_cannot_be_are_reported(world: SourceWorld) -> None:
    world.append("a", b"one\ntwo\n")
    world.truncate("a", 4)
    world.export()
    for read in (
        lambda **chosen: read_batch(world, prefix="", format="lines", **chosen),
        lambda **chosen: stream_of(world, prefix="", format="lines", **chosen).initialOffset(),
    ):
        with pytest.raises(SourceStartError, match="no segment 'b' is among those that are read"):
            read(startingOffsets='{"b": 4}')
        with pytest.raises(
            SourceStartError, match="offset 9 is behind the end of segment 'a' in Tier 2, 8"
        ):
            read(startingOffsets='{"a": 9}')
        with pytest.raises(DataLossError, match="bytes 2 to 4"):
            read(startingOffsets='{"a": 2}')
    assert payloads(read_batch(world, prefix="", format="lines", startingOffsets='{"a": 0}')) == [
        b"two"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "soon"}, "earliest, latest, or a JSON object"),
        ({"startingOffsets": "[1]"}, "no JSON object"),
        ({"startingOffsets": '{"a": -1}'}, "-1, of segment 'a', is no offset"),
        ({"startingOffsets": '{"a": true}'}, "True, of segment 'a', is no offset"),
        ({"startingOffsets": '{"a": 1, "a": 2}'}, "named twice"),
        ({"startingOffsets": "latest"}, "latest is only for a stream"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "with its zone"),
        ({"startingTimestamp": "yesterday"}, "is no time"),
        (
            {"startingTimestamp": "5", "startOffset": "1"},
            "startOffset and startingTimestamp both say",
        ),
        ({"maxRowsPerTrigger": "5"}, "only for a stream"),
        ({"invalidUtf8": "ignore"}, "not one of fail, replace, binary"),
    ],
)
def test_options_that_cannot_be(world: SourceWorld, options: dict[str, str], message: str) -> None:
    source, schema = source_of(world, segment="a", **options), source_of(world).schema()
    with pytest.raises(ConfigError, match=message):
        source.reader(schema)


# --- rows of a batch ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["raw", "lines", "events"])
@settings(max_examples=12)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=5),
    st.integers(1, 15),
    st.one_of(st.none(), st.integers(10, 300)),
    st.integers(0, 2**16),
)
def test_no_batch_has_more_rows_than_it_may(
    form: str, segments: list[list[int]], most: int, bytes_max: int | None, seed: int
) -> None:
    rng = random.Random(seed)
    world = new_world()
    expected: Counter[tuple[str, bytes]] = Counter()
    for number, lengths in enumerate(segments):
        name = f"s{number}"
        records = [b"%d-" % place + b"x" * length for place, length in enumerate(lengths)]
        data = (
            frame_events(records)
            if form == "events"
            else b"".join(record + b"\n" for record in records)
        )
        if form == "raw":
            records = [data[place : place + 7] for place in range(0, len(data), 7)]
        if form == "lines" and rng.random() < 0.5:
            data += b"end"
            records.append(b"end")
            world.append(name, data, [rng.randrange(1, 200)])
            world.seal(name)
        elif data:
            world.append(name, data, [rng.randrange(1, 200)])
        expected.update((name, record) for record in records)
    world.export()
    chosen: dict[str, Any] = {
        "prefix": "",
        "format": form,
        "pieceBytes": 7,
        "maxRowsPerTrigger": most,
    }
    if bytes_max is not None:
        chosen["maxBytesPerTrigger"] = bytes_max
    reader = stream_of(world, **chosen)
    limit = reader.getDefaultReadLimit()
    assert limit == (ReadMaxRows(most) if bytes_max is None else ReadMaxBytes(bytes_max))
    batches = stream_rows(reader, limit)
    if bytes_max is None or form != "raw":
        assert (
            Counter((row["segment"], row["payload"]) for batch in batches for row in batch)
            == expected
        )
    assert all(len(batch) <= most for batch in batches)
    if bytes_max is None:
        assert len(batches) <= 3 * -(-expected.total() // most) + len(segments)
    PROCESS_MEMORY.drop(world.url.removeprefix("memory://"))


def test_what_the_rows_of_a_batch_leave_is_remembered_as_waiting(world: SourceWorld) -> None:
    world.append("s", b"".join(b"%d\n" % number for number in range(10)))
    world.export()
    reader = stream_of(world, segment="s", format="lines", maxRowsPerTrigger=4)
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    world.delete("s")
    world.segment("other")
    world.export()
    with pytest.raises(DataLossError, match=r"bytes 8 to 20 .* with 12 bytes unread"):
        reader.latestOffset(offset, ReadMaxRows(4))


def test_progress_says_what_is_left(world: SourceWorld) -> None:
    for name in "ab":
        world.append(name, b"one\ntwo\n")
    world.export()
    reader = stream_of(world, prefix="", format="lines")
    assert reader.reportLatestOffset() is None
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(8))
    assert reader.reportLatestOffset() == {
        "bytesBehind": 8,
        "segmentsBehind": 2,
        "snapshotsSince": "1970-01-01T00:00:00.000+00:00",
    }
    reader.latestOffset(offset, ALL)
    report = reader.reportLatestOffset()
    assert report is not None
    assert (report["bytesBehind"], report["segmentsBehind"]) == (0, 0)


# --- text, and tables -----------------------------------------------------------------------------


def test_bytes_that_are_no_text_are_named_replaced_or_given_as_they_are(world: SourceWorld) -> None:
    world.append("s", "grün\n".encode() + b"b\xff\xfeb\nfine\n\xc3\n")
    world.export()
    chosen = {"segment": "s", "format": "lines", "columns": "offset,value"}
    where = "segment 's': the row at offset 6 is no UTF-8 text, .* byte 0xff at offset 7"
    with pytest.raises(SegmentEncodingError, match=where):
        read_batch(world, **chosen)
    assert [row["value"] for row in read_batch(world, **chosen, invalidUtf8="replace")] == [
        "grün",
        "b��b",
        "fine",
        "�",
    ]
    source = source_of(world, **chosen, invalidUtf8="binary")
    assert source.schema()["value"].dataType == BinaryType()
    reader = source.reader(source.schema())
    rows = [row for each in reader.partitions() for row in rows_of(reader.read(each))]
    assert [row["value"] for row in rows] == ["grün".encode(), b"b\xff\xfeb", b"fine", b"\xc3"]
    # Two rows whose bytes would be text if they were one.
    world.append("cut", b"\xc3\n\xbc\n")
    world.export()
    with pytest.raises(SegmentEncodingError, match="segment 'cut': the row at offset 0"):
        read_batch(world, **{**chosen, "segment": "cut"})


def test_a_table_is_refused_with_what_to_do_instead(world: SourceWorld) -> None:
    source = source_of(world, provider="segmentstore", segment="s")
    with pytest.raises(TableOptionsError, match="Use CREATE TEMPORARY VIEW"):
        source.schema()
    schema = source_of(world, segment="s").schema()
    bare = type(source)({})
    with pytest.raises(TableOptionsError, match="Spark forgets the options"):
        bare.reader(schema)
