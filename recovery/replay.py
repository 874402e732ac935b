"""Operations in, metadata out: the rules of reading a container's log from its beginning. Pure.

The log begins with a checkpoint; everything behind it goes through the same metadata updater as
live operations. "Operations but no checkpoint" is corruption, not an empty log. A checkpoint by
reference is a beginning if the metadata it names can be loaded; in the middle it is passed over,
for its snapshot may never have been finished. At the end every byte that Tier 2 does not hold must
have been met: anything else means the log was truncated past un-flushed data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from durablelog.append_frames import LoggedAppends
from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions, ReplayedPlaces
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import OperationFormatError, decode_operation
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    Operation,
    SnapshotCheckpointOperation,
)
from recovery.missing_bytes import missing_bytes
from recovery.snapshot_name import snapshot_name
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata


class Replay:
    """One pass over one log."""

    def __init__(
        self,
        updater: MetadataUpdater,
        positions: LogPositions,
        load: Callable[[SnapshotCheckpointOperation], ContainerMetadata] | None = None,
    ) -> None:
        """`load` gives the metadata that a checkpoint by reference names, as of just before it.

        It is called for the first operation of the log alone.
        """
        self._updater = updater
        self._positions = positions
        self._load = load
        self._first_met: dict[int, int] = {}
        """Segment id -> offset of its first append met."""
        self.operations = 0
        self.bytes = 0
        self._before_checkpoint = (0, 0)
        """Operations and bytes up to the last checkpoint met, itself included."""
        self.checkpoint_bytes = 0
        self._places = ReplayedPlaces(positions)
        self.snapshots: list[SnapshotCheckpointOperation] = []
        """Every checkpoint by reference met, in order; only the log's first operation is a
        truncation point.
        """

    @property
    def operations_since_checkpoint(self) -> int:
        """Operations met behind the last checkpoint of either kind, or from the beginning."""
        return self.operations - self._before_checkpoint[0]

    @property
    def bytes_since_checkpoint(self) -> int:
        """Their bytes."""
        return self.bytes - self._before_checkpoint[1]

    @staticmethod
    def decode(record: Buffer, first_address: LogAddress, *, copy: bool = True) -> Operation:
        """The operation in a record; without `copy` the bytes of an append may be a view into it.

        Raises DataCorruptionError naming the address.
        """
        try:
            return decode_operation(record, copy=copy)
        except OperationFormatError as error:
            raise DataCorruptionError(f"log address {first_address:#x}", str(error)) from error

    def apply(
        self, record: Buffer, first_address: LogAddress, last_address: LogAddress
    ) -> Operation:
        """Decode and replay one record."""
        operation = self.decode(record, first_address)
        self.apply_operation(operation, len(record), first_address, last_address)
        return operation

    def apply_operation(
        self, operation: Operation, length: int, first_address: LogAddress, last_address: LogAddress
    ) -> None:
        """Replay one operation, `length` bytes in the frames from `first_address` to
        `last_address`.
        """
        if type(operation) is AppendOperation:
            self._first_met.setdefault(operation.segment_id, operation.offset)
        if self.operations:
            self._updater.replay(operation)
        else:
            self._begin(operation, first_address)
        self._note(operation, length, first_address, last_address)

    def apply_appends(self, parts: Sequence[LoggedAppends]) -> None:
        """`apply_operation` of appends that follow each other. About 1 us each."""
        if not self.operations:
            self._begin(parts[0].appends[0], parts[0].address)
        first_met = self._first_met.setdefault
        appends: list[AppendOperation] = []
        for part in parts:
            for append in part.appends:
                first_met(append.segment_id, append.offset)
            appends += part.appends
        self._updater.replay_appends(appends)
        self.operations += len(appends)
        for part in parts:
            self.bytes += part.length
            self._places.add_appends(part)

    def begin_from(
        self,
        operation: SnapshotCheckpointOperation,
        metadata: ContainerMetadata,
        length: int,
        first_address: LogAddress,
        last_address: LogAddress,
    ) -> None:
        """`apply_operation` of the log's first, where the caller has loaded the metadata."""
        assert not self.operations, operation
        self._updater.adopt(metadata, operation)
        self._note(operation, length, first_address, last_address)

    def _begin(self, operation: Operation, address: LogAddress) -> None:
        if isinstance(operation, CheckpointOperation):
            self._updater.restore(operation)
        elif not isinstance(operation, SnapshotCheckpointOperation):
            raise DataCorruptionError(
                f"log address {address:#x}",
                f"the log begins with {type(operation).__name__} "
                f"{operation.sequence_number}, not with a checkpoint",
            )
        elif self._load is not None:
            self._updater.adopt(self._load(operation), operation)
        else:
            manifest = snapshot_name(self._updater.metadata.container_id, operation)
            raise DataCorruptionError(
                f"log address {address:#x}",
                f"the log begins with checkpoint {operation.sequence_number}, by reference to "
                f"the metadata snapshot {manifest}, which is missing here",
            )

    def _note(
        self, operation: Operation, length: int, first_address: LogAddress, last_address: LogAddress
    ) -> None:
        is_first = not self.operations
        self.operations += 1
        self.bytes += length
        self._places.add(operation.sequence_number, operation.timestamp_ms, last_address, length)
        if type(operation) is not AppendOperation:
            self._note_checkpoint(operation, length, first_address, is_first=is_first)

    def _note_checkpoint(
        self, operation: Operation, length: int, first_address: LogAddress, *, is_first: bool
    ) -> None:
        if isinstance(operation, SnapshotCheckpointOperation):
            self.snapshots.append(operation)
        elif not isinstance(operation, CheckpointOperation):
            return
        self._places.end_frame()
        self._positions.note_checkpoint(operation.sequence_number, first_address)
        if is_first or isinstance(operation, CheckpointOperation):
            self._positions.add_checkpoint(operation.sequence_number, first_address)
        self._before_checkpoint = (self.operations, self.bytes)
        self.checkpoint_bytes = length

    def finish(self) -> None:
        """The log ended. Check that nothing acknowledged is missing. Raises DataCorruptionError."""
        self._places.end_frame()
        for segment, offset in self.missing():
            raise DataCorruptionError(
                f"container {self._updater.metadata.container_id}, segment "
                f"{segment.name!r} offset {offset}",
                f"neither Tier 2 (up to {segment.storage_length}) nor the log holds it",
            )

    def missing(self) -> Iterator[tuple[SegmentMetadata, int]]:
        """As `missing_bytes`, after the last `apply`."""
        return missing_bytes(self._updater.metadata, self._first_met)
