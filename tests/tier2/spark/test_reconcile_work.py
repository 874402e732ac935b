"""What the tasks of reconciliation say of planted divergences, without Spark: every class at its
place, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.chunk_edits import chunk_at, edited_chunks
from tests.support.suites import share
from tests.tier2.spark.reconcile_dry import dry_run, found
from tests.tier2.spark.reconcile_world import DAY_S, SEGMENTS, World
from tier2.catalog.catalog_manifest import Manifest
from tier2.spark.common.arrow_rows import is_text
from tier2.spark.common.storages import with_storage
from tier2.spark.reconcile.findings import StoreFacts
from tier2.spark.reconcile.listing import list_rest, list_shard
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.scan_work import Listers, shards_of_part
from tier2.spark.reconcile.tasks import CheckInputs, check_missing
from tier2.spark.reconcile.work import MISSING


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2")


@pytest.mark.parametrize(
    ("check", "parts"), share(product(["bodies", "headers", "none"], [8, 1, 256]), 9, 2)
)
def test_nothing_is_said_of_a_store_that_is_as_it_should_be(
    world: World, parts: int, check: str
) -> None:
    findings, counters = dry_run(world, parts=parts, check=check)
    assert findings.num_rows == 0
    assert counters["chunks"] == 2 * 12 * len(SEGMENTS)
    assert counters["listing"] == 24
    assert counters.get("looked_into", 0) == (0 if check == "none" else 24)


def test_each_class_is_found_where_it_was_planted_and_nothing_else(world: World) -> None:
    names = world.names(1)
    world.lose(names[0])
    world.lengthen(names[1])
    world.mistake(names[2], segment_id=99)
    world.flip(names[3], 2000)
    world.make_unreadable(names[4])
    orphan, young, newer = world.orphan(0), world.orphan(1, age_s=DAY_S), world.orphan(1, epoch=9)
    waiting = world.garbage(0)
    planted = (
        "readme.txt",
        "other/deep/file",
        "ab/file",
        "copy of data.bin",
        "lost+found/é.txt",
        "ab/~x y",
    )
    foreign = [world.put(name, b"x") for name in planted]
    world.put("checkpoints/00000000/x", b"x")
    world.put("mailbox/00000000/x.json", b"x")
    world.drop_chunk(0, 8, 5)
    world.lengthen_chunk(0, 9, 6)
    findings, _ = dry_run(world)
    assert found(findings) == {
        ("missing", names[0]),
        ("wrong_size", names[1]),
        ("wrong_identity", names[2]),
        ("bad_checksum", names[3]),
        ("unreadable", names[4]),
        ("orphan", orphan),
        ("in_flight", young),
        ("orphan", newer),
        ("waiting_for_deletion", waiting),
        *(("foreign", name) for name in foreign),
        ("gap", "0/8"),
        ("overlap", "0/9"),
        # The chunk reaches before its block.
        ("wrong_identity", chunk_at(world.metadata[0].segments[9], 6).object_name),
    }
    assert findings.num_rows == 18
    severities = {row["kind"]: row["severity"] for row in findings.to_pylist()}
    assert severities["missing"] == "harmful"
    assert (severities["orphan"], severities["in_flight"]) == ("note", "information")


def test_a_missing_object_says_what_is_lost_with_it(world: World) -> None:
    name = world.names()[0]
    world.lose(name)
    (row,) = dry_run(world)[0].to_pylist()
    assert all(f"segment {segment_id} from" in row["evidence"] for segment_id in SEGMENTS)
    assert "a HEAD says" in row["evidence"]
    assert row["run_id"] == "00000000000000aa"


def test_what_the_owner_does_between_the_snapshots_is_no_finding(world: World) -> None:
    taken, appended = world.names(0)[3], []

    def between() -> Mapping[int, Manifest]:
        # A live owner: an object is replaced and deleted already, another has come, one was merely
        # released.
        world.forget(0, taken)
        world.lose(taken)
        del world.metadata[0].garbage[taken]
        world.forget(0, world.names(0)[4])
        appended.append(world.add_object(0, 10**6))
        for segment_id in SEGMENTS:
            segment = world.metadata[0].segments[segment_id]
            segment.start_offset = segment.chunks.last.start_offset
            segment.storage_length = segment.length = segment.chunks.last.end_offset
            segment.chunks.remove_below(segment.start_offset)
        return world.snapshot()

    findings, counters = dry_run(world, between=between)
    assert found(findings) <= {("in_flight", taken)}
    assert counters.get(MISSING) is None


def test_an_object_lost_while_the_owner_works_is_missing_in_both_snapshots(world: World) -> None:
    lost = world.names(0)[3]
    world.lose(lost)

    def between() -> Mapping[int, Manifest]:
        world.add_object(0, 10**6)
        for segment_id in SEGMENTS:
            segment = world.metadata[0].segments[segment_id]
            with edited_chunks(segment) as chunks:
                chunks.pop()
        return world.snapshot()

    assert ("missing", lost) in found(dry_run(world, between=between, check="none")[0])


def test_an_object_that_came_back_before_it_was_asked_for_is_not_missing(world: World) -> None:
    name = world.names()[0]
    data = world.path(name).read_bytes()
    world.lose(name)

    def between() -> Mapping[int, Manifest]:
        world.put(name, data)
        return world.snapshot()

    assert found(dry_run(world, between=between)[0]) == set()


def test_an_object_of_an_open_proposal_is_in_flight_however_old(world: World) -> None:
    name = world.orphan(0)
    assert found(dry_run(world, open_names=[name])[0]) == {("in_flight", name)}


def test_an_object_that_went_while_it_was_inspected_is_reported(world: World) -> None:
    name = world.names()[0]

    def between() -> Mapping[int, Manifest]:
        manifests = world.snapshot()
        world.lose(name)
        return manifests

    findings, counters = dry_run(world, between=between)
    assert (findings.num_rows, counters[MISSING]) == (0, 1)


def test_of_a_container_without_a_snapshot_nothing_is_said(world: World) -> None:
    world.lose(world.names(1)[0])
    world.orphan(1)
    lost = world.names(0)[0]
    world.lose(lost)
    findings, counters = dry_run(world, unresponsive=[1])
    assert found(findings) == {("missing", lost)}
    assert counters["looked_into"] == 11


def test_a_listing_of_another_time_is_asked_once_more(world: World) -> None:
    there, gone, cut = world.names(0)[0], world.orphan(0), world.names(0)[1]
    shards = {
        shard: pa.concat_tables(list(list_shard(world.url, shard)) or [LISTING.empty_table()])
        for shard in range(256)
    }
    world.lose(gone)
    # The listing was made when one object was not yet there and another not yet whole.
    shard = int(there[:2], 16)
    shards[shard] = shards[shard].filter(pc.invert(is_text(shards[shard]["key"], there)))
    shard = int(cut[:2], 16)
    column = pc.if_else(is_text(shards[shard]["key"], cut), pa.scalar(1), shards[shard]["size"])
    shards[shard] = shards[shard].set_column(1, "size", column)
    listers = Listers(
        lambda some: [shards[number] for number in some], lambda: list_rest(world.url)
    )
    assert found(dry_run(world, listers=listers, confirm_all=True)[0]) == set()
    assert found(dry_run(world, listers=listers)[0]) == {("orphan", gone)}


def test_a_missing_object_that_another_container_s_catalog_has_says_what_is_lost_with_it(
    world: World,
) -> None:
    # A name says whose it is, and nothing proves that.
    taken = world.names(1)[3]
    stranger = world.metadata[0].objects
    stranger[taken] = world.metadata[1].objects.pop(taken)
    for number, moved in world.chunks_of(1, taken):
        with edited_chunks(world.metadata[1].segments[number]) as chunks:
            chunks.remove(moved)
        world.metadata[0].segments[number].own_chunks().append(moved)
    world.lose(taken)
    rows = [row for row in dry_run(world, check="none")[0].to_pylist() if row["kind"] == "missing"]
    assert [row["object"] for row in rows] == [taken]
    assert all(f"segment {segment_id} from" in rows[0]["evidence"] for segment_id in SEGMENTS)


@pytest.mark.parametrize("width", [1, 3, 64])
def test_a_listing_is_taken_in_the_pieces_it_comes_in(world: World, width: int) -> None:
    lost, orphan = world.names(0)[0], world.orphan(1)
    world.lose(lost)

    def listed(some: range) -> list[pa.Table]:
        assert len(some) <= width
        return [table for shard in some for table in list_shard(world.url, shard)]

    def pieces(shards: range) -> list[range]:
        return [
            range(start, min(start + width, shards.stop))
            for start in range(shards.start, shards.stop, width)
        ]

    listers = Listers(listed, lambda: list_rest(world.url), pieces)
    findings, counters = dry_run(world, listers=listers, check="none")
    assert found(findings) == {("missing", lost), ("orphan", orphan)}
    assert counters["listing"] == 24


def test_two_chunks_of_one_stretch_of_a_block_overlap(world: World) -> None:
    segment = world.metadata[0].segments[7]
    chunk = chunk_at(segment, 2)
    thief = world.metadata[0].segments[8]
    with edited_chunks(thief) as chunks:
        chunks[3] = chunks[3]._replace(
            object_name=chunk.object_name,
            block_offset=chunk.block_offset,
            block_segment_id=7,
            block_start_offset=chunk.block_start_offset,
        )
    findings, _ = dry_run(world)
    assert {row["kind"] for row in findings.to_pylist()} == {"overlap"}


@pytest.mark.parametrize("parts", [1, 3, 8, 100, 256])
def test_parts_hold_every_shard_once(parts: int) -> None:
    assert [shard for part in range(parts) for shard in shards_of_part(part, parts)] == list(
        range(256)
    )
    assert not shards_of_part(parts, parts)


def test_what_a_listing_of_another_time_lacks_is_left_to_a_third_check(world: World) -> None:
    lost, replaced, kept = world.names(0)[0], world.names(0)[1], world.names(0)[2]
    listers = Listers(
        lambda some: [LISTING.empty_table() for _ in some], lambda: [LISTING.empty_table()]
    )

    def between() -> Mapping[int, Manifest]:
        # Newer than the listing, needed by both snapshots, and deleted by its owner before it was
        # asked for.
        manifests = world.snapshot()
        world.lose(lost)
        world.forget(0, replaced)
        del world.metadata[0].garbage[replaced]
        world.lose(replaced)
        return manifests

    findings, counters = dry_run(
        world, between=between, listers=listers, confirm_all=True, check="none"
    )
    assert (found(findings), counters[MISSING]) == (set(), 2)
    before = world.snapshot()
    after = world.snapshot()
    place = StoreFacts({0: 3, 1: 3}, world.now_ms, 0)
    by = CheckInputs(before, after, place, "run", confirm_all=True)
    third = with_storage(
        world.url, lambda storage: check_missing(storage, [lost, replaced, kept], by)
    )
    assert found(third) == {("missing", lost)}
