"""What a log and Tier 2 hold, as listings have it. Pure."""

from __future__ import annotations

from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    Operation,
    SnapshotCheckpointOperation,
)
from recovery.snapshot_name import snapshot_name
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import GarbageObject
from segmentstore.contracts.reports import ArchivedEntry, BlockEntry, OperationEntry


def block_entry(segment: SegmentMetadata, chunk: ChunkRecord, object_size: int) -> BlockEntry:
    """A chunk of a segment as a listing has it."""
    former = "merged" if segment.merged_into is not None else "deleted" * segment.deleted
    return BlockEntry(
        chunk.object_name,
        object_size,
        "live",
        f"{segment.name} ({former})" if former else segment.name,
        chunk.block_offset,
        chunk.start_offset,
        chunk.length,
    )


def garbage_entry(garbage: GarbageObject) -> BlockEntry:
    """An object that waits for its deletion as a listing has it."""
    record = garbage.record
    return BlockEntry(record.name, record.size, "waiting for deletion", None, None, None, None)


def archived_entry(container_id: int, place: int, part: ArchivedPart) -> ArchivedEntry:
    """A part in the archive as a listing has it; `place` is its index."""
    deleted = ", hot copy deleted" if part.state is OffloadState.HOT_DELETED else ""
    return ArchivedEntry(
        container_id,
        place,
        part.number,
        part.ledger_id,
        part.uid.hex(),
        f"archived{deleted}",
        part.entries,
        part.length,
        part.first_sequence,
        part.last_sequence,
        part.first_ms,
        part.last_ms,
        part.checkpoint_sequence,
        part.offloaded_ms,
    )


def operation_entry(
    container_id: int, address: int, size: int, operation: Operation
) -> OperationEntry:
    """An operation as a listing has it; `address` is of the frame that it begins in."""
    return OperationEntry(
        container_id,
        address,
        operation.sequence_number,
        kind_of(operation),
        size,
        operation.timestamp_ms,
        describe(operation, container_id),
    )


def kind_of(operation: Operation) -> str:
    """The class's name as a word, e.g. `storage update`."""
    name = type(operation).__name__.removesuffix("Operation")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def describe(operation: Operation, container_id: int) -> str:
    """An operation's own fields in a line; bytes by their length, a snapshot by its manifest's
    name.
    """
    if isinstance(operation, AppendOperation):
        attributes = f", {len(operation.attributes)} attributes" if operation.attributes else ""
        return (
            f"segment {operation.segment_id}, {len(operation.data)} bytes at "
            f"{operation.offset}{attributes}"
        )
    if isinstance(operation, CheckpointOperation):
        return f"{len(operation.blob)} bytes of metadata"
    if isinstance(operation, SnapshotCheckpointOperation):
        return f"metadata snapshot {snapshot_name(container_id, operation)}"
    shown = []
    for name in type(operation).__slots__:
        value = getattr(operation, name)
        is_unset = value is None or value is False
        if name in {"sequence_number", "timestamp_ms", "updates"} or is_unset:
            continue
        shown.append(
            f"{name} {len(value) if isinstance(value, list | tuple | dict | bytes) else value}"
        )
    return ", ".join(shown)
