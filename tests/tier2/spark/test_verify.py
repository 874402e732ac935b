"""Inspecting objects: each class of fault found at its place, nothing else said, and a store that
does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tests.tier2.spark.reconcile_world import PAYLOAD, SEGMENTS, World
from tier2.block_object import parse_block_header
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_storage import StorageUnavailableError
from tier2.spark.common.storages import with_storage
from tier2.spark.reconcile.findings import FindingKind
from tier2.spark.reconcile.verify import (
    ATTEMPTS,
    FAILURES_IN_A_ROW_MAX,
    ObjectsCheck,
    verify_objects,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2", containers=1, objects=6)


def check(world: World, **options: Any) -> ObjectsCheck:
    objects = world.objects()
    return with_storage(world.url, lambda storage: verify_objects(storage, [objects], **options))


def kinds(checked: ObjectsCheck) -> list[tuple[FindingKind, str | None]]:
    return [(finding.kind, finding.object) for finding in checked.findings]


@pytest.mark.parametrize("bodies", [False, True])
def test_nothing_is_said_of_what_is_right(world: World, bodies: bool) -> None:
    checked = check(world, bodies=bodies)
    assert checked.findings == []
    assert checked.missing == []
    assert (checked.objects, checked.blocks) == (6, 18)
    size = sum(live.record.size for live in world.metadata[0].objects.values())
    assert checked.bytes_read >= size if bodies else checked.bytes_read <= size


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1024, 5000, 1 << 20])
def test_pieces_of_any_size_read_every_byte_once(world: World, piece_bytes: int) -> None:
    size = sum(live.record.size for live in world.metadata[0].objects.values())
    checked = check(world, piece_bytes=piece_bytes)
    assert checked.findings == []
    assert checked.bytes_read == size


@pytest.mark.parametrize("block", range(len(SEGMENTS)))
def test_a_changed_byte_of_a_body_is_found_by_reading_bodies_alone(
    world: World, block: int
) -> None:
    name = world.names()[2]
    segment_id, chunk = world.chunks_of(0, name)[block]
    header = parse_block_header(world.path(name).read_bytes()[chunk.block_offset :])
    world.flip(name, chunk.block_offset + header.block_length - 1)
    assert check(world, bodies=False).findings == []
    (finding,) = check(world).findings
    assert (finding.kind, finding.object, finding.container_id) == (
        FindingKind.BAD_CHECKSUM,
        name,
        0,
    )
    assert (finding.segment_id, finding.start_offset, finding.length) == (
        segment_id,
        chunk.start_offset,
        chunk.length,
    )
    assert finding.severity is None
    assert "extent 9" in finding.evidence


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"segment_id": 99}, "segment 99"),
        ({"container_id": 5}, "container 5"),
        ({"start_offset": 1}, "holds bytes 1"),
        ({"epoch": 77}, "epoch 77"),
    ],
)
def test_a_foreign_block_has_a_wrong_identity(
    world: World, wrong: dict[str, int], said: str, bodies: bool
) -> None:
    name = world.names()[0]
    world.mistake(name, **wrong)
    (finding,) = check(world, bodies=bodies).findings
    assert (finding.kind, finding.object, finding.segment_id) == (
        FindingKind.WRONG_IDENTITY,
        name,
        SEGMENTS[0],
    )
    assert said in str(finding.actual)
    assert str(finding.expected).endswith(f"of segment {SEGMENTS[0]}")


def test_what_is_no_block_is_unreadable_and_the_next_ones_are_checked_all_the_same(
    world: World,
) -> None:
    name = world.names()[1]
    world.make_unreadable(name)
    (_, _), (_, second), (_, _) = world.chunks_of(0, name)
    world.flip(name, second.block_offset + 600)
    checked = check(world)
    assert kinds(checked) == [(FindingKind.UNREADABLE, name), (FindingKind.BAD_CHECKSUM, name)]


def test_a_changed_header_has_a_bad_checksum(world: World) -> None:
    name = world.names()[1]
    world.flip(name, 40)
    assert kinds(check(world, bodies=False)) == [(FindingKind.BAD_CHECKSUM, name)]


def test_an_object_that_is_cut_has_a_wrong_size_and_no_other_finding(world: World) -> None:
    name = world.names()[3]
    chunks = world.chunks_of(0, name)
    world.cut(name, chunks[1][1].block_offset + 500)
    (finding,) = check(world).findings
    size = world.metadata[0].objects[name].record.size
    assert (finding.kind, finding.object) == (FindingKind.WRONG_SIZE, name)
    assert (finding.expected, finding.actual) == (
        f"{size} bytes",
        f"{chunks[1][1].block_offset + 500} bytes",
    )
    assert f"{chunks[1][1].block_offset}" in finding.evidence


def test_a_fault_where_no_chunk_lies_is_a_note(world: World) -> None:
    name = world.names()[0]
    place = next(
        index
        for index, chunk in enumerate(world.metadata[0].segments[8].chunks)
        if chunk.object_name == name
    )
    dropped = world.drop_chunk(0, 8, place)
    world.flip(name, dropped.block_offset + 600)
    (finding,) = check(world).findings
    assert (finding.kind, finding.severity, finding.segment_id) == (
        FindingKind.BAD_CHECKSUM,
        Severity.NOTE,
        None,
    )


def test_what_is_not_there_is_distinguished_and_is_no_finding(world: World) -> None:
    world.lose(world.names()[4])
    checked = check(world)
    assert (checked.findings, checked.missing, checked.objects) == ([], [world.names()[4]], 5)


def test_garbage_is_not_inspected(world: World) -> None:
    world.garbage(0)
    assert check(world).findings == []


def test_chunks_that_were_merged_are_compared_with_what_their_block_was_written_for(
    world: World,
) -> None:
    segments = world.metadata[0].segments
    moved = [
        chunk._replace(start_offset=chunk.start_offset + 6 * len(PAYLOAD))
        for chunk in segments[8].chunks
    ]
    segments[7].own_chunks().extend(moved)
    segments[8].chunks = ChunkList()
    assert check(world).findings == []


class Failing(MemoryObjectStorage):
    """The world's objects, some of which cannot be had: the first `times` requests for each."""

    def __init__(self, world: World, names: Sequence[str], times: int) -> None:
        super().__init__(Runtime(clock=LoopClock(), executor=inline_executor))
        self.left = dict.fromkeys(names, times)
        for name in world.names():
            self.bucket.objects[name] = MemoryObject(world.path(name).read_bytes(), bytes(16), 0)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        if self.left.get(name):
            self.left[name] -= 1
            raise StorageUnavailableError(name, "the disk is ill", "EIO")
        return await super().get_range(name, offset, length)


def check_failing(world: World, names: Sequence[str], times: int) -> ObjectsCheck:
    results: list[ObjectsCheck] = []

    async def body() -> None:
        storage = Failing(world, names, times)
        results.append(await verify_objects(storage, [world.objects()], at_once=2))

    run_virtual(body())
    return results[0]


def test_an_object_that_can_be_had_later_is_inspected(world: World) -> None:
    checked = check_failing(world, world.names(), ATTEMPTS - 1)
    assert (checked.findings, checked.objects) == ([], 6)


def test_an_object_that_cannot_be_had_is_unreadable_and_not_known_to_be_lost(world: World) -> None:
    name = world.names()[1]
    checked = check_failing(world, [name], 1000)
    (finding,) = checked.findings
    assert (finding.kind, finding.object, finding.severity) == (
        FindingKind.UNREADABLE,
        name,
        Severity.UNKNOWN,
    )
    assert "the disk is ill" in finding.evidence


def test_several_in_a_row_are_the_failure_of_the_store(world: World) -> None:
    assert len(world.names()) > FAILURES_IN_A_ROW_MAX
    with pytest.raises(StorageUnavailableError):
        check_failing(world, world.names(), 1000)
