"""What the storage writer may ask of the container it works for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durablelog.operations import ObjectsDeletedOperation, ReplaceChunksOperation, StorageUpdateOperation
from segmentstore.contracts.metadata import ContainerMetadata


class WriterDataSource(Protocol):
    """The container, seen from the storage writer. Everything on the container's event loop."""

    @property
    def metadata(self) -> ContainerMetadata:
        """The committed metadata; read only."""

    @property
    def epoch(self) -> int:
        """Of the container's log; stamped on everything written to Tier 2."""

    async def read_unflushed(self, segment_id: int, offset: int, length: int) -> Sequence[bytes]:
        """Exactly these committed bytes, from wherever they lie, in pieces; may take a rescan of the log.

        Raises SegmentNotFoundError or SegmentTruncatedError if the segment has changed meanwhile.
        """

    async def commit(
        self, operation: StorageUpdateOperation | ObjectsDeletedOperation | ReplaceChunksOperation
    ) -> None:
        """Put an operation through the log; returns when it is committed to the metadata.

        Raises ContainerStoppedError, AppendOutcomeUnknownError, NotPrimaryError: the writer stops then.
        """

    async def check_primary(self) -> None:
        """Raise NotPrimaryError if another owner has opened the log by now, TierUnavailableError if that cannot be told.

        For who is about to say something that no operation says. A container that learns it here stops.
        """

    def object_in_use(self, name: str) -> bool:
        """True while a read, or a consolidation, has this object open, or an upload of it is not all committed."""
