"""Parquet files of tables: the same bytes for the same table, cut at shards, readable in part by a
footer and ranges.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.metadata import ContainerMetadata
from tests.tier2.catalog.metadata_maker import containers, make_metadata
from tier2.catalog import catalog_files
from tier2.catalog.catalog_files import (
    PartialFile,
    encode_parquet,
    footer_size,
    read_whole,
    row_groups,
)
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_schema import CHUNKS, OBJECTS, SCHEMAS, SEGMENTS
from tier2.catalog.catalog_tables import build_tables


def some_tables(seed: int = 1) -> dict[str, pa.Table]:
    metadata = make_metadata(random.Random(seed), segments=20, chunks_max=20, objects=60, garbage=3)
    return dict(build_tables(metadata)._asdict())


def encoded(name: str, table: pa.Table) -> bytes:
    return encode_parquet(table, row_groups(name, table))


def footer_of(data: bytes) -> bytes:
    return data[-footer_size(data[-8:]) :]


@settings(deadline=None)
@given(containers())
def test_what_was_encoded_is_read_back(metadata: ContainerMetadata) -> None:
    tables = build_tables(metadata)
    assert read_whole(encoded("segments", tables.segments), SEGMENTS) == tables.segments
    assert read_whole(encoded("chunks", tables.chunks), CHUNKS) == tables.chunks
    assert read_whole(encoded("objects", tables.objects), OBJECTS) == tables.objects


def test_equal_tables_are_equal_bytes() -> None:
    for name, table in some_tables().items():
        again = pa.concat_tables([table.slice(0, 3), table.slice(3)]).combine_chunks()
        assert encoded(name, again) == encoded(name, table)


def test_a_row_group_of_objects_is_of_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "SHARD_ROWS_MAX", 2)
    objects = build_tables(
        make_metadata(random.Random(3), segments=40, chunks_max=40, objects=900)
    ).objects
    file = pq.ParquetFile(pa.BufferReader(encoded("objects", objects)))
    groups = [file.read_row_group(index) for index in range(file.num_row_groups)]
    assert all(len(set(group["shard"].to_pylist())) == 1 for group in groups)
    assert max(group.num_rows for group in groups) == 2
    shards = [group["shard"][0].as_py() for group in groups]
    assert shards == sorted(shards)
    assert len(shards) > len(set(shards)) > 100
    assert pa.concat_tables(groups) == objects


def test_chunks_are_cut_by_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "ROW_GROUP_ROWS", 10)
    chunks = some_tables()["chunks"]
    groups = row_groups("chunks", chunks)
    assert groups[:-1] == [10] * (len(groups) - 1)
    assert sum(groups) == chunks.num_rows
    assert (
        row_groups("chunks", chunks.slice(0, 0)) == row_groups("objects", chunks.slice(0, 0)) == []
    )


def test_some_columns_are_read_in_the_order_asked_for() -> None:
    objects = some_tables()["objects"]
    data = encoded("objects", objects)
    assert read_whole(data, OBJECTS, ["size", "blocks"]) == objects.select(["size", "blocks"])
    with pytest.raises(ValueError, match="there is no column colour"):
        read_whole(data, OBJECTS, ["colour"])


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 255), max_size=4),
    st.sampled_from([None, ["name"], ["blocks", "shard"]]),
)
def test_shards_are_read_from_their_row_groups_alone(
    wanted: list[int], columns: list[str] | None
) -> None:
    objects = some_tables(5)["objects"]
    data = encoded("objects", objects)
    partial = PartialFile(len(data), footer_of(data), OBJECTS, columns)
    for shard in wanted:
        groups = partial.choose_shards(range(shard, shard + 1))
        ranges = partial.ranges(groups)
        table = partial.read(
            groups,
            [(each.offset, data[each.offset : each.offset + each.length]) for each in ranges],
        )
        rows = [row["name"][:2] == f"{shard:02x}" for row in objects.to_pylist()]
        assert table == objects.filter(pa.array(rows, pa.bool_())).select(table.column_names)
        assert len(groups) <= 1
        assert len(ranges) <= 1


def test_far_ranges_are_fetched_apart_and_near_ones_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_files, "_MERGED_GAP_BYTES", 64 * 1024)
    source = random.Random(8)
    rows = 3 * 256
    names = sorted(f"{number % 3:02x}/" + source.randbytes(500).hex() for number in range(rows))
    table = pa.table(
        {
            "shard": [name[:2] for name in names],
            "name": names,
            "size": range(rows),
            "created_ms": range(rows),
            "state": ["live"] * rows,
            "unreferenced_ms": [None] * rows,
            "live_bytes": range(rows),
            "blocks": [[]] * rows,
        },
        schema=OBJECTS,
    )
    data = encoded("objects", table)
    partial = PartialFile(len(data), footer_of(data), OBJECTS)
    assert [len(partial.ranges(groups)) for groups in ([0], [0, 1], [0, 2], [0, 1, 2], [])] == [
        1,
        1,
        2,
        1,
        0,
    ]
    assert sum(each.length for each in partial.ranges([0, 2])) < len(data) * 0.7


def test_row_groups_of_chunks_are_chosen_by_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "ROW_GROUP_ROWS", 10)
    chunks = some_tables()["chunks"]
    data = encoded("chunks", chunks)
    partial = PartialFile(len(data), footer_of(data), CHUNKS)
    ids: list[Any] = chunks["segment_id"].to_pylist()
    bounds = [
        (min(ids[start : start + 10]), max(ids[start : start + 10]))
        for start in range(0, len(ids), 10)
    ]
    for wanted in ([ids[0]], [ids[25], ids[26], ids[90]], [], [0], [10**9], sorted(set(ids))):
        expected = [
            group
            for group, (low, high) in enumerate(bounds)
            if any(low <= each <= high for each in wanted)
        ]
        assert partial.choose_segments(wanted) == expected


@pytest.mark.parametrize("name", ["segments", "chunks", "objects"])
def test_bytes_that_are_no_such_table_are_refused_whatever_they_are(name: str) -> None:
    tables = some_tables()
    data = encoded(name, tables[name])
    source = random.Random(2)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        place = source.randrange(len(data))
        damaged[place] ^= 1 << source.randrange(8)
        try:
            table = read_whole(bytes(damaged), SCHEMAS[name])
        except CatalogFormatError:
            refused += 1
        else:
            # A bit that means nothing to a reader, as of statistics; what is read is what was
            # written.
            assert table.num_rows == tables[name].num_rows
    assert refused > 20
    for broken in (b"", b"PAR1", data[:-1], data[: len(data) // 2], data[4:], b"PAR1" * 10):
        with pytest.raises(CatalogFormatError):
            read_whole(broken, SCHEMAS[name])


def test_a_table_of_another_kind_lacks_columns() -> None:
    tables = some_tables()
    data = encoded("segments", tables["segments"])
    with pytest.raises(CatalogFormatError, match="column shard is missing"):
        read_whole(data, OBJECTS)
    with pytest.raises(CatalogFormatError, match="column shard is missing"):
        PartialFile(len(data), footer_of(data), OBJECTS)


def test_a_footer_that_is_none_is_refused() -> None:
    with pytest.raises(CatalogFormatError, match="does not end as a Parquet file"):
        footer_size(b"PAR2" * 2)
    with pytest.raises(CatalogFormatError, match="its footer"):
        PartialFile(100, b"\0" * 20 + (12).to_bytes(4, "little") + b"PAR1", OBJECTS)


def test_bytes_that_were_not_fetched_are_an_error_and_not_zeros() -> None:
    data = encoded("objects", some_tables()["objects"])
    partial = PartialFile(len(data), footer_of(data), OBJECTS)
    with pytest.raises(CatalogFormatError, match="were not fetched"):
        partial.read([0], [])
