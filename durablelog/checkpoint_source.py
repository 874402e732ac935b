"""Where the operation processor gets its checkpoints from."""

from __future__ import annotations

from typing import Protocol

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.durable_data_log import LogAddress
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import AnyCheckpoint, CheckpointOperation, SnapshotCheckpointOperation


class CheckpointSource(Protocol):
    """Makes a container's checkpoints. On the container's event loop; nothing here waits.

    When it becomes ready it calls `OperationProcessor.checkpoint_source_ready`.
    """

    @property
    def ready(self) -> bool:
        """Whether `take` may be called.

        False from the `take` of a checkpoint by reference until its snapshot is durable or given
        up. So positions are added to `LogPositions` in the order of the log.
        """

    def take(self) -> AnyCheckpoint:
        """The committed metadata as a checkpoint without a place. Nothing is in flight or
        pending.
        """

    def logged(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        """A checkpoint by reference that `take` gave was committed; `address` is of the frame it
        begins.

        Once its snapshot is durable, the source adds it to `LogPositions`.
        """


class InlineCheckpoints(CheckpointSource):
    """Each checkpoint has all metadata in itself, and is a truncation point once committed."""

    def __init__(self, updater: MetadataUpdater) -> None:
        self._updater = updater

    @property
    def ready(self) -> bool:
        """Always."""
        return True

    def take(self) -> CheckpointOperation:
        """O(metadata)."""
        return CheckpointOperation(encode_checkpoint(self._updater.metadata))

    def logged(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        """Never called: none of its checkpoints is by reference."""
        raise AssertionError((operation, address))
