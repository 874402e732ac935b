"""What each operation needs of segments that memory has in part, and what of it is known."""

from __future__ import annotations

import pytest

from durablelog.metadata_needs import (
    ALL_CHUNKS,
    AttributeNeed,
    ChunkNeed,
    Need,
    chunks_needed,
    is_known,
    keys_of,
    needs_in_replay,
    needs_of,
)
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    ArchiveOperation,
    CheckpointOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    DeletionClockOperation,
    LinkChunksOperation,
    MergeOperation,
    ObjectsDeletedOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    SealOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    segments_of,
)
from segmentstore.contracts.archive_metadata import PartsSwept
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import AttributeKey, KeyedUpdate, UpdateType
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata

ONE, TWO, THREE = (bytes([number]) * 16 for number in (1, 2, 3))


def updates(*keys: AttributeKey) -> tuple[KeyedUpdate, ...]:
    return tuple((key, UpdateType.ACCUMULATE, 1, None) for key in keys)


def chunk(start: int, length: int = 10, name: str = "one") -> ChunkRecord:
    return ChunkRecord(start, length, name, 0, 5, start)


NEEDS: dict[type[Operation], list[tuple[Operation, list[Need]]]] = {
    AppendOperation: [
        (AppendOperation(5, 0, b"data"), []),
        (
            AppendOperation(5, 0, b"data", {ONE: 1, TWO: 2}),
            [AttributeNeed(5, ONE), AttributeNeed(5, TWO)],
        ),
    ],
    UpdateAttributesOperation: [
        (UpdateAttributesOperation(5), []),
        (
            UpdateAttributesOperation(5, updates=updates(ONE, TWO)),
            [AttributeNeed(5, ONE), AttributeNeed(5, TWO)],
        ),
        # As replay finds it.
        (UpdateAttributesOperation(5, {THREE: 1}), [AttributeNeed(5, THREE)]),
    ],
    TruncateOperation: [
        (TruncateOperation(5, 35), [ChunkNeed(5, 0, 35)]),
        (TruncateOperation(5, 35, in_slices=True), []),
    ],
    DeleteOperation: [
        (DeleteOperation(5), [ChunkNeed(5, 0, ALL_CHUNKS)]),
        (DeleteOperation(5, in_slices=True), []),
    ],
    ReleaseChunksOperation: [
        (ReleaseChunksOperation([]), []),
        (ReleaseChunksOperation([(9, 20), (5, 7)]), [ChunkNeed(9, 0, 20), ChunkNeed(5, 0, 7)]),
    ],
    StorageUpdateOperation: [
        (StorageUpdateOperation([ObjectRecord("one", 1, 1)], [(5, chunk(70))]), []),
        (
            StorageUpdateOperation(links=[(5, 9), (5, 7)]),
            [ChunkNeed(9, 0, ALL_CHUNKS), ChunkNeed(7, 0, ALL_CHUNKS)],
        ),
    ],
    LinkChunksOperation: [(LinkChunksOperation(5, 9, 20), [ChunkNeed(9, 0, 20)])],
    MergeOperation: [
        (MergeOperation(5, 9), []),
        (MergeOperation(5, 9, updates=updates(ONE)), [AttributeNeed(5, ONE)]),
        (MergeOperation(5, 9, attributes={TWO: 1}), [AttributeNeed(5, TWO)]),
    ],
    ReplaceChunksOperation: [
        (ReplaceChunksOperation([ObjectRecord("new", 1, 1)]), []),
        (
            ReplaceChunksOperation(
                [ObjectRecord("new", 1, 1)],
                [
                    ChunkReplacement(5, (chunk(10), chunk(20)), (chunk(10, 20, "new"),)),
                    ChunkReplacement(9, (chunk(0),), (chunk(0, 10, "new"),)),
                    ChunkReplacement(5, (chunk(50),), (chunk(50, 10, "new"),)),
                ],
            ),
            [ChunkNeed(5, 10, 30), ChunkNeed(9, 0, 10), ChunkNeed(5, 50, 60)],
        ),
    ],
}
"""Operations that need something, or may. A chunk is added behind the last page, which is always
known.
"""

NEEDLESS: list[Operation] = [
    SealOperation(5, 70),
    CreateOperation("new", {ONE: 1}, updates=updates(TWO)),
    CheckpointOperation(b""),
    SnapshotCheckpointOperation(1, bytes(16)),
    ObjectsDeletedOperation(["one"]),
    DeletionClockOperation(1, bytes(16), 2, 3),
    ArchiveOperation(PartsSwept(1)),
]
"""One of each other kind."""


CASES = [*(case for found in NEEDS.values() for case in found), *((each, []) for each in NEEDLESS)]
KINDS = [type(operation).__name__ for operation, _ in CASES]

each_case = pytest.mark.parametrize(("operation", "needs"), CASES, ids=KINDS)


def test_what_each_kind_of_operation_needs_is_known() -> None:
    assert set(KINDS) == {kind.__name__ for kind in Operation.__subclasses__()}
    assert not {type(operation) for operation in NEEDLESS} & set(NEEDS)
    for kind, found in NEEDS.items():
        assert {type(operation) for operation, _ in found} == {kind}
        assert any(needs for _, needs in found)


@each_case
def test_an_operation_needs_the_chunks_and_attributes_that_it_changes(
    operation: Operation, needs: list[Need]
) -> None:
    assert list(needs_of(operation)) == needs
    assert list(chunks_needed(operation)) == [need for need in needs if isinstance(need, ChunkNeed)]
    assert {need.segment_id for need in needs} <= set(segments_of(operation))


def test_the_keys_of_updates_are_in_their_order() -> None:
    assert keys_of(updates(TWO, ONE, TWO)) == [TWO, ONE, TWO]
    assert keys_of(()) == []


def partial_metadata() -> ContainerMetadata:
    """Segment 5: chunks of [20, 70), of which those from 60 on are known, and two attributes, of
    which one is.
    """
    metadata = ContainerMetadata(0)
    metadata.segments[5] = segment = SegmentMetadata(5, "s", 1)
    segment.chunks = ChunkList.partial(5, 20, [chunk(60)])
    segment.attributes = AttributeTable.partial(2)
    segment.attributes.learn({ONE: 1, THREE: None})
    metadata.partial.add(5)
    return metadata


@pytest.mark.parametrize(
    ("need", "known"),
    [
        (ChunkNeed(5, 0, ALL_CHUNKS), False),
        (ChunkNeed(5, 0, 21), False),
        (ChunkNeed(5, 59, 61), False),
        (ChunkNeed(5, 60, 61), True),
        (ChunkNeed(5, 60, ALL_CHUNKS), True),
        # There is no chunk there.
        (ChunkNeed(5, 0, 20), True),
        (AttributeNeed(5, ONE), True),
        (AttributeNeed(5, TWO), False),
        # It is known that it is not there.
        (AttributeNeed(5, THREE), True),
        # Of a segment that is not in memory nothing is needed.
        (ChunkNeed(6, 0, ALL_CHUNKS), True),
        (AttributeNeed(6, TWO), True),
    ],
)
def test_a_need_is_known_if_all_of_it_is_in_memory(need: Need, known: bool) -> None:
    assert is_known(partial_metadata(), need) == known


@each_case
def test_an_updater_says_what_of_an_operation_is_not_in_memory(
    operation: Operation, needs: list[Need]
) -> None:
    metadata = partial_metadata()
    updater = MetadataUpdater(metadata)
    missing = [need for need in needs if not is_known(metadata, need)]
    assert updater.unknown(operation) == missing
    segment = metadata.segments[5]
    segment.attributes.learn({TWO: 2})
    segment.chunks.learn(20, [chunk(at) for at in range(20, 60, 10)])
    assert updater.unknown(operation) == []
    metadata.partial.clear()
    assert updater.unknown(operation) == []


def sources_of(operation: Operation, *before: MergeOperation) -> list[int]:
    """Sources with chunks that an operation on segment 1 takes, behind others of the log."""
    metadata = ContainerMetadata(0)
    for segment_id, sources in ((1, (2, 3)), (2, (4,)), (3, ()), (4, ()), (5, (6,)), (6, ())):
        metadata.segments[segment_id] = segment = SegmentMetadata(segment_id, "s", 1)
        for place, source_id in enumerate(sources):
            segment.add_merge(MergeRecord(10 * place, 10, source_id))
    needs = [*needs_in_replay(metadata, [*before, operation])]
    assert all(need.segment_id > 1 or need in needs_of(operation) for need in needs)
    return [need.segment_id for need in needs if need.segment_id > 1]


def test_what_is_taken_at_once_from_sources_of_merges_is_needed() -> None:
    merge = MergeOperation(1, 5, 20, 10)
    assert sources_of(DeleteOperation(1)) == [2, 3, 4]
    assert sources_of(DeleteOperation(1, in_slices=True)) == []
    assert sources_of(DeleteOperation(3)) == [3]
    assert sources_of(TruncateOperation(1, 9)) == []
    assert sources_of(TruncateOperation(1, 10)) == [2, 4]
    assert sources_of(TruncateOperation(1, 29), merge) == [2, 3, 4]
    assert sources_of(TruncateOperation(1, 30), merge) == [2, 3, 5, 4, 6]
    assert sources_of(TruncateOperation(1, 30, in_slices=True), merge) == []


def test_all_chunks_end_behind_every_segment() -> None:
    assert ALL_CHUNKS >= 1 << 63
    assert partial_metadata().segments[5].chunks.gaps(0, ALL_CHUNKS) == [(20, 60)]
