"""ArchiveReading: a sealed part of the log as the offloader reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from durablelog.data_frame import ENTRY_FIRST, ENTRY_HEADER, header_length_at
from durablelog.operation_codec import checkpoint_of
from segmentstore.contracts.ledgers import LedgerEntry, ReadHandle
from segmentstore.contracts.paced_reading import PacedReadHandle
from segmentstore.contracts.rate_limiter import RateLimiter


class ArchiveReading(PacedReadHandle):
    """A part of the log as the offloader reads it. Finds the entry that begins with the part's
    newest checkpoint.
    """

    def __init__(self, handle: ReadHandle, limiter: RateLimiter, checkpoint_sequence: int) -> None:
        super().__init__(handle, limiter)
        self._checkpoint_sequence = checkpoint_sequence
        self.checkpoint_entry = 0

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        async with aclosing(super().read(first, last)) as batches:
            async for batch in batches:
                if self._checkpoint_sequence:
                    self._search(batch)
                yield batch

    def _search(self, entries: Sequence[LedgerEntry]) -> None:
        for entry_id, data in entries:
            begin = header_length_at(data, 0)
            _, flags = ENTRY_HEADER.unpack_from(data, begin)
            if flags & ENTRY_FIRST:
                found = checkpoint_of(data[begin + ENTRY_HEADER.size :])
                if found == self._checkpoint_sequence:
                    self.checkpoint_entry = entry_id
