"""A read handle with a rate: what is read beside appends leaves them the disk and the processor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from segmentstore.contracts.ledgers import LedgerEntry, LedgerMetadata, ReadHandle
from segmentstore.contracts.rate_limiter import RateLimiter


class PacedReadHandle(ReadHandle):
    """Another handle, read no faster than `limiter` lets all that share it.

    A batch is charged once it is there, and the next one waits for it to be paid: at most one batch
    of each reading is in memory. Closing it closes the other one.
    """

    def __init__(self, inner: ReadHandle, limiter: RateLimiter) -> None:
        self._inner = inner
        self._limiter = limiter

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        async with aclosing(self._inner.read(first, last)) as batches:
            async for batch in batches:
                await self._limiter.acquire(sum(len(entry.data) for entry in batch))
                yield batch

    async def close(self) -> None:
        await self._inner.close()
