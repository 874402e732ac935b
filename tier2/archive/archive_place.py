"""ArchivePlace: the archive of an open store, as its containers share it."""

from __future__ import annotations

from dataclasses import dataclass

from segmentstore.contracts.rate_limiter import RateLimiter
from tier2.archive.ledger_offloader import LedgerOffloader
from tier2.object_storage import ObjectStorage


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """Of one store; its opening makes and closes it."""

    storage: ObjectStorage
    """Where lists of parts are; it is the offloader's, which closes it."""
    offloader: LedgerOffloader
    limiter: RateLimiter
    """Of what is read from logs for it."""

    async def close(self) -> None:
        """Release it. Idempotent."""
        await self.offloader.close()
