"""Batches of the data source without a Spark session: planning, fetching and cutting together, on
objects cut in every way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from segmentstore.contracts.events import frame_events
from tests.support.suites import examples
from tests.tier2.spark.source_world import SourceWorld, payloads, read_batch, rows_of, source_of
from tier2.block_object import CODEC_ZSTD
from tier2.locations import PROCESS_MEMORY
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_storage import StorageUnavailableError
from tier2.spark.source.errors import (
    DataLossError,
    MissingObjectError,
    SegmentFramingError,
    SourceCatalogError,
    SourceSchemaError,
)
from tier2.spark.source.partition import SegmentPartition

NUMBERS = itertools.count()
TEXT = st.lists(
    st.sampled_from([b"\n", b"a", b"bc", b"\r\n", b"a longer line of text\n"]), max_size=40
).map(b"".join)
CUTS = st.lists(st.integers(0, 300), max_size=8)


def new_world(containers: int = 1) -> SourceWorld:
    return SourceWorld(f"memory://source-{next(NUMBERS)}", containers)


@pytest.fixture
def world() -> Iterator[SourceWorld]:
    made = new_world()
    yield made
    PROCESS_MEMORY.drop(made.url.removeprefix("memory://"))


def lines(data: bytes) -> list[tuple[int, bytes]]:
    offsets = [0, *(place + 1 for place, byte in enumerate(data) if byte == 10)]
    return list(zip(offsets, data.split(b"\n"), strict=True))[:-1]


@settings(max_examples=examples(60), deadline=None)
@given(TEXT.filter(bool), CUTS, st.integers(1, 100), st.integers(0, 200), st.integers(0, 200))
def test_lines_in_any_cut_of_objects_and_partitions(
    data: bytes, cuts: list[int], partition_bytes: int, low: int, high: int
) -> None:
    world = new_world()
    world.append("s", data, cuts)
    world.export()
    rows = read_batch(world, segment="s", format="lines", partitionBytes=partition_bytes)
    assert [(row["offset"], row["payload"]) for row in rows] == lines(data)
    low, high = sorted((low, high))
    some = read_batch(
        world,
        segment="s",
        format="lines",
        partitionBytes=partition_bytes,
        startOffset=low,
        endOffset=high,
    )
    assert [(row["offset"], row["payload"]) for row in some] == [
        row for row in lines(data) if low <= row[0] < high
    ]
    PROCESS_MEMORY.drop(world.url.removeprefix("memory://"))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=12), CUTS, st.integers(1, 60))
def test_events_in_any_cut_of_objects(
    events: list[bytes], cuts: list[int], partition_bytes: int
) -> None:
    world = new_world()
    world.append("s", frame_events(events), cuts)
    world.export()
    assert (
        payloads(read_batch(world, segment="s", format="events", partitionBytes=partition_bytes))
        == events
    )
    places = list(
        itertools.accumulate(
            map(len, events), lambda before, length: before + length + 4, initial=0
        )
    )
    world.append("t", frame_events(events), places[1::2])
    world.export()
    by_chunks = read_batch(
        world, segment="t", format="events", partitionBytes=partition_bytes, eventBorders="chunks"
    )
    assert payloads(by_chunks) == events
    PROCESS_MEMORY.drop(world.url.removeprefix("memory://"))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.binary(min_size=1, max_size=200),
    CUTS,
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 200),
)
def test_raw_in_any_cut_of_objects_and_counted_without_them(
    data: bytes, cuts: list[int], piece: int, partition_bytes: int, start: int
) -> None:
    world = new_world()
    world.append("s", data, cuts)
    world.export()
    options: dict[str, Any] = {
        "segment": "s",
        "partitionBytes": partition_bytes,
        "pieceBytes": piece,
        "startOffset": start,
    }
    rows = read_batch(world, columns="offset,length,payload", **options)
    assert (
        b"".join(payload for payload in payloads(rows) if isinstance(payload, bytes))
        == data[start:]
    )
    counted = read_batch(world, columns="offset,length", **options)
    assert counted == [{"offset": row["offset"], "length": row["length"]} for row in rows]
    PROCESS_MEMORY.drop(world.url.removeprefix("memory://"))


def test_names_prefixes_patterns_and_containers() -> None:
    world = new_world(containers=2)
    transaction = "logs/a#transaction." + "0123456789abcdef" * 2
    transient = "logs/b#transient." + "0123456789abcdef" * 5
    for name in ("logs/a", "logs/b", "other", transaction, transient):
        world.append(name, name.encode() + b"\n")
    world.append("logs/c", b"c\n", container_id=1)
    world.segment("logs/empty")
    world.export(0)

    def names(**options: Any) -> list[object]:
        return [row["segment"] for row in read_batch(world, format="lines", **options)]

    assert names(segment="logs/a") == ["logs/a"]
    with pytest.raises(SourceCatalogError, match="no catalog snapshot of container 1"):
        names(prefix="logs/")
    with pytest.raises(SourceCatalogError, match="no catalog snapshot of container 1"):
        names(segment="logs/c")
    world.export(1)
    assert names(prefix="logs/") == ["logs/a", "logs/b", "logs/c"]
    assert names(prefix="") == ["logs/a", "logs/b", "other", "logs/c"]
    assert names(pattern="*/[ac]") == ["logs/a", "logs/c"]
    assert names(prefix="logs/a", transactions="true") == ["logs/a", transaction]
    assert names(segment=transient) == [transient]
    assert names(prefix="nobody") == []
    assert names(segment="logs/empty") == []
    with pytest.raises(SourceCatalogError, match="no segment 'nobody'"):
        names(segment="nobody")
    full = read_batch(
        world, prefix="logs/c", columns="value,length,segment_id,container", format="lines"
    )
    assert full == [{"value": "c", "length": 1, "segment_id": 1, "container": 1}]


def test_no_snapshot_is_no_empty_store(world: SourceWorld) -> None:
    with pytest.raises(
        SourceCatalogError, match="has no catalog snapshot: export the catalog first"
    ):
        read_batch(world, prefix="")


def test_a_line_that_is_not_ended_is_no_row_unless_nothing_can_follow(world: SourceWorld) -> None:
    world.append("s", b"one\ntwo", [2, 5])
    world.export()
    assert payloads(read_batch(world, segment="s", format="lines")) == [b"one"]
    assert payloads(read_batch(world, segment="s", format="lines", incompleteTail="true")) == [
        b"one",
        b"two",
    ]
    world.seal("s")
    world.export()
    assert payloads(read_batch(world, segment="s", format="lines", partitionBytes=2)) == [
        b"one",
        b"two",
    ]


def test_behind_a_truncation_a_row_begins(world: SourceWorld) -> None:
    world.append("s", b"one\ntwo\nthree\n", [4, 8])
    world.truncate("s", 5)
    world.export()
    assert payloads(read_batch(world, segment="s", format="lines")) == [b"wo", b"three"]
    assert payloads(read_batch(world, segment="s", format="lines", startOffset=0)) == [
        b"wo",
        b"three",
    ]
    with pytest.raises(DataLossError, match="segment 's': bytes 3 to 5 are not there any more"):
        read_batch(world, segment="s", format="lines", startOffset=3)
    assert payloads(
        read_batch(world, segment="s", format="lines", startOffset=3, failOnDataLoss="false")
    ) == [
        b"wo",
        b"three",
    ]


def test_a_long_line_is_read_on_beyond_what_the_partition_knows(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tier2.spark.source.plan.AHEAD_BYTES", 8)
    monkeypatch.setattr("tier2.spark.source.rows.CUT_BYTES", 16)
    data = b"x" * 500 + b"\n" + b"y" * 300 + b"\nz\n"
    world.append("s", data, range(0, len(data), 7))
    world.export()
    rows = read_batch(world, segment="s", format="lines", partitionBytes=20)
    assert payloads(rows) == [b"x" * 500, b"y" * 300, b"z"]


@pytest.mark.parametrize("partition_bytes", [100, 10**6])
def test_compressed_blocks_are_lines_too(world: SourceWorld, partition_bytes: int) -> None:
    world.codec = CODEC_ZSTD
    world.append("s", b"a line that is like the others\n" * 100, [1000, 1700])
    world.export()
    rows = read_batch(world, segment="s", format="lines", partitionBytes=partition_bytes)
    assert payloads(rows) == [b"a line that is like the others"] * 100


def test_false_borders_of_events_fail_the_read(world: SourceWorld) -> None:
    events = [b"0123456789", b"abcdefghij"]
    world.append("s", frame_events(events), [9])
    world.export()
    assert payloads(read_batch(world, segment="s", format="events", partitionBytes=5)) == events
    with pytest.raises(
        SegmentFramingError, match=r"segment 's' at offset 0: .* do not begin with events"
    ):
        read_batch(world, segment="s", format="events", partitionBytes=5, eventBorders="chunks")


def test_a_flipped_bit_is_named(world: SourceWorld) -> None:
    world.append("s", b"some text\n" * 20, [100])
    world.export()
    objects = PROCESS_MEMORY.bucket(world.url.removeprefix("memory://")).objects
    (name,) = [each for each in objects if "/flush-" in each]
    held = objects[name]
    data = bytearray(held.data)
    data[-3] ^= 4
    objects[name] = MemoryObject(bytes(data), held.unique_id, held.modified_ms)
    with pytest.raises(
        DataCorruptionError, match=f"corrupt data at object {name} block at .* extent 6"
    ):
        read_batch(world, segment="s", format="lines")


def test_an_object_that_was_replaced_is_found_by_the_newest_snapshot(world: SourceWorld) -> None:
    data = b"".join(b"line %d\n" % number for number in range(100))
    world.append("s", data, range(0, len(data), 50))
    world.export()
    source = source_of(world, segment="s", format="lines", columns="payload", partitionBytes=200)
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())
    world.rewrite("s", data)
    with pytest.raises(MissingObjectError, match="export the catalog and read again"):
        list(reader.read(partitions[0]))
    world.export()
    found = [row for each in partitions for row in rows_of(reader.read(each))]
    assert payloads(found) == data.splitlines()


@pytest.mark.parametrize("form", ["raw", "lines"])
@pytest.mark.parametrize("how", ["truncated", "deleted"])
def test_what_is_lost_between_plan_and_read_is_reported_by_its_range(
    world: SourceWorld, form: str, how: str
) -> None:
    world.append("s", b"0123456\n" * 10, range(0, 80, 8))
    world.export()
    options = {"segment": "s", "format": form, "columns": "payload", "pieceBytes": 8}
    source = source_of(world, **options)
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    if how == "truncated":
        world.truncate("s", 48, delete=True)
    else:
        world.delete("s")
    world.export()
    lost = (
        "bytes 0 to 48 .* truncated up to 48" if how == "truncated" else "bytes 0 to 80 .* deleted"
    )
    with pytest.raises(DataLossError, match=lost):
        list(reader.read(partition))
    forgiving = source_of(world, failOnDataLoss="false", **options)
    rows = list(rows_of(forgiving.reader(source.schema()).read(partition)))
    assert len(rows) == (4 if how == "truncated" else 0)


def test_rows_without_their_bytes_cost_no_request(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append("s", bytes(1000), [300])
    world.export()
    source = source_of(
        world, segment="s", columns="offset,length", pieceBytes=100, partitionBytes=250
    )
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    assert all(isinstance(each, SegmentPartition) for each in partitions)

    async def never(*_: object) -> bytes:
        raise AssertionError("a request")

    monkeypatch.setattr("tier2.memory_object_storage.MemoryObjectStorage.get_range", never)
    rows = [row for each in partitions for row in rows_of(reader.read(each))]
    assert rows == [{"offset": place, "length": 100} for place in range(0, 1000, 100)]


def test_a_store_that_does_not_answer_is_asked_again(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tier2.spark.source.fetch.RETRY_MAX_S", 0.0)
    world.append("s", b"one\ntwo\n")
    world.export()
    get_range = MemoryObjectStorage.get_range
    asked: list[str] = []

    async def now_and_then(
        storage: MemoryObjectStorage, name: str, offset: int, length: int
    ) -> bytes:
        asked.append(name)
        if "/flush-" in name and len(asked) % 4:
            raise StorageUnavailableError(name, "not now")
        return await get_range(storage, name, offset, length)

    monkeypatch.setattr(MemoryObjectStorage, "get_range", now_and_then)
    assert payloads(read_batch(world, segment="s", format="lines")) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segmnt": "s"}, "setting segmnt: no option of this data source"),
        ({"segment": "s", "prefix": "p"}, "given: segment and prefix"),
        ({"format": "lines"}, "given: none"),
        ({"segment": "s", "format": "csv"}, "'csv' is not one of raw, lines, events"),
        ({"segment": "s", "pieceBytes": "0"}, "0 is outside 1 to"),
        ({"segment": "s", "pieceBytes": "many"}, "'many' is not a number of bytes"),
        ({"segment": "s", "startOffset": "9", "endOffset": "8"}, "8 is below startOffset, 9"),
        ({"segment": "s", "maxBytesPerTrigger": "8"}, "maxBytesPerTrigger: only for a stream"),
        ({"segment": "s", "eventBorders": "chunks"}, "format raw has no events"),
        ({"segment": "s", "tier2": "memory://twice"}, "given twice"),
        ({"segment": "s", "storeId": "mine"}, "storeId: 'mine' is no id of a store"),
        ({"segment": "s", "columns": "offset,,"}, "is not a list of different names"),
    ],
)
def test_options_that_cannot_be(world: SourceWorld, options: dict[str, str], message: str) -> None:
    source, schema = source_of(world, **options), source_of(world).schema()
    with pytest.raises(ConfigError, match=message):
        source.reader(schema)


def test_columns_that_are_none(world: SourceWorld) -> None:
    with pytest.raises(SourceSchemaError, match="no column 'color'"):
        source_of(world, segment="s", columns="color").schema()


def test_units_and_folders() -> None:
    from tier2.spark.source.options import parse_options

    options = parse_options(
        {"PATH": "/a folder/50%#", "Prefix": "", "partitionbytes": "64m"}, streaming=False
    )
    assert options.tier2 == "file:///a folder/50%25%23"
    assert options.partition_bytes == 64 << 20
    with pytest.raises(ConfigError, match="'folder' is no URL"):
        parse_options({"path": "folder", "prefix": ""}, streaming=False)
    with pytest.raises(ConfigError, match="startOffset: only for a batch"):
        parse_options({"path": "/folder", "prefix": "", "startOffset": "1"}, streaming=True)
