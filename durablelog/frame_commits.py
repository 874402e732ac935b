"""FrameCommits: what a durable frame does to its container, in the order of frames (loop)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from durablelog.checkpoint_source import CheckpointSource
from durablelog.durable_data_log import DurableDataLog, LogAddress
from durablelog.frame_requests import PackedFrame
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    CheckpointOperation,
    Operation,
    SnapshotCheckpointOperation,
    commit_runs,
)


class FrameCommits:
    """The commit side of `OperationProcessor`, without a decision on what is durable."""

    def __init__(
        self,
        *,
        log: DurableDataLog,
        updater: MetadataUpdater,
        positions: LogPositions,
        source: CheckpointSource,
        on_commit: Callable[[Sequence[Operation]], None],
    ) -> None:
        self._log = log
        self._updater = updater
        self._positions = positions
        self._source = source
        self._on_commit = on_commit
        self._checkpoint_start: LogAddress | None = None
        """Where the checkpoint begins whose last frame is not committed yet."""
        self.requests = self.operations = self.frames = self.checkpoints = 0

    def commit(self, frame: PackedFrame, address: LogAddress) -> None:
        """Apply its operations, note where they are, and answer their callers, in this order.

        All frames before it are committed, and the log has acknowledged it at `address`.
        """
        operations = frame.operations
        if frame.starts_checkpoint:
            self._checkpoint_start = address
        if frame.placed and (begin := self._log.payload_address(address)) is not None:
            frame.note_places(begin)
        if operations:
            for run in commit_runs(operations):
                self._updater.commit(run)
                self._on_commit(run)
            self._note_positions(operations, address, frame.length)
        self.frames += 1
        self.operations += len(operations)
        self.resolve(frame)

    def resolve(self, frame: PackedFrame) -> None:
        """Give its callers their values."""
        self.requests += len(frame.futures)
        answers = zip(frame.futures, frame.values, strict=True)
        while True:
            try:
                for future, value in answers:
                    future.set_result(value)
            except asyncio.InvalidStateError:
                continue  # It was cancelled, which is as much as to ask of each of them.
            return

    def _note_positions(
        self, operations: Sequence[Operation], address: LogAddress, length: int
    ) -> None:
        first, last = operations[0], operations[-1]
        self._positions.add_frame(first.sequence_number, address, length)
        self._positions.add_operations(
            address,
            (first.sequence_number, first.timestamp_ms),
            (last.sequence_number, last.timestamp_ms),
        )
        if self._checkpoint_start is not None:
            if isinstance(last, CheckpointOperation):
                self._positions.add_checkpoint(last.sequence_number, self._checkpoint_start)
            elif isinstance(last, SnapshotCheckpointOperation):
                self._source.logged(last, self._checkpoint_start)
            else:
                return
            self._positions.note_checkpoint(last.sequence_number, self._checkpoint_start)
            self._checkpoint_start = None
            self.checkpoints += 1
