"""ArchivedLedger: the read handle of a ledger in the archive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.ledgers import (
    EntryRangeError,
    LedgerEntry,
    LedgerMetadata,
    ReadHandle,
)
from tier2.archive.archive_errors import archive_errors
from tier2.archive.entry_reading import EntryReading, LedgerPlace


class ArchivedLedger(ReadHandle):
    """Reads the data object by an index that was read before."""

    def __init__(self, ledger_id: int, place: LedgerPlace) -> None:
        self._ledger_id = ledger_id
        self._place = place
        self._closed = False

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._place.index.metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        if not 0 <= first <= last <= self.last_entry:
            raise EntryRangeError(
                "first, last", (first, last), f"the ledger has entries 0 to {self.last_entry}"
            )
        reading = EntryReading(self._place, first, last)
        with archive_errors(self._ledger_id, self._place.data_name):
            async with aclosing(reading.batches()) as batches:
                while True:
                    self._check_open()
                    batch = await anext(batches, None)
                    if batch is None:
                        return
                    yield batch

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError(
                "handle", f"ledger {self._ledger_id}", "it is closed: open it again"
            )
