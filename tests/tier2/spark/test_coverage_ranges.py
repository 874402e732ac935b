"""Segments cut into ranges: what ranges, borders and walks say together is what one check of the
whole container says.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.runtime import Runtime
from tests.support.chunk_edits import chunk_at
from tests.support.suites import examples
from tests.tier2.spark.reconcile_dry import dry_run, found
from tests.tier2.spark.reconcile_world import PAYLOAD, World
from tier2.catalog import catalog_files
from tier2.catalog.catalog_groups import open_groups
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.locations import open_object_storage
from tier2.spark.reconcile import coverage_tasks
from tier2.spark.reconcile.coverage import SegmentWalk, broken_segments, check_range
from tier2.spark.reconcile.coverage_tasks import COVERED, cover_range, cover_segment

_COLUMNS = ("segment_id", "start_offset", "length", "object_name")

Rows = list[tuple[int, int, int]]


def chunk_table(rows: Rows) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(3)]
    names = pa.array([f"o{at}" for at in range(len(rows))], pa.string())
    return pa.table(dict(zip(_COLUMNS, [*columns, names], strict=True)))


def segment_table(rows: Rows) -> pa.Table:
    names = ("segment_id", "start_offset", "storage_length")
    return pa.table(
        {name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names)}
    )


segments_of = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=4
).map(lambda rows: [(2 * number, start, length) for number, (start, length) in enumerate(rows)])
chunks_of = st.lists(
    st.tuples(st.sampled_from([0, 2, 4, 6]), st.integers(0, 12), st.integers(0, 5)), max_size=14
).map(sorted)


@settings(deadline=None, max_examples=examples(300))
@given(segments_of, chunks_of, st.lists(st.integers(0, 14), max_size=4))
def test_ranges_and_walks_say_what_the_whole_says(
    segments: Rows, chunks: Rows, cuts: list[int]
) -> None:
    known = {row[0] for row in segments}
    chunks = [row for row in chunks if row[0] in known]
    whole, _ = check_range(
        segment_table(segments),
        chunk_table(chunks),
        container_id=1,
        part=0,
        continues=False,
        goes_on=False,
    )
    borders = sorted({0, len(chunks), *(cut for cut in cuts if cut < len(chunks))})
    ranges = list(pairwise(borders)) or [(0, 0)]
    rows, named = [], []
    for part, (start, end) in enumerate(ranges):
        some = chunks[start:end]
        goes_on = end < len(chunks) and some[-1][0] == chunks[end][0]
        least = chunks[start][0] if start else -1
        behind = chunks[end][0] + goes_on if end < len(chunks) else 100
        said, cut = check_range(
            segment_table([row for row in segments if least <= row[0] < behind]),
            chunk_table(chunks).slice(start, end - start),
            container_id=1,
            part=part,
            continues=start > 0 and chunks[start - 1][0] == some[0][0],
            goes_on=goes_on,
        )
        rows += said.to_pylist()
        named += cut
    for segment_id in broken_segments(named):
        walk = SegmentWalk.of(segment_table([row for row in segments if row[0] == segment_id]))
        own = [row for row in chunks if row[0] == segment_id]
        for at in range(0, len(own), 3):
            rows += [
                one._asdict() | {"segment_id": segment_id}
                for one, _ in walk.see_rows(chunk_table(own[at : at + 3]))
            ]
        rows += [one._asdict() | {"segment_id": segment_id} for one, _ in walk.end()]

    def place(row: dict[str, object]) -> tuple[object, ...]:
        return (row["kind"], row["segment_id"], row["start_offset"], row["length"], row["evidence"])

    assert sorted(map(place, rows)) == sorted(map(place, whole.to_pylist()))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Row groups of five chunks: a segment of twelve is in three or four of them."""
    monkeypatch.setattr(catalog_files, "ROW_GROUP_ROWS", 5)
    monkeypatch.setattr(coverage_tasks, "WALKED_GROUPS", 2)
    return World(tmp_path / "tier2", containers=1)


@pytest.mark.parametrize("rows_per_task", [1, 5, 7, 12, 1000])
def test_a_cut_segment_that_is_as_it_should_be_is_no_finding(
    world: World, rows_per_task: int
) -> None:
    findings, counters = dry_run(world, check="none", chunks_per_task=rows_per_task)
    assert findings.num_rows == 0
    assert counters["chunks"] == 36
    assert (counters.get("border", 0) > 0) == (rows_per_task < 36)


@pytest.mark.parametrize("rows_per_task", [1, 5, 7, 12, 1000])
def test_faults_at_and_between_borders_are_found_with_their_objects(
    world: World, rows_per_task: int
) -> None:
    world.drop_chunk(0, 7, 5)  # the first of the second row group
    reaching = world.lengthen_chunk(0, 8, 6)
    last = world.metadata[0].segments[9].chunks.last
    world.metadata[0].segments[9].storage_length -= 10
    findings, _ = dry_run(world, check="none", chunks_per_task=rows_per_task)
    assert found(findings) == {("gap", "0/7"), ("overlap", "0/8"), ("overlap", "0/9")}
    places = {
        row["segment_id"]: (row["start_offset"], row["length"], row["object"])
        for row in findings.to_pylist()
    }
    behind = chunk_at(world.metadata[0].segments[7], 5)
    assert places[7] == (5 * len(PAYLOAD), len(PAYLOAD), behind.object_name)
    assert places[8] == (reaching.start_offset, 10, reaching.object_name)
    assert places[9] == (12 * len(PAYLOAD) - 10, 10, last.object_name)


def test_chunks_of_an_unknown_segment_are_reported_by_every_range_that_has_some() -> None:
    said, borders = check_range(
        segment_table([(8, 0, 100)]),
        chunk_table([(8, 95, 5), (9, 0, 5), (9, 5, 5)]),
        container_id=0,
        part=1,
        continues=True,
        goes_on=True,
    )
    assert [(row["kind"], row["segment_id"]) for row in said.to_pylist()] == [("wrong_identity", 9)]
    assert [border.segment_id for border in borders] == [8]


def test_a_task_reads_its_own_range_and_a_walk_a_stretch_at_a_time(world: World) -> None:
    """Bounds, counted: rows of a range, and of a walk however long the segment is."""
    manifest = world.snapshot()[0]
    read: list[tuple[int, int]] = []

    async def look(manifest: Manifest) -> None:
        storage = open_object_storage(world.url, Runtime())
        try:
            groups = await open_groups(storage, manifest, "chunks", COVERED)
            parts = 3
            ranges = [groups.range(part, parts) for part in range(parts)]
            assert [groups.rows(each.start, each.stop) for each in ranges if each] == [10, 15, 11]
            for part in range(parts):
                covered = await cover_range(storage, manifest, part, parts, "run")
                assert len(covered.borders) <= 2
                assert covered.chunks <= 15
            assert (await cover_segment(storage, manifest, 8, "run")).num_rows == 0
            table = await read_table(storage, manifest, "chunks", columns=COVERED)
            start, stop = groups.of_segments(8, 8)
            assert {8} < set((await groups.read(start, stop))["segment_id"].to_pylist())
            assert table.num_rows == groups.rows(0, len(groups)) == 36
            read.append((start, stop))
        finally:
            await storage.close()

    asyncio.run(look(manifest))
    assert read == [(2, 5)]
