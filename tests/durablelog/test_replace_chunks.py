"""Replacing chunks: the same bytes at the same offsets, elsewhere; refused, piece by piece, where
anything has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    ObjectsDeletedOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from recovery.consistency_check import check_metadata, differences
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid

SIZE = 10_000


class Container:
    """Metadata made by operations alone; `a` has 40 bytes in four objects, `b` 20 bytes in two of
    them.
    """

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(3)
        self.updater = MetadataUpdater(self.metadata)
        self.log: list[Operation] = []
        self.a, self.b = self.create("a"), self.create("b")
        self.put(AppendOperation(self.a, 0, bytes(40)), AppendOperation(self.b, 0, bytes(20)))
        for number in range(4):
            chunks = [(self.a, ChunkRecord(10 * number, 10, f"o{number}", 0, self.a, 10 * number))]
            if number < 2:
                chunks.append(
                    (self.b, ChunkRecord(10 * number, 10, f"o{number}", 500, self.b, 10 * number))
                )
            self.put(StorageUpdateOperation([ObjectRecord(f"o{number}", SIZE, number)], chunks))

    def put(self, *operations: Operation) -> None:
        for operation in operations:
            operation.sequence_number = self.metadata.sequence_number + 1
            operation.timestamp_ms = 1000 + operation.sequence_number
            self.updater.replay(operation)
            self.log.append(operation)
            self.check()

    def create(self, name: str) -> int:
        operation = CreateOperation(name)
        self.put(operation)
        return operation.sequence_number

    def chunks(self, segment_id: int) -> list[ChunkRecord]:
        return list(self.metadata.segments[segment_id].chunks)

    def replacement(
        self, segment_id: int, first: int, last: int, name: str, place: int = 0
    ) -> ChunkReplacement:
        """Chunks `first` to `last` of a segment become one, in one block."""
        old = tuple(self.chunks(segment_id)[first : last + 1])
        start, length = old[0].start_offset, old[-1].end_offset - old[0].start_offset
        return ChunkReplacement(
            segment_id, old, (ChunkRecord(start, length, name, place, segment_id, start),)
        )

    def check(self) -> None:
        assert_metadata_valid(self.metadata)
        assert not list(check_metadata(self.metadata))
        for name, live in self.metadata.objects.items():
            lengths = [
                c.length
                for s in self.metadata.segments.values()
                for c in s.chunks
                if c.object_name == name
            ]
            assert live.live_bytes == sum(lengths)


def replace(replacements: Sequence[ChunkReplacement], name: str = "new") -> ReplaceChunksOperation:
    return ReplaceChunksOperation([ObjectRecord(name, SIZE, 50)], replacements)


def test_chunks_become_one_and_their_objects_garbage_once_nothing_in_them_is_live() -> None:
    c = Container()
    c.put(replace([c.replacement(c.a, 0, 2, "new")]))
    assert [(k.start_offset, k.length, k.object_name) for k in c.chunks(c.a)] == [
        (0, 30, "new"),
        (30, 10, "o3"),
    ]
    assert c.metadata.objects.keys() == {"new", "o0", "o1", "o3"}, "o0 and o1 still have bytes of b"
    assert c.metadata.garbage["o2"].unreferenced_ms == c.log[-1].timestamp_ms
    assert c.metadata.segments[c.a].storage_length == 40


def test_every_stretch_is_taken_or_passed_over_on_its_own() -> None:
    c = Container()
    operation = replace([c.replacement(c.a, 0, 1, "new"), c.replacement(c.b, 0, 1, "new", 300)])
    c.put(TruncateOperation(c.a, 10), operation)
    assert [chunk.object_name for chunk in c.chunks(c.a)] == ["o1", "o2", "o3"]
    assert [chunk.object_name for chunk in c.chunks(c.b)] == ["new"]


def test_a_truncation_into_the_first_chunk_changes_nothing() -> None:
    c = Container()
    operation = replace([c.replacement(c.a, 0, 1, "new")])
    c.put(TruncateOperation(c.a, 9), operation)
    assert [chunk.object_name for chunk in c.chunks(c.a)] == ["new", "o2", "o3"]


@pytest.mark.parametrize("change", ["truncated", "deleted", "merged", "replaced"])
def test_refused_if_the_chunks_are_no_longer_those_it_read(change: str) -> None:
    c = Container()
    operation = replace([c.replacement(c.b, 0, 1, "new")])
    if change == "truncated":
        c.put(TruncateOperation(c.b, 10))
    elif change == "deleted":
        c.put(DeleteOperation(c.b))
    elif change == "merged":
        c.put(MergeOperation(c.a, c.b, 40, 20), StorageUpdateOperation(links=[(c.a, c.b)]))
    else:
        c.put(replace([c.replacement(c.b, 0, 0, "other")], "other"))
    before = {each: list(segment.chunks) for each, segment in c.metadata.segments.items()}
    c.put(operation)
    assert {each: list(segment.chunks) for each, segment in c.metadata.segments.items()} == before
    assert c.metadata.garbage["new"].unreferenced_ms == operation.timestamp_ms
    assert "new" not in c.metadata.objects


def test_chunks_of_a_merged_source_can_be_replaced_until_they_are_linked() -> None:
    c = Container()
    operation = replace([c.replacement(c.b, 0, 1, "new")])
    c.put(MergeOperation(c.a, c.b, 40, 20), operation, StorageUpdateOperation(links=[(c.a, c.b)]))
    assert c.chunks(c.a)[-1] == ChunkRecord(40, 20, "new", 0, c.b, 0)


def test_an_object_reported_by_two_operations_stays_as_long_as_it_is_wanted() -> None:
    c = Container()
    first = replace([c.replacement(c.a, 0, 1, "new")])
    second = replace([c.replacement(c.b, 0, 1, "new", 300)])
    c.put(first, second)
    assert (c.metadata.objects["new"].live_chunks, c.metadata.objects["new"].live_bytes) == (2, 40)
    c = Container()
    c.put(first, DeleteOperation(c.a), second)
    assert [chunk.object_name for chunk in c.chunks(c.b)] == ["o0", "o1"], (
        "what is garbage stays garbage"
    )
    c.put(ObjectsDeletedOperation(["new"]))


def test_an_object_of_which_nothing_was_replaced_is_garbage_at_once() -> None:
    c = Container()
    c.put(replace([]))
    assert c.metadata.garbage.keys() == {"new"}


def test_an_orphan_becomes_garbage_by_name_and_a_live_one_never_does() -> None:
    c = Container()
    records = [ObjectRecord("orphan", 5, 6), ObjectRecord("o0", 1, 1)]
    c.put(StorageUpdateOperation(records))
    assert c.metadata.garbage.keys() == {"orphan"}
    assert c.metadata.objects["o0"].record == ObjectRecord("o0", SIZE, 0)
    since = c.metadata.garbage["orphan"].unreferenced_ms
    c.put(StorageUpdateOperation(records))
    assert c.metadata.garbage["orphan"].unreferenced_ms == since, "told twice, it waits no longer"


def test_chunks_of_an_upload_reported_by_two_operations_are_passed_over_once_it_is_garbage() -> (
    None
):
    c = Container()
    record = ObjectRecord("big", SIZE, 9)
    c.put(AppendOperation(c.a, 40, bytes(5)), AppendOperation(c.b, 20, bytes(5)))
    first = StorageUpdateOperation([record], [(c.a, ChunkRecord(40, 5, "big", 0, c.a, 40))])
    second = StorageUpdateOperation([record], [(c.b, ChunkRecord(20, 5, "big", 300, c.b, 20))])
    c.put(first, DeleteOperation(c.a), second)
    assert "big" in c.metadata.garbage
    assert c.metadata.segments[c.b].storage_length == 20, "it will be flushed again"
    c = Container()
    c.put(AppendOperation(c.a, 40, bytes(5)), AppendOperation(c.b, 20, bytes(5)), first, second)
    assert c.metadata.objects["big"].live_bytes == 10


def test_bytes_that_would_move_are_our_bug() -> None:
    c = Container()
    old = tuple(c.chunks(c.a)[:2])
    for start, length in ((0, 19), (0, 21), (1, 19)):
        operation = replace(
            [ChunkReplacement(c.a, old, (ChunkRecord(start, length, "new", 0, c.a, start),))]
        )
        operation.sequence_number = c.metadata.sequence_number + 1
        with pytest.raises(AssertionError):
            c.updater.replay(operation)


def test_a_checkpoint_behind_it_says_the_same_as_replay() -> None:
    c = Container()
    c.put(
        replace([c.replacement(c.a, 0, 2, "new"), c.replacement(c.b, 0, 0, "new", 700)]),
        TruncateOperation(c.a, 30),
        replace([c.replacement(c.b, 0, 1, "newer")], "newer"),
    )
    blob = encode_checkpoint(c.metadata)
    restored = decode_checkpoint(blob)
    assert not differences(restored, c.metadata)
    sums = {name: live.live_bytes for name, live in restored.objects.items()}
    assert sums == {name: live.live_bytes for name, live in c.metadata.objects.items()}
    again = ContainerMetadata(3)
    updater = MetadataUpdater(again)
    updater.restore(CheckpointOperation(encode_checkpoint(ContainerMetadata(3)), sequence_number=0))
    for operation in c.log:
        updater.replay(operation)
    assert not differences(again, c.metadata)
    assert encode_checkpoint(again) == blob


@pytest.mark.parametrize("encoded", [False, True])
def test_pieces_below_a_truncation_that_came_between_are_released(*, encoded: bool) -> None:
    """The old chunk reached beyond the start offset, and so was still there."""
    container = Container()
    (old, *_) = container.chunks(container.a)
    new = tuple(
        ChunkRecord(start, length, "new", start, container.a, start)
        for start, length in ((0, 4), (4, 6))
    )
    container.put(TruncateOperation(container.a, 7))
    replacement = ChunkReplacement(container.a, (old,), new)
    container.put(ReplaceChunksOperation([ObjectRecord("new", SIZE, 9)], [replacement]))
    if encoded:
        container.metadata = decode_checkpoint(encode_checkpoint(container.metadata))
        container.updater = MetadataUpdater(container.metadata)
    segment = container.metadata.segments[container.a]
    assert segment.releasing
    assert list(container.metadata.releasing) == [container.a]
    container.put(ReleaseChunksOperation([(container.a, segment.release_end)]))
    assert container.chunks(container.a)[0] == new[1]
    assert not container.metadata.releasing
    assert container.metadata.objects["new"].live_bytes == 6
