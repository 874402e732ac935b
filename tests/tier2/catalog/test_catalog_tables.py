"""The tables say what the metadata say: every record once, in order, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import GarbageObject
from tests.support.chunk_edits import edited_chunks
from tests.tier2.catalog.metadata_maker import containers, make_metadata
from tier2.catalog import catalog_tables
from tier2.catalog.catalog_copy import copy_catalog
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_schema import ADDED_IN, CHUNKS, OBJECTS, SEGMENTS, check_version
from tier2.catalog.catalog_tables import (
    CatalogTables,
    TablesBuilder,
    build_tables,
    build_tables_of,
    conform,
)


def rebuilt(tables: CatalogTables) -> dict[str, Any]:
    """What the tables say, in the metadata's own words."""
    segments = {row["segment_id"]: row for row in tables.segments.to_pylist()}
    chunks: dict[int, list[ChunkRecord]] = {segment_id: [] for segment_id in segments}
    for row in tables.chunks.to_pylist():
        chunks[row["segment_id"]].append(ChunkRecord(*(row[name] for name in ChunkRecord._fields)))
    return {
        "segments": segments,
        "chunks": chunks,
        "objects": {row["name"]: row for row in tables.objects.to_pylist()},
    }


def chunks_of(segment: SegmentMetadata) -> list[ChunkRecord]:
    """Without those that are to be released."""
    start = segment.start_offset if segment.releasing else -1
    return [chunk for chunk in segment.chunks if chunk.end_offset > start]


@settings(deadline=None)
@given(containers())
def test_every_record_is_in_the_tables_as_it_is_in_the_metadata(
    metadata: ContainerMetadata,
) -> None:
    tables = build_tables(metadata)
    assert [table.schema for table in tables] == [SEGMENTS, CHUNKS, OBJECTS]
    said = rebuilt(tables)
    assert list(said["segments"]) == sorted(metadata.segments)
    for segment_id, segment in metadata.segments.items():
        row = said["segments"][segment_id]
        assert row == {
            "segment_id": segment_id,
            "name": segment.name if segment.merged_into is None else None,
            "start_offset": segment.start_offset,
            "length": segment.length,
            "storage_length": segment.storage_length,
            "sealed": segment.sealed,
            "merged_into": segment.merged_into,
            "created_ms": segment.created_ms,
            "last_modified_ms": segment.last_modified_ms,
            "chunk_count": len(chunks_of(segment)),
        }
        assert said["chunks"][segment_id] == chunks_of(segment)
    for row in tables.chunks.to_pylist():
        record = metadata.objects[row["object_name"]].record
        assert (
            ObjectRecord(row["object_name"], row["object_size"], row["object_created_ms"]) == record
        )


@settings(deadline=None)
@given(containers())
def test_an_object_lists_the_chunks_that_lie_in_it_by_their_place(
    metadata: ContainerMetadata,
) -> None:
    rows = build_tables(metadata).objects.to_pylist()
    assert [row["name"] for row in rows] == sorted([*metadata.objects, *metadata.garbage])
    for row in rows:
        assert row["shard"] == row["name"][:2]
        expected = sorted(
            (chunk.block_offset, chunk.length, chunk.block_segment_id, chunk.block_start_offset,
            segment.segment_id,
             chunk.start_offset)
            for segment in metadata.segments.values()
            for chunk in chunks_of(segment)
            if chunk.object_name == row["name"]
        )  # fmt: skip
        assert [tuple(block.values()) for block in row["blocks"]] == expected
        live = metadata.objects.get(row["name"])
        if live is not None:
            assert (row["state"], row["unreferenced_ms"]) == ("live", None)
            assert ObjectRecord(row["name"], row["size"], row["created_ms"]) == live.record
            assert row["live_bytes"] == sum(length for _, length, *_ in expected)
            assert row["live_bytes"] == live.live_bytes or metadata.releasing
        else:
            record = ObjectRecord(row["name"], row["size"], row["created_ms"])
            assert GarbageObject(record, row["unreferenced_ms"]) == metadata.garbage[row["name"]]
            assert (row["state"], row["live_bytes"], row["blocks"]) == ("garbage", 0, [])


@settings(deadline=None)
@given(containers())
def test_equal_metadata_make_equal_tables_in_whatever_order_they_came_about(
    metadata: ContainerMetadata,
) -> None:
    tables = build_tables(metadata)
    copy = decode_checkpoint(encode_checkpoint(metadata))
    for table in (copy.segments, copy.objects, copy.garbage):
        reversed_items = list(table.items())[::-1]
        table.clear()
        table.update(reversed_items)  # type: ignore[arg-type] # what came from it goes back
    assert build_tables(copy) == tables


def test_what_is_done_to_the_metadata_later_does_not_show_in_a_copy() -> None:
    metadata = make_metadata(random.Random(4), segments=10, chunks_max=5, objects=20, garbage=2)
    expected = build_tables(metadata)
    copy = copy_catalog(metadata)
    for segment in metadata.segments.values():
        segment.length += 5
        segment.sealed = True
        segment.name = "other"
        segment.merged_into = 1
        with edited_chunks(segment) as chunks:
            del chunks[1:]
    for live in metadata.objects.values():
        live.live_bytes = live.live_chunks = 0
    metadata.garbage.clear()
    metadata.segments.popitem()
    metadata.sequence_number += 1
    assert build_tables_of(copy) == expected
    assert copy.sequence_number == metadata.sequence_number - 1


@settings(deadline=None)
@given(containers(), st.integers(1, 5))
def test_parts_make_the_tables_of_the_whole(metadata: ContainerMetadata, size: int) -> None:
    copy = copy_catalog(metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_tables, "RECORDS_OF_A_PART", size)
        tables = build_tables_of(copy)
    assert tables == build_tables_of(copy)
    assert [column.num_chunks for table in tables for column in table.columns if len(column)] == [
        1 for table in tables for column in table.columns if len(column)
    ]


def test_records_that_do_not_fit_together_are_refused() -> None:
    metadata = make_metadata(random.Random(4), segments=9, chunks_max=5, objects=5)
    first, second = list(metadata.objects.values())[:2]
    first.live_chunks += 1
    with pytest.raises(ValueError, match="more or fewer chunks"):
        build_tables(metadata)
    second.live_chunks -= 1
    with pytest.raises(ValueError, match="other chunks"):
        build_tables(metadata)
    del metadata.objects[first.record.name]
    with pytest.raises(ValueError, match=f"a chunk is in {first.record.name}, which is not known"):
        build_tables(metadata)
    builder = TablesBuilder()
    builder.add_live([ObjectRecord("a", 1, 1)], [1], [1])
    builder.add_chunks([7], [ChunkRecord(0, 1, "a", 0, 7, 0)])
    with pytest.raises(ValueError, match="of a segment that is not known"):
        builder.build()


def test_ten_thousand_chunks_are_all_there() -> None:
    metadata = make_metadata(random.Random(4), segments=100, chunks_max=200, objects=2000)
    assert_metadata_valid(metadata)
    tables = build_tables(metadata)
    assert (
        tables.chunks.num_rows
        == sum(len(each.chunks) for each in metadata.segments.values())
        > 5_000
    )
    blocks: list[Any] = tables.objects["blocks"].to_pylist()
    assert sum(map(len, blocks)) == tables.chunks.num_rows


# --- other versions -------------------------------------------------------------------------------


def test_columns_that_are_not_known_are_left_out_and_the_order_does_not_matter() -> None:
    tables = build_tables(make_metadata(random.Random(1), segments=3, chunks_max=3, objects=3))
    newer = tables.chunks.append_column(
        "storage_class", pa.array(["cold"] * tables.chunks.num_rows)
    )
    newer = newer.select(sorted(newer.column_names))
    assert conform(newer, CHUNKS) == tables.chunks


def test_a_column_that_came_later_is_null_in_a_table_from_before() -> None:
    table = build_tables(
        make_metadata(random.Random(1), segments=3, chunks_max=3, objects=3)
    ).segments
    newer = SEGMENTS.append(pa.field("owner", pa.string(), metadata={ADDED_IN: b"1.1"}))
    assert conform(table, newer)["owner"].to_pylist() == [None] * 3
    assert conform(conform(table, newer), SEGMENTS) == table


def test_a_table_that_lacks_a_column_is_refused() -> None:
    table = build_tables(
        make_metadata(random.Random(1), segments=3, chunks_max=3, objects=3)
    ).objects
    with pytest.raises(CatalogFormatError, match="column state is missing"):
        conform(table.drop_columns(["state"]), OBJECTS)


def test_types_are_widened_and_others_refused() -> None:
    table = build_tables(
        make_metadata(random.Random(1), segments=3, chunks_max=3, objects=3)
    ).segments
    place = table.schema.get_field_index("length")
    narrow = table.set_column(place, "length", table["length"].cast(pa.int32()))
    assert conform(narrow, SEGMENTS) == table
    with pytest.raises(CatalogFormatError, match="column length is string"):
        conform(table.set_column(place, "length", pa.array(["a", "b", "c"])), SEGMENTS)
    with pytest.raises(CatalogFormatError, match="column length has 1 nulls"):
        conform(table.set_column(place, "length", pa.array([1, None, 3])), SEGMENTS)
    twice = table.append_column("length", table["length"])
    with pytest.raises(CatalogFormatError, match="column length is there 2 times"):
        conform(twice, SEGMENTS)


@pytest.mark.parametrize("version", ["1.0", "1.7"])
def test_newer_minor_versions_are_read(version: str) -> None:
    check_version(version, "table")


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "", "1.x"])
def test_other_major_versions_are_refused(version: str) -> None:
    with pytest.raises(CatalogFormatError, match="table: "):
        check_version(version, "table")
