"""CommitDispatch: passes committed operations, live or replayed, to the read index and the storage
writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReplaceChunksOperation,
    SealOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from readindex.read_index import ReadIndex
from segmentstore.container.eviction import Eviction
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter.storage_writer import StorageWriter


class CommitDispatch:
    """Of one container.

    `on_checkpoint()` is called in the turn of the event loop after a checkpoint was committed; for
    one by reference it is not: it is no truncation point yet.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        read_index: ReadIndex,
        writer: StorageWriter,
        eviction: Eviction,
        on_checkpoint: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._eviction = eviction
        self._index = read_index
        self._writer = writer
        self._on_checkpoint = on_checkpoint
        self._replaying = True

    def end_replay(self) -> None:
        """The log has been replayed: what comes from now on is live."""
        self._replaying = False

    def committed(self, operations: Sequence[Operation]) -> None:
        """A run of committed operations (`commit_runs`), live or replayed: the read index first,
        then the storage writer.
        """
        kind = type(operations[0])
        if kind is AppendOperation:
            appends = cast("Sequence[AppendOperation]", operations)
            self._eviction.recent.update([append.segment_id for append in appends])
            self._index.append(appends, replayed=self._replaying)
        elif kind is not CreateOperation:
            self._other(operations[0])
        self._writer.add(operations)

    def _other(self, operation: Operation) -> None:
        index = self._index
        if isinstance(operation, StorageUpdateOperation):
            self._storage_updated(operation)
        elif isinstance(operation, ReplaceChunksOperation):
            for segment_id, _, _ in operation.replacements:
                if segment_id in self._metadata.segments:
                    index.replaced(segment_id)
        elif isinstance(operation, MergeOperation):
            index.merged(operation.target_id, operation.source_id)
        elif isinstance(operation, LinkChunksOperation):
            # It had no effect if the target was deleted, or truncated behind the source, meanwhile.
            if operation.source_id in self._metadata.segments:
                index.merge_linked_in_part(operation.target_id, operation.source_id)
        elif isinstance(operation, TruncateOperation):
            index.truncated(operation.segment_id)
        elif isinstance(operation, SealOperation):
            index.sealed(operation.segment_id)
        elif isinstance(operation, DeleteOperation):
            index.deleted(operation.segment_id)
        elif isinstance(operation, CheckpointOperation):
            # Its place is known once this turn is over: perhaps everything before it is in Tier 2
            # already.
            asyncio.get_running_loop().call_soon(self._on_checkpoint)
            if self._replaying:
                index.adopt_merges()
        elif isinstance(operation, SnapshotCheckpointOperation) and self._replaying:
            # Live it has no place yet: its snapshot is only being made.
            index.adopt_merges()

    def _storage_updated(self, operation: StorageUpdateOperation) -> None:
        # Segments deleted while their bytes were on the way to Tier 2 are passed over here as in
        # the metadata.
        segments = self._metadata.segments
        for segment_id in {segment_id for segment_id, _ in operation.chunks}:
            if segment_id in segments:
                self._index.storage_advanced(segment_id)
        for target_id, source_id in operation.links:
            # A link that has to wait until chunks of its target are released had no effect.
            if target_id in segments and source_id not in segments:
                self._index.merge_linked(target_id, source_id)
