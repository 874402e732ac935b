"""The one writer of a container's metadata: checks operations, places them, commits them.

Live and in replay.

Theory of operation. Committed state is what the log has acknowledged (`ContainerMetadata`). On top
lies *pending* state: what has been accepted, put into frames, and not yet acknowledged. `accept`
validates an operation against pending state. It gives it its place (sequence number, offset,
resolved attribute values) and adds it to pending. `commit` makes it true, strictly in the order of
acceptance. `rollback` forgets everything pending (a frame failed: the container stops). Replay is
`replay`: the same accept with the recorded place compared instead of given, then the same commit.

Rules (DESIGN 4.1, Pravega's SegmentMetadataUpdateTransaction):
- attribute conditions are checked before the expected offset; merged before sealed before offset;
- a refused operation changes nothing; a sequence number given is never given again;
- storage updates and replaced chunks are about what Tier 2 has, not about what callers want: they
  never fail live, and pass over what their segment no longer wants.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from durablelog import storage_metadata
from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.operation_codec import OperationFormatError
from durablelog.operations import (
    AnyCheckpoint,
    AppendOperation,
    ArchiveOperation,
    CheckpointOperation,
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
from durablelog.pending_segment import PendingSegment
from durablelog.segment_residency import SegmentResidency
from segmentstore.contracts.archive_metadata import ArchiveMetadata, OffloadConflictError
from segmentstore.contracts.attributes import (
    ATTRIBUTES_PER_SEGMENT_MAX,
)
from segmentstore.contracts.errors import (
    BadOffsetError,
    DataCorruptionError,
    SegmentError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    TooManyAttributesError,
)
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata

HELD_MS = 60_000
"""By how much the times of operations may be ahead of a wall clock that went back."""
TIME_MAX_MS = 253_402_300_799_999
"""The last moment of the year 9999, the last one that people are shown."""
SEQUENCE_GAP = 1 << 20
"""More than the operations that can be on their way to the log at one time (32 frames of at most 1
MiB).
"""


class MetadataUpdater(SegmentResidency):
    """Owner of one container's metadata."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        attributes_per_segment_max: int = ATTRIBUTES_PER_SEGMENT_MAX,
    ) -> None:
        """No live operation makes a segment have more attributes; replay takes what there was."""
        super().__init__(metadata)
        self._attributes_max = attributes_per_segment_max
        self._pending_names: dict[str, int | None] = {}
        self._sequence_number = metadata.sequence_number
        self._epoch_begin = 0
        """The last sequence number that is left out, and of no operation."""
        self._timestamp_ms = 0
        self._archive: ArchiveMetadata | None = None
        """Pending; None: as committed."""
        self._accept: dict[type[Operation], Callable[..., object]] = {
            SealOperation: self._accept_seal,
            MergeOperation: self._accept_merge,
            CreateOperation: self._accept_create,
            UpdateAttributesOperation: self._accept_update_attributes,
            TruncateOperation: self._accept_truncate,
            DeleteOperation: self._accept_delete,
            CheckpointOperation: self._accept_checkpoint,
            SnapshotCheckpointOperation: self._accept_checkpoint,
            StorageUpdateOperation: self._accept_anything,
            ObjectsDeletedOperation: self._accept_anything,
            ReplaceChunksOperation: self._accept_anything,
            DeletionClockOperation: self._accept_anything,
            ReleaseChunksOperation: self._accept_anything,
            LinkChunksOperation: self._accept_anything,
            ArchiveOperation: self._accept_archive,
        }
        self._commit: dict[type[Operation], Callable[..., None]] = {
            SealOperation: self._commit_seal,
            MergeOperation: self._commit_merge,
            CreateOperation: self._commit_create,
            UpdateAttributesOperation: self._commit_update_attributes,
            TruncateOperation: self._commit_truncate,
            DeleteOperation: self._commit_delete,
            CheckpointOperation: self._commit_checkpoint,
            SnapshotCheckpointOperation: self._commit_checkpoint,
            StorageUpdateOperation: self._commit_storage_update,
            ObjectsDeletedOperation: self._commit_objects_deleted,
            ReplaceChunksOperation: self._commit_replace_chunks,
            DeletionClockOperation: self._commit_deletion_clock,
            ReleaseChunksOperation: self._commit_release_chunks,
            LinkChunksOperation: self._commit_link_chunks,
            ArchiveOperation: self._commit_archive,
        }

    # --- the three moves --------------------------------------------------------------------------

    def take_sequence_numbers(self, count: int = 1) -> int:
        """Take the next `count` sequence numbers; gives the first."""
        first = self._sequence_number + 1
        self._sequence_number += count
        return first

    def accept(self, operation: Operation, timestamp_ms: int) -> object:
        """Check a live operation that is not an append, place it, add it to pending.

        Returns what its caller is to get once it is durable. Raises a SegmentError, of the archive
        OffloadConflictError, with no change made. Appends come through `FramePacker`, which works
        on `PendingSegment` directly: they are the hot path.
        """
        # One shape for the table.
        result = self._accept[type(operation)](operation, False)  # noqa: FBT003
        self._keep_chunks(operation)
        if not operation.sequence_number:
            operation.sequence_number = self.take_sequence_numbers()
        operation.timestamp_ms = timestamp_ms
        return result

    def commit(self, operations: Sequence[Operation]) -> None:
        """Make a run of accepted operations (`commit_runs`) true, in the order of their
        acceptance.
        """
        if type(operations[0]) is AppendOperation:
            self._commit_appends(cast("Sequence[AppendOperation]", operations))
            return
        metadata = self.metadata
        for operation in operations:
            assert operation.sequence_number > metadata.sequence_number, operation
            self._commit[type(operation)](operation)
            if self._chunk_users:
                self._release_chunks(operation)
            metadata.sequence_number = operation.sequence_number

    def rollback(self) -> None:
        """Forget everything accepted and not committed."""
        self._forget_pending()
        self._pending_names.clear()
        self._chunk_users.clear()
        self._archive = None

    def replay(self, operation: Operation) -> None:
        """Accept and commit an operation read from the log.

        Raises DataCorruptionError if it does not fit.
        """
        if type(operation) is AppendOperation:
            self.replay_appends((operation,))
            return
        self._begin_replayed(operation, self.metadata.sequence_number)
        try:
            self._accept[type(operation)](operation, True)  # noqa: FBT003
        except (SegmentError, OffloadConflictError) as error:
            raise self._corrupt(operation, f"replay refuses it: {error}") from error
        self.commit((operation,))

    def replay_appends(self, appends: Sequence[AppendOperation]) -> None:
        """`replay` of appends that follow each other in the log. About 0.5 us each."""
        last = self.metadata.sequence_number
        pending_of = self.pending.get
        for operation in appends:
            self._begin_replayed(operation, last)
            last = operation.sequence_number
            try:
                pending = pending_of(operation.segment_id)
                if pending is None or pending.removed:
                    pending = self._require(operation.segment_id)
                if pending.sealed:
                    raise SegmentSealedError(pending.name)
                if operation.offset != pending.length:
                    raise BadOffsetError(pending.name, operation.offset, pending.length)
            except SegmentError as error:
                raise self._corrupt(operation, f"replay refuses it: {error}") from error
            pending.length += len(operation.data)
            pending.in_flight += 1
        self._commit_appends(appends)

    def _begin_replayed(self, operation: Operation, last: int) -> None:
        sequence_number = operation.sequence_number
        if sequence_number <= last:
            raise self._corrupt(operation, f"its sequence number does not grow from {last}")
        self._sequence_number = sequence_number
        if operation.timestamp_ms != self._timestamp_ms:
            self.timestamp_ms(operation.timestamp_ms)

    def restore(self, operation: CheckpointOperation) -> None:
        """Begin replay: the metadata becomes what the first checkpoint of the log says.

        Raises DataCorruptionError.
        """
        try:
            metadata = decode_checkpoint(operation.blob)
        except OperationFormatError as error:
            raise self._corrupt(operation, str(error)) from error
        self.adopt(metadata, operation)

    def adopt(self, metadata: ContainerMetadata, operation: AnyCheckpoint) -> None:
        """Begin replay with `metadata`, which are as of `operation`, the first of the log.

        Raises DataCorruptionError if they are another container's.
        """
        if metadata.container_id != self.metadata.container_id:
            raise self._corrupt(operation, f"it is of container {metadata.container_id}")
        self.metadata.adopt(metadata)
        self._archive = None
        self.metadata.sequence_number = self._sequence_number = operation.sequence_number
        self.timestamp_ms(operation.timestamp_ms)

    def timestamp_ms(self, clock_ms: int) -> int:
        """The time to stamp on operations, for people: the clock's, and not before that of the
        operation in front of it.

        A clock that is behind by more than HELD_MS has been set right, or wrong: times go back with
        it. So one that was ahead for one operation does not stop all later times where it was.
        """
        if not self._timestamp_ms - HELD_MS <= clock_ms <= self._timestamp_ms:
            self._timestamp_ms = min(max(clock_ms, 0), TIME_MAX_MS)
        return self._timestamp_ms

    def begin_epoch(self) -> None:
        """After replay, before live operations: leave out numbers an earlier owner may have given
        without success.
        """
        self._sequence_number += SEQUENCE_GAP
        self._epoch_begin = self._sequence_number
        # Nothing is pending, and replay has not counted attributes.
        self._forget_pending()

    # --- what is pending --------------------------------------------------------------------------

    def find(self, segment_id: int) -> PendingSegment | None:
        """The pending view of a segment, made if need be; None if there is no such segment."""
        pending = self.pending.get(segment_id)
        if pending is None:
            base = self.metadata.segments.get(segment_id)
            if base is None:
                return None
            pending = self.pending[segment_id] = PendingSegment(segment_id, base.name, base)
        return pending

    def check_room(self, pending: PendingSegment, growth: int) -> None:
        """Raise TooManyAttributesError if a segment may not have `growth` attributes more."""
        if growth > 0 and pending.attribute_count + growth > self._attributes_max:
            raise TooManyAttributesError(
                pending.name, pending.attribute_count, growth, self._attributes_max
            )

    # --- accept -----------------------------------------------------------------------------------

    def _corrupt(self, operation: Operation, detail: str) -> DataCorruptionError:
        where = f"container {self.metadata.container_id}, operation {operation.sequence_number}"
        return DataCorruptionError(where, f"{type(operation).__name__}: {detail}")

    def _require(self, segment_id: int) -> PendingSegment:
        pending = self.find(segment_id)
        if pending is None:
            raise SegmentNotFoundError(f"#{segment_id}", "no segment of this id is left")
        if pending.removed:
            raise SegmentNotFoundError(
                pending.name, f"the segment of id {segment_id} is deleted or merged away"
            )
        return pending

    # One shape for the table.
    def _accept_anything(self, _operation: Operation, _recorded: bool) -> None:  # noqa: FBT001
        return None

    def _accept_checkpoint(self, _operation: Operation, recorded: bool) -> None:  # noqa: FBT001
        # It holds the committed metadata: something pending would come before it in the log and not
        # be in it.
        committed = max(self.metadata.sequence_number, self._epoch_begin)
        assert recorded or self._sequence_number == committed, (self._sequence_number, committed)
        self._forget_pending()

    def _accept_seal(self, operation: SealOperation, recorded: bool) -> int:  # noqa: FBT001
        pending = self._require(operation.segment_id)
        if recorded and (pending.sealed or operation.length != pending.length):
            raise BadOffsetError(pending.name, operation.length, pending.length, "length at seal")
        if pending.sealed:
            raise SegmentSealedError(pending.name)
        operation.length = pending.length
        pending.sealed = True
        pending.in_flight += 1
        return pending.length

    def _accept_merge(self, operation: MergeOperation, recorded: bool) -> int:  # noqa: FBT001
        if operation.before is not None:
            operation.refusal = operation.before.refusal
        if operation.refusal is not None:
            raise operation.refusal
        target = self._require(operation.target_id)
        source = self._require(operation.source_id)
        attributes, growth = operation.attributes, 0
        if not recorded:
            attributes, growth = target.resolve(operation.updates)
            self.check_room(target, growth)
        if target.sealed:
            raise SegmentSealedError(target.name)
        if source.start_offset:
            operation.refusal = SegmentTruncatedError(source.name, source.start_offset)
            raise operation.refusal
        if recorded and (operation.offset, operation.length) != (target.length, source.length):
            raise BadOffsetError(
                target.name, operation.offset, target.length, f"source length {source.length}"
            )
        operation.offset, operation.length = target.length, source.length
        operation.attributes = attributes or None
        self._begin_merge(operation)
        target.take(attributes, growth)
        target.length += source.length
        source.sealed = source.removed = True
        self._pending_names[source.name] = None
        target.in_flight += 1
        source.in_flight += 1
        return operation.offset

    def _accept_create(self, operation: CreateOperation, recorded: bool) -> int:  # noqa: FBT001
        name = operation.name
        taken = (
            self._pending_names[name]
            if name in self._pending_names
            else self.metadata.names.get(name)
        )
        if taken is not None:
            raise SegmentExistsError(name)
        segment_id = self._sequence_number if recorded else self._sequence_number + 1
        pending = PendingSegment(segment_id, name, None)
        attributes, growth = operation.attributes, 0
        if not recorded:
            attributes, growth = pending.resolve(operation.updates)
            self.check_room(pending, growth)
            operation.attributes = attributes or None
            operation.sequence_number = self.take_sequence_numbers()
        pending.take(attributes, growth)
        pending.in_flight = 1
        self.pending[segment_id] = pending
        self._pending_names[name] = segment_id
        return segment_id

    def _accept_update_attributes(
        self,
        operation: UpdateAttributesOperation,
        recorded: bool,  # noqa: FBT001 - one shape for the table
    ) -> None:
        pending = self._require(operation.segment_id)
        growth = 0
        if not recorded:
            attributes, growth = pending.resolve(operation.updates)
            self.check_room(pending, growth)
            if pending.sealed:
                raise SegmentSealedError(pending.name)
            operation.attributes = attributes
        pending.take(operation.attributes, growth)
        pending.in_flight += 1

    def _accept_truncate(
        self,
        operation: TruncateOperation,
        _recorded: bool,  # noqa: FBT001
    ) -> None:
        pending = self._require(operation.segment_id)
        if operation.offset < pending.start_offset:
            raise BadOffsetError(
                pending.name, operation.offset, pending.start_offset, "below the start offset"
            )
        if operation.offset > pending.length:
            raise BadOffsetError(
                pending.name, operation.offset, pending.length, "beyond the length"
            )
        pending.start_offset = operation.offset
        pending.in_flight += 1

    def _accept_delete(self, operation: DeleteOperation, _recorded: bool) -> None:  # noqa: FBT001
        pending = self._require(operation.segment_id)
        pending.removed = True
        self._pending_names[pending.name] = None
        pending.in_flight += 1

    def _accept_archive(self, operation: ArchiveOperation, _recorded: bool) -> None:  # noqa: FBT001
        self._archive = (self._archive or self.metadata.archive).after(operation.change)

    # --- commit -----------------------------------------------------------------------------------

    def _settle(self, segment_id: int) -> None:
        pending = self.pending[segment_id]
        pending.in_flight -= 1
        if pending.idle:
            pending.attributes.clear()

    def _settle_name(self, name: str, segment_id: int | None) -> None:
        if name in self._pending_names and self._pending_names[name] == segment_id:
            del self._pending_names[name]

    def _commit_appends(self, appends: Sequence[AppendOperation]) -> None:
        pendings, changes = self.pending, self.changes
        last = self.metadata.sequence_number
        for operation in appends:
            assert operation.sequence_number > last, operation
            last = operation.sequence_number
            pending = pendings[operation.segment_id]
            segment = pending.base
            assert segment is not None, operation
            assert operation.offset == segment.length, (operation, segment)
            if segment.generation != changes.generation:
                changes.note(segment)
            segment.length += len(operation.data)
            segment.last_modified_ms = operation.timestamp_ms
            segment.encoded = None
            pending.in_flight -= 1
            if operation.attributes:
                segment.apply_attributes(operation.attributes)
                changes.set_attributes(operation.segment_id, operation.attributes)
                if pending.idle:
                    pending.attributes.clear()
        self.metadata.sequence_number = last

    def _commit_seal(self, operation: SealOperation) -> None:
        segment = self._touch(operation.segment_id, operation)
        segment.sealed = True
        self._settle(operation.segment_id)

    def _commit_merge(self, operation: MergeOperation) -> None:
        metadata = self.metadata
        target = self._touch(operation.target_id, operation)
        source = self._touch(operation.source_id, operation)
        if operation.attributes:
            target.apply_attributes(operation.attributes)
            self.changes.set_attributes(target.segment_id, operation.attributes)
        if metadata.names.get(source.name) == source.segment_id:
            del metadata.names[source.name]
            self.changes.lose_name(source.name)
        source.sealed = True
        source.merged_into = target.segment_id
        target.length += operation.length
        if operation.length:
            target.add_merge(MergeRecord(operation.offset, operation.length, source.segment_id))
        else:
            storage_metadata.discard(metadata, self.changes, source, operation)
        self._settle_name(source.name, None)
        self._settle(operation.target_id)
        self._settle(operation.source_id)
        self._end_merge(operation)

    def _commit_create(self, operation: CreateOperation) -> None:
        segment_id = operation.sequence_number
        segment = SegmentMetadata(segment_id, operation.name, operation.timestamp_ms)
        attributes = operation.attributes or {}
        segment.apply_attributes(attributes)
        self.metadata.segments[segment_id] = segment
        self.metadata.names[operation.name] = segment_id
        self.changes.create(segment)
        self.changes.set_attributes(segment_id, attributes)
        self.pending[segment_id].base = segment
        self._settle_name(operation.name, segment_id)
        self._settle(segment_id)

    def _commit_update_attributes(self, operation: UpdateAttributesOperation) -> None:
        segment = self._touch(operation.segment_id, operation)
        attributes = operation.attributes or {}
        segment.apply_attributes(attributes)
        self.changes.set_attributes(operation.segment_id, attributes)
        self._settle(operation.segment_id)

    def _commit_truncate(self, operation: TruncateOperation) -> None:
        segment = self._touch(operation.segment_id, operation)
        storage_metadata.truncate(self.metadata, self.changes, segment, operation.offset, operation)
        self._settle(operation.segment_id)

    def _commit_delete(self, operation: DeleteOperation) -> None:
        segment = self.metadata.segments[operation.segment_id]
        if self.metadata.names.get(segment.name) == segment.segment_id:
            del self.metadata.names[segment.name]
            self.changes.lose_name(segment.name)
        in_slices = operation.in_slices
        storage_metadata.discard(
            self.metadata, self.changes, segment, operation, in_slices=in_slices
        )
        self._settle_name(segment.name, None)
        self._settle(operation.segment_id)

    def _commit_checkpoint(self, _operation: AnyCheckpoint) -> None:
        """A checkpoint repeats what is there; it changes nothing."""

    def _commit_storage_update(self, operation: StorageUpdateOperation) -> None:
        storage_metadata.apply_storage_update(self.metadata, self.changes, operation)

    def _commit_objects_deleted(self, operation: ObjectsDeletedOperation) -> None:
        for name in operation.names:
            garbage = self.metadata.garbage.pop(name, None)
            if garbage is not None:
                self.changes.lose_garbage(garbage)

    def _commit_replace_chunks(self, operation: ReplaceChunksOperation) -> None:
        storage_metadata.apply_replace_chunks(self.metadata, self.changes, operation)

    def _commit_deletion_clock(self, operation: DeletionClockOperation) -> None:
        storage_metadata.apply_deletion_clock(self.metadata, self.changes, operation)

    def _commit_release_chunks(self, operation: ReleaseChunksOperation) -> None:
        storage_metadata.apply_release_chunks(self.metadata, self.changes, operation)

    def _commit_link_chunks(self, operation: LinkChunksOperation) -> None:
        storage_metadata.apply_link_chunks(self.metadata, self.changes, operation)

    def _commit_archive(self, operation: ArchiveOperation) -> None:
        self.metadata.archive = self.metadata.archive.after(operation.change)

    def _touch(self, segment_id: int, operation: Operation) -> SegmentMetadata:
        segment = self.metadata.segments[segment_id]
        if segment.generation != self.changes.generation:
            self.changes.note(segment)
        segment.last_modified_ms = operation.timestamp_ms
        segment.encoded = None
        return segment
