"""Many small segments: how many partitions a plan has, how many GETs a read, and that every byte
comes.

`make spark-plan` plans a million of them.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from segmentstore.contracts.errors import DataCorruptionError
from tests.support.suites import slow
from tests.tier2.spark.source_world import (
    SourceWorld,
    read_batch,
    read_stream,
    rows_of,
    source_of,
    stream_of,
)
from tier2.locations import PROCESS_MEMORY
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.spark.source import group as source_group
from tier2.spark.source.catalog import load_snapshots
from tier2.spark.source.chunks import ChunkTable, split_chunks
from tier2.spark.source.errors import MissingObjectError, SourceCatalogError
from tier2.spark.source.group import group_runs, groups
from tier2.spark.source.options import SourceOptions, parse_options
from tier2.spark.source.packing import OBJECT_BYTES, RANGE_BYTES, Chunks, plan_parts
from tier2.spark.source.partition import SegmentPartition
from tier2.spark.source.plan import RowPart, RowRange, SourceSegment

SEGMENTS = int(os.environ.get("SPARK_PLAN_SEGMENTS", "10000"))
NUMBERS = itertools.count()
MIB = 1024 * 1024


@pytest.fixture
def world() -> Iterator[SourceWorld]:
    made = SourceWorld(f"memory://packing-{next(NUMBERS)}")
    yield made
    PROCESS_MEMORY.drop(made.url.removeprefix("memory://"))


@pytest.fixture
def gets(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """GETs by object."""
    counted: Counter[str] = Counter()
    get_range = MemoryObjectStorage.get_range

    async def counting(storage: MemoryObjectStorage, name: str, offset: int, length: int) -> bytes:
        counted[name] += 1
        return await get_range(storage, name, offset, length)

    monkeypatch.setattr(MemoryObjectStorage, "get_range", counting)
    return counted


def options_of(**given_: object) -> SourceOptions:
    return parse_options(
        {
            "path": "/x",
            "prefix": "",
            "format": "lines",
            **{key: str(value) for key, value in given_.items()},
        },
        streaming=False,
    )


def flushed(
    segments: int, flushes: int, length: int, per_object: int
) -> tuple[list[RowRange], Chunks]:
    """A container in which each flush put `length` bytes of each segment, so many segments to an
    object."""
    ids = np.repeat(np.arange(segments), flushes)
    turn = np.tile(np.arange(flushes), segments)
    number = turn * -(-segments // per_object) + ids // per_object
    names = pa.DictionaryArray.from_arrays(
        pa.array(number),
        pa.array(
            [f"{each % 256:02x}/0/5/flush-{each:032x}" for each in range(int(number.max()) + 1)]
        ),
    )
    table = pa.table(
        {
            "segment_id": ids,
            "start_offset": turn * length,
            "length": np.full(len(ids), length),
            "object_name": pa.chunked_array([names.cast(pa.string())]),
            "block_offset": (ids % per_object) * (length + 256),
            "block_segment_id": ids,
            "block_start_offset": turn * length,
            "object_size": np.full(len(ids), per_object * (length + 256)),
            "object_created_ms": turn,
        }
    )
    end = flushes * length
    ranges = [
        RowRange(SourceSegment(0, each, f"s{each}", 0, end, False), 0, end, 0, end)
        for each in range(segments)
    ]
    return ranges, {0: split_chunks(table)}


@slow(1)
def test_many_small_segments_are_few_partitions() -> None:
    ranges, chunks = flushed(SEGMENTS, 1, 1024, 1000)
    plan = plan_parts(ranges, chunks, options_of())
    assert Counter(part.rows.segment.segment_id for some in plan for part in some) == Counter(
        range(SEGMENTS)
    )
    cost = SEGMENTS * (1024 + RANGE_BYTES) + SEGMENTS // 1000 * OBJECT_BYTES
    assert len(plan) <= max(4, 2 * cost // (128 * MIB)) + 1
    assert len(plan) <= 1000
    if SEGMENTS == 10_000:
        assert len(plan) in {4, 5, 6}
        assert max(map(len, plan)) > 2000
        assert len(plan_parts(ranges, chunks, options_of(minPartitions=40))) in range(40, 50)
        assert len(plan_parts(ranges, chunks, options_of(partitionBytes="16m"))) in range(20, 25)
        assert (
            len(plan_parts(ranges, chunks, options_of(minPartitions=1, partitionBytes="4g"))) == 1
        )
    # What goes to a task, and lies in the driver's memory meanwhile.
    size = sum(len(pickle.dumps(SegmentPartition(some))) for some in plan[:4])
    assert size < 100 * sum(map(len, plan[:4]))


def test_segments_in_objects_of_their_own_are_few_partitions_as_well() -> None:
    ranges, chunks = flushed(SEGMENTS, 1, 100, 1)
    plan = plan_parts(ranges, chunks, options_of())
    assert 4 < len(plan) <= 1000
    assert sum(map(len, plan)) == SEGMENTS


def test_neighbours_in_an_object_share_a_partition() -> None:
    # Each flush made 5 objects, and 800 segments lie in each; ids and objects go crosswise.
    ranges, chunks = flushed(4000, 3, 500, 800)
    plan = plan_parts(ranges[::-1], chunks, options_of(minPartitions=5))
    assert len(plan) in {5, 6, 7}
    for some in plan:
        assert len({part.rows.segment.segment_id // 800 for part in some}) <= 2
        partition = SegmentPartition(some)
        runs = group_runs(partition.ranges)
        # 3 flushes, and at most two objects of each.
        assert len(runs) <= 6
        assert sum(len(run.stretches) for run in runs) == 3 * len(some)


def test_a_segment_in_many_objects_is_cut_by_objects() -> None:
    ranges, chunks = flushed(1, 20_000, 1000, 1)
    plan = plan_parts(ranges, chunks, options_of())
    assert len(plan) in {4, 5, 6}, "20 MB, but as many GETs as 128 MiB are not"
    ranges, chunks = flushed(1, 20, 1_000_000, 1)
    assert len(plan_parts(ranges, chunks, options_of(minPartitions=1))) == 1


def test_ranges_whose_bytes_are_not_needed_are_packed_too() -> None:
    ranges, _ = flushed(5000, 1, 10, 100)
    plan = plan_parts(ranges, None, options_of())
    assert len(plan) in {4, 5}
    assert [part.rows for some in plan for part in some] == ranges
    with pytest.raises(SourceCatalogError, match="no chunk of segment 's0'"):
        plan_parts(ranges, {}, options_of())


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(30, 400),
    st.integers(1, 8),
)
def test_every_row_is_in_one_partition_and_comes_back_whole(
    shapes: list[tuple[int, int]], partition_bytes: int, min_partitions: int
) -> None:
    rows: list[tuple[Any, ...]] = []
    ranges = []
    for segment_id, (length, count) in enumerate(shapes):
        for turn in range(count):
            name = f"o{(segment_id + turn) % 5}"
            rows.append(
                (
                    segment_id,
                    turn * length,
                    length,
                    name,
                    len(rows) * 50,
                    segment_id,
                    turn * length,
                    9999,
                    turn,
                )
            )
        end = length * count
        segment = SourceSegment(0, segment_id, f"s{segment_id}", 0, end, False)
        ranges.append(RowRange(segment, 0, end, 0, end))
    columns = zip(*rows, strict=True)
    table = pa.table(
        dict(
            zip(
                ("segment_id", "start_offset", "length", "object_name", "block_offset"),
                columns,
                strict=False,
            )
        )
        | {
            name: pa.array([row[place] for row in rows])
            for place, name in enumerate(
                ("block_segment_id", "block_start_offset", "object_size"), 5
            )
        }
        | {"object_created_ms": pa.array([row[8] for row in rows])}
    )
    chunks = {0: ChunkTable(table).segments()}
    plan = plan_parts(
        ranges, chunks, options_of(partitionBytes=partition_bytes, minPartitions=min_partitions)
    )
    given_out = [each for some in plan for each in SegmentPartition(some).ranges]
    by_segment: dict[int, list[RowRange]] = {}
    for each in given_out:
        by_segment.setdefault(each.segment.segment_id, []).append(each)
    for whole in ranges:
        mine = sorted(by_segment[whole.segment.segment_id], key=lambda each: each.start)
        assert [each.start for each in mine] == [0, *[each.end for each in mine[:-1]]]
        assert mine[-1].end == whole.end
        for each in mine:
            known = chunks[0][whole.segment.segment_id]
            assert each.chunks == known.between(each.read_from, min(each.end + MIB, each.limit))
            assert each.segment == whole.segment


def test_groups_are_bounded_and_in_order() -> None:
    ranges, chunks = flushed(300, 2, 30_000, 50)
    parts = [
        RowPart(rows, chunks[0][0].table, *chunks[0][rows.segment.segment_id].span(0, rows.end))
        for rows in ranges
    ]
    found = list(groups(SegmentPartition(parts).ranges))
    assert [each.segment.segment_id for some in found for each in some] == list(range(300))
    sizes = [sum(chunk.length for each in some for chunk, _, _ in each.chunks) for some in found]
    assert sizes[0] <= source_group.GROUP_BYTES_FIRST
    assert max(sizes) <= source_group.GROUP_BYTES
    assert len(found) < 6


def test_side_by_side_segments_are_one_get_an_object(
    world: SourceWorld, gets: Counter[str]
) -> None:
    names = [f"s{number:03}" for number in range(400)]
    objects = []
    for turn in range(3):
        objects += [
            world.flush({name: f"{name} {turn}\n".encode() for name in names[first : first + 200]})
            for first in (0, 200)
        ]
    world.export()
    gets.clear()
    rows = read_batch(world, prefix="s", format="lines", minPartitions=1)
    assert sorted((row["segment"], row["payload"]) for row in rows) == [
        (name, f"{name} {turn}".encode()) for name in names for turn in range(3)
    ]
    assert {name: gets[name] for name in objects} == dict.fromkeys(objects, 1)


def test_ends_of_a_batch_of_many_short_backlogs_are_few_gets(
    world: SourceWorld, gets: Counter[str]
) -> None:
    names = [f"s{number:03}" for number in range(200)]
    reader = stream_of(world, prefix="s", format="lines")
    offset = reader.initialOffset()
    for turn in range(2):
        object_name = world.flush({name: f"{name} {turn}\nand mo".encode() for name in names})
        world.export()
        gets.clear()
        end = reader.latestOffset(offset, ReadAllAvailable())
        assert gets[object_name] == 1
        rows = read_stream(reader, offset, end)
        cut = "and mo" if turn else ""
        assert {row["payload"] for row in rows} == {
            f"{cut}{name} {turn}".encode() for name in names
        }
        assert len(rows) == len(names)
        offset = end


@pytest.mark.parametrize("form", ["raw", "lines", "events"])
def test_groups_give_what_each_alone_gives(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch, gets: Counter[str], form: str
) -> None:
    from segmentstore.contracts.events import frame_events

    for turn in range(4):
        data = {}
        for number in range(30):
            records = [
                b"%d %d %d" % (number, turn, each) * (each % 4) for each in range(number % 5 + 1)
            ]
            whole = (
                frame_events(records)
                if form == "events"
                else b"".join(each + b"\n" for each in records)
            )
            data[f"s{number}"] = whole
        world.flush(data)
    world.append("large", b"x" * 500 + b"\n", range(0, 500, 3)) if form == "lines" else None
    world.seal("s3")
    world.export()
    monkeypatch.setattr(source_group, "GROUP_BYTES_FIRST", 100)
    monkeypatch.setattr(source_group, "SMALL_BYTES", 300)
    chosen = {
        "prefix": "",
        "format": form,
        "pieceBytes": 7,
        "startOffset": 0 if form == "events" else 3,
    }

    def sorted_rows() -> list[tuple[Any, ...]]:
        rows = read_batch(world, columns="segment,offset,payload", **chosen)
        return sorted((row["segment"], row["offset"], row["payload"]) for row in rows)

    gets.clear()
    together, few = sorted_rows(), gets.total()
    monkeypatch.setattr(source_group, "SMALL_BYTES", 0)
    gets.clear()
    assert sorted_rows() == together
    assert few < gets.total() - 20


def test_objects_compacted_meanwhile_are_asked_for_together(
    world: SourceWorld, gets: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number:03}" for number in range(50)]
    world.flush({name: f"{name}\n".encode() for name in names})
    world.export()
    source = source_of(
        world, prefix="s", format="lines", columns="segment,payload", minPartitions=1
    )
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    for name in names:
        world.rewrite(name, f"{name}\n".encode())
    world.export()
    looks = []
    look = load_snapshots

    async def counted(*given_: Any) -> Any:
        looks.append(given_)
        return await look(*given_)

    monkeypatch.setattr("tier2.spark.source.group.load_snapshots", counted)
    monkeypatch.setattr("tier2.spark.source.fetch.load_snapshots", counted)
    assert [row["payload"] for row in rows_of(reader.read(partition))] == [
        name.encode() for name in names
    ]
    assert len(looks) == 1


def test_what_is_missing_or_damaged_in_a_group_is_reported_by_its_name(world: SourceWorld) -> None:
    object_name = world.flush({name: f"{name}\n".encode() for name in ("a", "b", "c")})
    world.flush({name: f"{name}\n".encode() for name in ("d", "e")})
    world.export()
    (chunk,) = world.segment("b").chunks
    objects = PROCESS_MEMORY.bucket(world.url.removeprefix("memory://")).objects
    whole = objects[object_name]
    data = bytearray(whole.data)
    place = data.index(b"b\n", chunk.block_offset + 128)
    data[place] ^= 1
    objects[object_name] = whole._replace(data=bytes(data))
    where = f"corrupt data at object {object_name} block at {chunk.block_offset}"
    with pytest.raises(DataCorruptionError, match=where):
        read_batch(world, prefix="", format="lines", minPartitions=1)
    world.delete_object(object_name)
    with pytest.raises(
        MissingObjectError, match=f"segment 'a': object {object_name}, which holds offset 0"
    ):
        read_batch(world, prefix="", format="lines", minPartitions=1)
