"""What the read index asks of Tier 2: verified bytes of a chunk. Implemented by tier2's block reader."""

from __future__ import annotations

from typing import Protocol

from segmentstore.contracts.chunks import ChunkRecord


class BlockSource(Protocol):
    """Reads chunks. Calls come from one event loop; many may be in flight."""

    async def read(self, chunk: ChunkRecord, offset: int, length: int) -> bytes:
        """Exactly `length` >= 1 bytes from `offset`, a place in the segment that owns the chunk, checksums verified.

        The range lies inside the chunk. Raises tier2.object_storage.ObjectNotFoundError (the object is gone:
        look the chunk up again), StorageUnavailableError (try again later), DataCorruptionError.
        """
