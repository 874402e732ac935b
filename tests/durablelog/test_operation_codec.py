"""Operations and checkpoints: every one comes back as it was; malformed and newer ones are refused
by name.
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.operation_codec import OperationFormatError, decode_operation, encode_operation
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
)
from segmentstore.contracts.archive_metadata import (
    ArchiveChange,
    FirstPartMoved,
    HotCopiesDeleted,
    OffloadBegun,
    OffloadCompleted,
    PartsListClosed,
    PartsSwept,
)
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject
from tests.tier2.archive.sample_parts import archive_of, attempt_of_index, hot_deleted

GOLDEN = pathlib.Path(__file__).parent / "golden"

numbers = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
ordinals = st.integers(0, 2**40)
values = st.one_of(
    st.none(),
    st.dictionaries(
        st.binary(min_size=16, max_size=16), st.integers(-(2**63), 2**63 - 1), min_size=1
    ),
)
objects = st.lists(
    st.builds(ObjectRecord, names, numbers, numbers),
    max_size=3,
    unique_by=lambda record: record.name,
)


@st.composite
def storage_updates(draw: st.DrawFn) -> StorageUpdateOperation:
    records = draw(objects)
    chunks = []
    if records:
        chosen = st.sampled_from([record.name for record in records])
        chunk = st.builds(ChunkRecord, numbers, numbers, chosen, numbers, numbers, numbers)
        chunks = draw(st.lists(st.tuples(numbers, chunk), max_size=4))
    return StorageUpdateOperation(
        records, chunks, draw(st.lists(st.tuples(numbers, numbers), max_size=3))
    )


@st.composite
def replaced_chunks(draw: st.DrawFn) -> ReplaceChunksOperation:
    records = draw(objects)
    known = [record.name for record in records]
    old = st.lists(
        st.builds(ChunkRecord, numbers, numbers, names, numbers, numbers, numbers), max_size=4
    ).map(tuple)
    new: st.SearchStrategy[tuple[ChunkRecord, ...]] = st.just(())
    if known:
        chunk = st.builds(
            ChunkRecord, numbers, numbers, st.sampled_from(known), numbers, numbers, numbers
        )
        new = st.lists(chunk, max_size=3).map(tuple)
    return ReplaceChunksOperation(
        records, draw(st.lists(st.builds(ChunkReplacement, numbers, old, new), max_size=3))
    )


operations = st.one_of(
    st.builds(AppendOperation, numbers, numbers, st.binary(max_size=50), values),
    st.builds(SealOperation, numbers, numbers),
    st.builds(MergeOperation, numbers, numbers, numbers, numbers, values),
    st.builds(CreateOperation, names, values),
    st.builds(UpdateAttributesOperation, numbers, values),
    st.builds(TruncateOperation, numbers, numbers, st.booleans()),
    st.builds(CheckpointOperation, st.binary(max_size=50)),
    storage_updates(),
    st.builds(DeleteOperation, numbers, st.booleans()),
    st.builds(ObjectsDeletedOperation, st.lists(names, max_size=3)),
    replaced_chunks(),
    st.builds(
        DeletionClockOperation, numbers, st.binary(min_size=16, max_size=16), numbers, numbers
    ),
    st.builds(SnapshotCheckpointOperation, numbers, st.binary(min_size=16, max_size=16)),
    st.builds(ReleaseChunksOperation, st.lists(st.tuples(numbers, numbers), max_size=3)),
    st.builds(LinkChunksOperation, numbers, numbers, numbers),
    st.builds(ArchiveOperation, st.builds(HotCopiesDeleted, numbers, numbers)),
    st.builds(ArchiveOperation, st.builds(OffloadBegun, st.builds(attempt_of_index, ordinals))),
)


@given(operations, numbers, numbers)
def test_an_operation_comes_back_as_it_was(
    operation: Operation, sequence_number: int, timestamp_ms: int
) -> None:
    operation.sequence_number, operation.timestamp_ms = sequence_number, timestamp_ms
    encoded = b"".join(encode_operation(operation))
    assert decode_operation(encoded) == operation
    assert decode_operation(memoryview(encoded)) == operation


@given(operations, st.data())
def test_a_cut_operation_is_refused(operation: Operation, data: st.DataObject) -> None:
    encoded = b"".join(encode_operation(operation))
    with pytest.raises(OperationFormatError):
        decode_operation(encoded[: data.draw(st.integers(0, 21))])


def test_a_later_revision_is_skipped() -> None:
    operation = SealOperation(7, 9, sequence_number=1, timestamp_ms=2)
    assert decode_operation(b"".join(encode_operation(operation)) + b"\0\0\0\3new") == operation


def test_a_checkpoint_by_reference_has_an_id_of_16_bytes_and_is_refused_when_cut() -> None:
    encoded = b"".join(encode_operation(SnapshotCheckpointOperation(2**64 - 1, b"i" * 16)))
    assert len(encoded) == 22 + 24
    for length in range(24):
        cut = encoded[:18] + length.to_bytes(4, "big") + encoded[22 : 22 + length]
        with pytest.raises(OperationFormatError, match="malformed"):
            decode_operation(cut)
    for length in (0, 15, 17):
        with pytest.raises(ValueError, match="16 bytes"):
            SnapshotCheckpointOperation(1, bytes(length))
    with pytest.raises(struct.error):
        encode_operation(SnapshotCheckpointOperation(2**64, b"i" * 16))


def test_newer_versions_and_unknown_types_are_refused_by_name() -> None:
    encoded = bytearray(b"".join(encode_operation(SealOperation(7, 9))))
    encoded[1] = 2
    with pytest.raises(OperationFormatError, match="version 2 is newer"):
        decode_operation(bytes(encoded))
    for sliced in (TruncateOperation(7, 9, in_slices=True), DeleteOperation(7, in_slices=True)):
        newer = bytearray(b"".join(encode_operation(sliced)))
        assert newer[1] == 2, "an older program refuses it"
        newer[1] = 3
        with pytest.raises(OperationFormatError, match="version 3 is newer than 2"):
            decode_operation(bytes(newer))
    encoded[0:2] = b"\x63\x01"
    with pytest.raises(OperationFormatError, match="unknown operation type 99"):
        decode_operation(bytes(encoded))


def _metadata() -> ContainerMetadata:
    metadata = ContainerMetadata(3)
    metadata.sequence_number = 99
    plain = SegmentMetadata(5, "logs/wéb", 1000)
    plain.length, plain.storage_length, plain.start_offset = 100, 60, 10
    plain.apply_attributes({b"a" * 16: -5})
    plain.own_chunks().append(ChunkRecord(0, 40, "00/3/1/flush-x", 0, 5, 0))
    plain.own_chunks().append(ChunkRecord(40, 20, "00/3/1/flush-y", 512, 5, 40))
    plain.merges = [MergeRecord(70, 30, 9)]
    source = SegmentMetadata(9, "txn", 2000)
    source.length, source.sealed, source.merged_into = 30, True, 5
    metadata.segments = {5: plain, 9: source}
    metadata.names = {"logs/wéb": 5}
    metadata.objects = {
        name: LiveObject(ObjectRecord(name, size, 11), 1)
        for name, size in (("00/3/1/flush-x", 300), ("00/3/1/flush-y", 900))
    }
    metadata.garbage = {"00/3/1/flush-z": GarbageObject(ObjectRecord("00/3/1/flush-z", 5, 6), 7)}
    assert_metadata_valid(metadata)
    return metadata


def _counted_metadata() -> ContainerMetadata:
    """With what owners have counted of its garbage."""
    metadata = _metadata()
    metadata.deletion_clock = DeletionClockReading(90_000, bytes(range(16)), 5_000_000)
    garbage = GarbageObject(ObjectRecord("00/3/1/flush-z", 5, 6), 7, 91, 30_000)
    young = GarbageObject(ObjectRecord("00/3/1/flush-w", 5, 6), 8, 98, None)
    metadata.garbage = {each.record.name: each for each in (garbage, young)}
    return metadata


def _releasing_metadata() -> ContainerMetadata:
    """With chunks of one truncated and one deleted segment that are to be released."""
    metadata = _metadata()
    metadata.segments[5].start_offset = 45
    deleted = SegmentMetadata(7, "logs/old", 1500)
    deleted.length = deleted.storage_length = 80
    deleted.deleted = True
    deleted.own_chunks().append(ChunkRecord(0, 80, "00/3/1/flush-y", 1024, 7, 0))
    metadata.releasing = {5: metadata.segments[5], 7: deleted}
    for each in metadata.releasing.values():
        each.releasing = True
    metadata.objects["00/3/1/flush-y"].live_chunks = 2
    assert_metadata_valid(metadata)
    return metadata


def _linked_in_part_metadata() -> ContainerMetadata:
    """With a merge of which a slice is linked."""
    metadata = _metadata()
    plain, source = metadata.segments[5], metadata.segments[9]
    plain.own_chunks().append(ChunkRecord(60, 10, "00/3/1/flush-y", 1024, 5, 60))
    plain.own_chunks().append(ChunkRecord(70, 12, "00/3/1/flush-y", 2048, 9, 0))
    plain.storage_length = 82
    source.own_chunks().append(ChunkRecord(12, 18, "00/3/1/flush-y", 3072, 9, 12))
    source.start_offset, source.storage_length = 12, 30
    metadata.objects["00/3/1/flush-y"].live_chunks = 4
    assert_metadata_valid(metadata)
    return metadata


def _changes(*changes: ArchiveChange) -> tuple[ArchiveChange, ...]:
    return changes


def _archived_metadata() -> ContainerMetadata:
    """With an archive of a node, a list, two parts behind it, and an attempt."""
    metadata = _metadata()
    archive = hot_deleted(archive_of(64 * 256 + 256 + 2), 64 * 256 + 257)
    metadata.archive = archive.after(OffloadBegun(attempt_of_index(archive.count)))
    return metadata


def _linked_in_part_and_archived_metadata() -> ContainerMetadata:
    metadata = _linked_in_part_metadata()
    metadata.archive = _archived_metadata().archive
    return metadata


@pytest.mark.parametrize(
    ("made", "version"),
    [
        (_metadata, 1),
        (_counted_metadata, 1),
        (_releasing_metadata, 2),
        (_archived_metadata, 3),
        (_linked_in_part_metadata, 4),
        (_linked_in_part_and_archived_metadata, 4),
    ],
)
def test_a_checkpoint_is_sufficient_alone_and_stable(
    made: Callable[[], ContainerMetadata], version: int
) -> None:
    metadata = made()
    blob = encode_checkpoint(metadata)
    restored = decode_checkpoint(blob)
    assert_metadata_valid(restored)
    assert encode_checkpoint(restored) == blob
    for segment in restored.segments.values():
        segment.encoded = None
    assert encode_checkpoint(restored) == blob
    assert restored.segments[5].attributes == AttributeTable({b"a" * 16: -5})
    assert restored.segments[5].merges == [MergeRecord(70, 30, 9)]
    assert restored.names == {"logs/wéb": 5}
    assert restored.releasing.keys() == metadata.releasing.keys()
    assert blob[:2] == version.to_bytes(2, "big"), "no newer than an older program has to refuse"
    assert restored.archive == metadata.archive
    assert list(restored.garbage.items()) == list(metadata.garbage.items())
    assert restored.deletion_clock == metadata.deletion_clock


def test_an_attribute_of_an_older_version_that_now_means_no_value_is_left_out() -> None:
    metadata = _metadata()
    metadata.segments[5].apply_attributes({b"b" * 16: 77})
    stored, unset = (struct.pack(">16sq", b"b" * 16, value) for value in (77, ATTRIBUTE_UNSET))
    restored = decode_checkpoint(encode_checkpoint(metadata).replace(stored, unset))
    assert restored.segments[5].attributes == AttributeTable({b"a" * 16: -5})


def test_every_cut_of_a_checkpoint_is_refused() -> None:
    for made, counted_bytes in ((_metadata, 0), (_counted_metadata, 32 + 2 * 16)):
        blob = encode_checkpoint(made())
        for length in range(len(blob)):
            # Where the deletion clock begins an older version ended.
            if length != len(blob) - counted_bytes:
                with pytest.raises(OperationFormatError):
                    decode_checkpoint(blob[:length])


def test_golden_operations_and_checkpoint() -> None:
    """The stored formats of docs/formats/operations.md and checkpoint.md: reading them must never
    stop working.
    """
    samples: list[Operation] = [
        AppendOperation(
            5, 100, b"hello", {b"k" * 16: 7}, sequence_number=1, timestamp_ms=1_700_000_000_000
        ),
        SealOperation(5, 105, sequence_number=2, timestamp_ms=1),
        MergeOperation(5, 9, 105, 30, None, sequence_number=3, timestamp_ms=1),
        CreateOperation("logs/wéb", {b"k" * 16: -1}, sequence_number=4, timestamp_ms=1),
        UpdateAttributesOperation(5, {b"k" * 16: 8}, sequence_number=5, timestamp_ms=1),
        TruncateOperation(5, 50, sequence_number=6, timestamp_ms=1),
        StorageUpdateOperation(
            [ObjectRecord("00/3/1/flush-x", 300, 11)],
            [(5, ChunkRecord(0, 40, "00/3/1/flush-x", 0, 5, 0))],
            [(5, 9)],
            sequence_number=7,
            timestamp_ms=1,
        ),
        DeleteOperation(5, sequence_number=8, timestamp_ms=1),
        ObjectsDeletedOperation(["00/3/1/flush-x"], sequence_number=9, timestamp_ms=1),
        CheckpointOperation(encode_checkpoint(_metadata()), sequence_number=100, timestamp_ms=1),
        ReplaceChunksOperation(
            [ObjectRecord("00/3/1/consolidation-z", 900, 12)],
            [
                ChunkReplacement(
                    5,
                    (
                        ChunkRecord(0, 40, "00/3/1/flush-x", 0, 5, 0),
                        ChunkRecord(40, 20, "00/3/1/flush-y", 512, 5, 40),
                    ),
                    (ChunkRecord(0, 60, "00/3/1/consolidation-z", 0, 5, 0),),
                )
            ],
            sequence_number=101,
            timestamp_ms=1,
        ),
        DeletionClockOperation(
            90_000, bytes(range(16)), 5_000_000, 101, sequence_number=102, timestamp_ms=1
        ),
        CheckpointOperation(
            encode_checkpoint(_counted_metadata()), sequence_number=103, timestamp_ms=1
        ),
        SnapshotCheckpointOperation(7, bytes(range(16)), sequence_number=104, timestamp_ms=1),
        TruncateOperation(5, 45, in_slices=True, sequence_number=105, timestamp_ms=1),
        DeleteOperation(7, in_slices=True, sequence_number=106, timestamp_ms=1),
        ReleaseChunksOperation([(5, 45), (7, 80)], sequence_number=107, timestamp_ms=1),
        CheckpointOperation(
            encode_checkpoint(_releasing_metadata()), sequence_number=108, timestamp_ms=1
        ),
        *(
            ArchiveOperation(change, sequence_number=109 + number, timestamp_ms=1)
            for number, change in enumerate(
                _changes(
                    OffloadBegun(attempt_of_index(7)),
                    OffloadCompleted(8, bytes(range(16)), 1_700_000_000_000, 2),
                    HotCopiesDeleted(8, 8),
                    PartsListClosed(0),
                    FirstPartMoved(3, 3000),
                    PartsSwept(3),
                )
            )
        ),
        CheckpointOperation(
            encode_checkpoint(_archived_metadata()), sequence_number=115, timestamp_ms=1
        ),
        LinkChunksOperation(5, 9, 12, sequence_number=116, timestamp_ms=1),
        CheckpointOperation(
            encode_checkpoint(_linked_in_part_metadata()), sequence_number=117, timestamp_ms=1
        ),
    ]
    lines = (GOLDEN / "operations.hex").read_text().split()
    assert [decode_operation(bytes.fromhex(line)) for line in lines] == samples
    assert [b"".join(encode_operation(operation)).hex() for operation in samples] == lines
