"""Replay of a log's operations: what it must begin with, what must be in it, what must fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import encode_operation
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from recovery.replay import Replay
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata

EMPTY = CheckpointOperation(encode_checkpoint(ContainerMetadata(0)), sequence_number=1)
BASE = (
    EMPTY,
    CreateOperation("a", sequence_number=2),
    CreateOperation("b", sequence_number=3),
    AppendOperation(2, 0, b"0123", sequence_number=4),
)


class Log:
    """Operations, each in a frame of its own."""

    def __init__(
        self, container_id: int = 0, snapshots: Mapping[int, bytes] | None = None, address: int = 0
    ) -> None:
        self.metadata = ContainerMetadata(container_id)
        self.positions = LogPositions()
        self.loaded: list[int] = []
        self._snapshots = snapshots
        self.replay = Replay(
            MetadataUpdater(self.metadata), self.positions, self._load if snapshots else None
        )
        self._address = address

    def _load(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        assert self._snapshots is not None
        self.loaded.append(operation.sequence_number)
        return decode_checkpoint(self._snapshots[operation.sequence_number])

    def put(self, *operations: Operation) -> Log:
        for operation in operations:
            self.put_bytes(b"".join(encode_operation(operation)))
        return self

    def put_bytes(self, record: bytes) -> None:
        self._address += 10
        self.replay.apply(record, LogAddress(self._address), LogAddress(self._address))


def checkpoint(metadata: ContainerMetadata) -> CheckpointOperation:
    """What a later log begins with."""
    return CheckpointOperation(
        encode_checkpoint(metadata), sequence_number=metadata.sequence_number + 1
    )


def upload(
    sequence_number: int, start_offset: int, length: int, segment_id: int = 2
) -> StorageUpdateOperation:
    name = f"object-{sequence_number}"
    chunk = ChunkRecord(start_offset, length, name, 0, segment_id, start_offset)
    return StorageUpdateOperation(
        [ObjectRecord(name, 1000, 0)], [(segment_id, chunk)], sequence_number=sequence_number
    )


def test_replay_builds_what_the_operations_say() -> None:
    log = Log().put(
        *BASE, SealOperation(2, 4, sequence_number=6), TruncateOperation(2, 1, sequence_number=9)
    )
    log.replay.finish()
    segment = log.metadata.segments[2]
    assert (segment.start_offset, segment.length, segment.sealed) == (1, 4, True)
    assert log.metadata.sequence_number == 9
    assert log.replay.operations == len(BASE) + 2
    # One checkpoint: the log begins with it, and there is nothing to cut before it.
    assert log.positions.truncation_point(None) is None


def test_the_operations_of_the_last_frame_have_their_place_behind_the_end() -> None:
    log = Log().put(*BASE)
    log.replay.finish()
    part = log.positions.operations_of(0)
    assert part is not None
    assert (part.first_sequence, part.last_sequence) == (1, 4)


def test_an_empty_log_is_an_empty_container() -> None:
    log = Log()
    log.replay.finish()
    assert not log.metadata.segments
    assert not log.replay.operations


@pytest.mark.parametrize("first", BASE[1:])
def test_operations_but_no_checkpoint_are_corruption(first: Operation) -> None:
    with pytest.raises(DataCorruptionError, match="not with a checkpoint") as raised:
        Log().put(first)
    assert raised.value.where == "log address 0xa"


def test_a_checkpoint_of_another_container_is_corruption() -> None:
    with pytest.raises(DataCorruptionError, match="it is of container 0"):
        Log(container_id=1).put(EMPTY)


@pytest.mark.parametrize("record", [b"", b"\xff" * 30, b"".join(encode_operation(EMPTY))[:-3]])
def test_a_record_that_is_no_operation_is_corruption(record: bytes) -> None:
    with pytest.raises(DataCorruptionError, match="log address 0xa"):
        Log().put_bytes(record)


@pytest.mark.parametrize(
    "wrong",
    [
        AppendOperation(2, 3, b"x", sequence_number=9),
        AppendOperation(2, 5, b"x", sequence_number=9),
        AppendOperation(7, 0, b"x", sequence_number=9),
        AppendOperation(2, 4, b"x", sequence_number=4),
        CreateOperation("a", sequence_number=9),
        TruncateOperation(2, 5, sequence_number=9),
        MergeOperation(2, 3, 5, 0, sequence_number=9),
        DeleteOperation(8, sequence_number=9),
    ],
)
def test_an_operation_that_does_not_fit_is_corruption(wrong: Operation) -> None:
    log = Log().put(*BASE)
    with pytest.raises(DataCorruptionError):
        log.put(wrong)


def test_missing_unflushed_bytes_are_corruption() -> None:
    before = Log().put(*BASE)
    log = Log().put(checkpoint(before.metadata), AppendOperation(2, 4, b"45", sequence_number=6))
    with pytest.raises(DataCorruptionError, match="neither Tier 2") as raised:
        log.replay.finish()
    assert raised.value.where == "container 0, segment 'a' offset 0"
    assert [(segment.name, offset) for segment, offset in log.replay.missing()] == [("a", 0)]


def test_what_tier_2_holds_is_not_missing() -> None:
    before = Log().put(*BASE, upload(5, 0, 4))
    log = Log().put(checkpoint(before.metadata), AppendOperation(2, 4, b"45", sequence_number=7))
    log.replay.finish()


def test_a_part_that_tier_2_does_not_hold_is_missing() -> None:
    before = Log().put(*BASE, upload(5, 0, 3))
    log = Log().put(checkpoint(before.metadata), AppendOperation(2, 4, b"45", sequence_number=7))
    assert [offset for _, offset in log.replay.missing()] == [3]


def test_an_upload_behind_the_checkpoint_makes_up_for_the_cut() -> None:
    before = Log().put(*BASE)
    log = Log().put(checkpoint(before.metadata), upload(6, 0, 4))
    log.replay.finish()


def test_bytes_of_a_merged_source_are_searched_for_in_the_source() -> None:
    merged = (
        AppendOperation(3, 0, b"xy", sequence_number=5),
        MergeOperation(2, 3, 4, 2, sequence_number=6),
    )
    whole = Log().put(*BASE, *merged, AppendOperation(2, 6, b"z", sequence_number=7))
    whole.replay.finish()
    # The target's own bytes are in Tier 2, the source's nowhere.
    before = Log().put(*BASE, *merged, upload(7, 0, 4))
    log = Log().put(checkpoint(before.metadata), AppendOperation(2, 6, b"z", sequence_number=9))
    assert [(segment.name, offset) for segment, offset in log.replay.missing()] == [("b", 0)]
    before = Log().put(*BASE, *merged, upload(7, 0, 4), upload(8, 0, 2, segment_id=3))
    log = Log().put(checkpoint(before.metadata), AppendOperation(2, 6, b"z", sequence_number=10))
    log.replay.finish()
    log = Log().put(checkpoint(log.metadata))
    assert [(segment.name, offset) for segment, offset in log.replay.missing()] == [("a", 6)]


def by_reference(sequence_number: int) -> SnapshotCheckpointOperation:
    return SnapshotCheckpointOperation(1, bytes(16), sequence_number=sequence_number)


def test_a_log_that_begins_by_reference_needs_the_snapshot_it_names() -> None:
    name = "metadata/00000000/0000000000000001-0000000000000007-" + "00" * 16
    with pytest.raises(DataCorruptionError, match=name) as raised:
        Log().put(by_reference(7))
    assert raised.value.where == "log address 0xa"


def test_a_snapshot_of_another_container_is_corruption() -> None:
    with pytest.raises(DataCorruptionError, match="it is of container 1"):
        Log(snapshots={7: encode_checkpoint(ContainerMetadata(1))}).put(by_reference(7))


def test_a_checkpoint_by_reference_behind_the_first_is_no_truncation_point() -> None:
    before = Log().put(*BASE)
    snapshots = {5: encode_checkpoint(before.metadata)}
    log = Log(snapshots=snapshots).put(
        by_reference(5), AppendOperation(2, 4, b"45", sequence_number=6), by_reference(7)
    )
    assert log.positions.truncation_point(None) is None
    assert (log.replay.operations_since_checkpoint, log.replay.checkpoint_bytes) == (0, 46)
    # The snapshot of 5 was loaded, and nothing was searched for that of 7.
    assert log.loaded == [5]
    assert log.replay.snapshots == [by_reference(5), by_reference(7)]
    log.put(checkpoint(log.metadata))
    point = log.positions.truncation_point(None)
    assert point == (8, LogAddress(40))


@given(st.lists(st.sampled_from(["append", "create", "inline", "by reference"]), max_size=25))
def test_from_every_checkpoint_of_either_kind_a_log_adds_up_to_the_same(kinds: list[str]) -> None:
    """As of each, the metadata are what they were; behind it the same operations follow."""
    whole = Log().put(EMPTY, CreateOperation("a", sequence_number=2))
    log: list[Operation] = []
    snapshots: dict[int, bytes] = {0: b""}
    for number, kind in enumerate(kinds, 3):
        operation: Operation
        if kind == "append":
            operation = AppendOperation(
                2, whole.metadata.segments[2].length, b"0123", sequence_number=number
            )
        elif kind == "create":
            operation = CreateOperation(f"s{number}", sequence_number=number)
        elif kind == "inline":
            operation = CheckpointOperation(
                encode_checkpoint(whole.metadata), sequence_number=number
            )
        else:
            snapshots[number] = encode_checkpoint(whole.metadata)
            operation = by_reference(number)
        whole.put(operation)
        log.append(operation)
    references = [each for each in log if isinstance(each, SnapshotCheckpointOperation)]
    assert whole.replay.snapshots == references
    inline = [each for each in log if isinstance(each, CheckpointOperation)]
    point = whole.positions.truncation_point(None)
    assert (point is None) == (not inline)
    assert point is None or point[0] == inline[-1].sequence_number
    for index, first in enumerate(log):
        if not isinstance(first, (CheckpointOperation, SnapshotCheckpointOperation)):
            continue
        part = Log(snapshots=snapshots).put(*log[index:])
        assert encode_checkpoint(part.metadata) == encode_checkpoint(whole.metadata)
        assert part.replay.snapshots == [each for each in references if each in log[index:]]
        assert part.replay.operations_since_checkpoint == whole.replay.operations_since_checkpoint
        later = [each for each in inline if each.sequence_number > first.sequence_number]
        assert (part.positions.truncation_point(None) is None) == (not later)


def test_replay_says_what_ends_in_each_part_of_the_log() -> None:
    positions = LogPositions(lambda address: address >> 32)
    parts: list[int] = []
    positions.on_part = lambda: parts.append(1)
    positions.add_operations(LogAddress(1 << 32 | 5), (10, 100), (12, 90))
    positions.add_operations(LogAddress(1 << 32 | 9), (13, 95), (13, 95))
    positions.note_checkpoint(13, LogAddress(1 << 32 | 9))
    positions.note_checkpoint(14, LogAddress(2 << 32 | 1))
    positions.add_operations(LogAddress(2 << 32 | 1), (14, 101), (20, 130))
    first, second = positions.operations_of(1), positions.operations_of(2)
    assert first is not None
    assert second is not None
    assert (first.first_sequence, first.last_sequence) == (10, 13)
    assert (first.first_ms, first.last_ms) == (100, 100)
    assert (positions.checkpoint_in(1), positions.checkpoint_in(2)) == (13, 14)
    assert (second.first_sequence, second.last_sequence, second.last_ms) == (14, 20, 130)
    assert len(parts) == 2
    positions.add_checkpoint(13, LogAddress(1 << 32 | 9))
    positions.add_checkpoint(20, LogAddress(2 << 32 | 1))
    assert positions.truncation_point(None) == (20, 2 << 32 | 1)
    assert positions.truncation_point(None, LogAddress(2 << 32)) is None, "the first is the begin"
    positions.truncated(20)
    assert positions.operations_of(1) is None
