"""What the read index asks of Tier 2: verified bytes of a chunk.

Implemented by tier2's block reader.

Reports of fetches: `FetchWatch`, implemented by the part that keeps losses.
"""

from __future__ import annotations

from typing import Protocol

from segmentstore.contracts.chunks import ChunkRecord


class BlockSource(Protocol):
    """Reads chunks. Calls come from one event loop; many may be in flight."""

    async def read(self, chunk: ChunkRecord, offset: int, length: int) -> bytes:
        """Exactly `length` >= 1 bytes from `offset`, a place in the segment that owns the chunk,
        checksums verified.

        The range lies inside the chunk. Raises tier2.object_storage.ObjectNotFoundError (the object
        is missing: find the chunk again), StorageUnavailableError (try again later),
        DataCorruptionError.
        """


class FetchWatch(Protocol):
    """Receives each fetch from Tier 2 when it has ended.

    Calls come from the event loop, and must be quick.
    """

    def failed(
        self,
        segment_id: int,
        chunk: ChunkRecord,
        start_offset: int,
        end_offset: int,
        error: Exception,
    ) -> None:
        """[start_offset, end_offset) of the segment did not come.

        The object may just have been replaced, or Tier 2 be away.
        """

    def fetched(self, chunk: ChunkRecord, start_offset: int, end_offset: int) -> None:
        """These bytes came, and are right."""
