"""The pure checks: what each calls a fault, and where it says it is."""

from __future__ import annotations

import pytest

from recovery.consistency_check import Listing, check_metadata, differences, in_order, note_garbage
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.findings import Finding, Severity, harmful, note
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import GarbageObject, LiveObject
from tests.support.chunk_edits import edited_chunks
from tier2.object_names import object_name
from tier2.object_storage import StoredObject

NAME = object_name(0, 1, "flush", bytes(16))


def container(*chunks: tuple[int, int], start: int = 0, stored: int = 30) -> ContainerMetadata:
    """One segment of 40 bytes with chunks (start offset, length), each in a block of its own."""
    metadata = ContainerMetadata(0)
    metadata.sequence_number = 9
    segment = SegmentMetadata(2, "a", 0)
    segment.start_offset, segment.length, segment.storage_length = start, 40, stored
    segment.chunks = ChunkList(
        ChunkRecord(offset, length, NAME, 1000 * index, 2, offset)
        for index, (offset, length) in enumerate(chunks)
    )
    metadata.segments[2] = segment
    metadata.names["a"] = 2
    if chunks:
        metadata.objects[NAME] = LiveObject(ObjectRecord(NAME, 10_000, 0), len(chunks))
    return metadata


def kinds(metadata: ContainerMetadata) -> list[tuple[str, str]]:
    prefix = "container 0, segment 'a' "
    return [
        (finding.kind, finding.place.removeprefix(prefix)) for finding in check_metadata(metadata)
    ]


@pytest.mark.parametrize(
    ("chunks", "start", "stored"),
    [
        ([(0, 30)], 0, 30),
        ([(0, 10), (10, 20)], 0, 30),
        ([(10, 20)], 15, 30),
        ([], 0, 0),
        ([], 40, 40),
    ],
)
def test_whole_metadata_has_no_finding(
    chunks: list[tuple[int, int]], start: int, stored: int
) -> None:
    assert kinds(container(*chunks, start=start, stored=stored)) == []


@pytest.mark.parametrize(
    ("chunks", "start", "found"),
    [
        ([], 0, ("gap", "offset 0")),
        ([(10, 20)], 5, ("gap", "offset 5")),
        ([(0, 10), (12, 18)], 0, ("gap", "offset 10")),
        ([(0, 10), (10, 10)], 0, ("gap", "offset 20")),
        ([(0, 10), (8, 22)], 0, ("overlap", "offset 8")),
        ([(0, 35)], 0, ("overlap", "offset 30")),
        ([(0, 30), (30, 0)], 0, ("chunk", "offset 30")),
    ],
)
def test_gaps_and_overlaps(
    chunks: list[tuple[int, int]], start: int, found: tuple[str, str]
) -> None:
    assert kinds(container(*chunks, start=start)) == [found]


def test_chunks_outside_of_what_is_known() -> None:
    metadata = container((0, 30))
    with edited_chunks(metadata.segments[2]) as chunks:
        chunks[0] = chunks[0]._replace(block_offset=9_990)
    assert kinds(metadata) == [("chunk", "offset 0")]
    metadata.objects.clear()
    assert kinds(metadata) == [("chunk", "offset 0")]


def test_one_byte_for_two_chunks() -> None:
    metadata = container((0, 10), (10, 20))
    with edited_chunks(metadata.segments[2]) as chunks:
        chunks[1] = chunks[1]._replace(block_offset=0, block_start_offset=9)
    assert kinds(metadata) == [("overlap", f"object {NAME} block at 0")]


def test_other_invariants() -> None:
    metadata = container((0, 30))
    metadata.names["other"] = 2
    assert kinds(metadata) == [("metadata", "container 0")]


def test_an_object_without_chunks_is_garbage_and_not_live() -> None:
    metadata = container((0, 30))
    metadata.objects["x"] = LiveObject(ObjectRecord("x", 1, 0))
    assert kinds(metadata) == [("metadata", "container 0")]


def test_differences_name_what_differs() -> None:
    one, other = container((0, 30)), container((0, 30))
    assert differences(one, other) == []
    other.segments[2].encoded = b"kept"
    assert differences(one, other) == []
    other.segments[2].sealed = True
    other.names["b"] = 3
    other.objects[NAME].live_chunks = 5
    other.garbage["x"] = GarbageObject(ObjectRecord("x", 1, 0), 0)
    assert differences(one, other) == [
        "segment 2",
        "name 'b'",
        f"object {NAME!r}",
        "garbage object 'x'",
    ]


def test_garbage_is_counted() -> None:
    metadata = ContainerMetadata(3)
    assert list(note_garbage(metadata)) == []
    metadata.garbage["x"] = GarbageObject(ObjectRecord("x", 1200, 0), 0)
    (found,) = note_garbage(metadata)
    assert found == Finding(
        Severity.NOTE, "garbage", "container 3", "1 objects, 1,200 bytes, wait for their deletion"
    )


def test_a_listing_is_sorted_into_known_orphaned_and_foreign() -> None:
    known, waiting = container((0, 30)), object_name(0, 1, "flush", bytes([1]) * 16)
    known.garbage[waiting] = GarbageObject(ObjectRecord(waiting, 1, 0), 0)
    listing = Listing({0: known, 1: None, 2: ContainerMetadata(2)})
    orphan = object_name(0, 1, "flush", bytes([2]) * 16)
    unknown = object_name(1, 1, "flush", bytes([3]) * 16)
    lost = object_name(2, 1, "flush", bytes([4]) * 16)
    foreign = object_name(3, 1, "flush", bytes([5]) * 16)
    message = "mailbox/00000000/00000000feedbeef/group-1.json"
    for name in (NAME, waiting, orphan, unknown, lost, foreign, "x/y", message):
        listing.add(StoredObject(name, 10, 0))
    found = list(listing.findings())
    assert [(finding.severity, finding.kind, finding.place) for finding in found] == [
        (Severity.NOTE, "orphans", "container 0"),
        (Severity.HARMFUL, "log-lost", "container 2"),
        (Severity.NOTE, "foreign-objects", "Tier 2"),
    ]
    assert orphan in found[0].detail
    assert "2 objects (20 bytes" in found[2].detail


def test_harmful_findings_come_first() -> None:
    found = [note("a", "", ""), harmful("b", "", ""), note("c", "", ""), harmful("d", "", "")]
    assert [finding.kind for finding in in_order(found)] == ["b", "d", "a", "c"]
