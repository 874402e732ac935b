"""Reading the frames of a log from its ledgers, in order.

What lies between the truncation point and the last acknowledged frame was durable: anything missing
in it is corruption, whatever the reason. Rules of this file:

- a ledger of another owner is read when it is closed: one that this opening has not recovered is
  recovered first;
- a bookie that does not answer is asked again a few times, from where the reading stands;
- what is deleted or missing is corruption only if the record is still ours: a new owner may have
  truncated it. While the record does not answer, nothing is concluded;
- an unforeseen code stops the whole log, as that of an append does: a writer that cannot interpret
  it does not write on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, NoReturn

from durablelog.bookkeeper.entry_checks import EntryChecks, place
from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.ledger_calls import wrong_password
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from durablelog.bookkeeper.waiting import FIRST_S, MOST_S
from durablelog.durable_data_log import LogAddress, LogFrame
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)

READ_TRIES: Final = 8
"""For one place; with the pauses in between about 10 s."""


class LedgerStretch(NamedTuple):
    """Entries of one ledger to read, both ends included."""

    item: LedgerItem
    first: int
    last: int


def stretches_of(
    record: LogMetadata, start: LogAddress | None, last_entry: Callable[[LedgerItem], int]
) -> list[LedgerStretch]:
    """What there is to read from `start` on, or from the truncation point; each ledger to its last
    entry.
    """
    sequence, entry = split_address(max(start or LogAddress(0), record.truncation_address))
    return [
        LedgerStretch(item, entry if item.sequence == sequence else 0, last_entry(item))
        for item in record.ledgers
        if item.sequence >= sequence
    ]


class LedgerReader:
    """Reads for one log.

    `check_owner` checks the record: it raises if the log is not ours any more, and
    NodeUnavailableError. `fail` is called with what ends the log for good; `password_from` is said
    of a ledger that wants another password.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        container_id: int,
        rng: random.Random,
        *,
        password_from: str,
        check_owner: Callable[[], Awaitable[None]],
        fail: Callable[[SegmentStoreError], None],
    ) -> None:
        self._ledgers = ledgers
        self._container_id = container_id
        self._rng = rng
        self._password_from = password_from
        self._check_owner = check_owner
        self._fail = fail
        self._sealed: set[int] = set()

    def sealed(self, ledger_id: int) -> None:
        """Known to be closed, or written by this very client."""
        self._sealed.add(ledger_id)

    def keep(self, ledger_ids: set[int]) -> None:
        """Other ledgers are no part of the log any more."""
        self._sealed &= ledger_ids

    async def read(
        self, stretches: Sequence[LedgerStretch]
    ) -> AsyncGenerator[list[LogFrame], None]:
        """Frames, in batches of at least one.

        Raises DataCorruptionError, NotPrimaryError, TierUnavailableError, ConfigError.
        """
        checks = EntryChecks(self._container_id)
        for stretch in stretches:
            item, number = stretch.item, stretch.first
            async with aclosing(self.entries(stretch)) as batches:
                async for batch in batches:
                    found = [
                        checks.frame(item, number + index, entry)
                        for index, entry in enumerate(batch)
                    ]
                    number += len(batch)
                    frames = [frame for frame in found if frame is not None]
                    if frames:
                        yield frames

    async def entries(self, stretch: LedgerStretch) -> AsyncGenerator[Sequence[memoryview], None]:
        """The entries of one stretch, all of them. Raises as `read` does."""
        item, number, last = stretch
        backoff = Backoff(self._rng, min_s=FIRST_S, max_s=MOST_S)
        while number <= last:
            batches: AsyncIterator[Sequence[memoryview]] | None = None
            try:
                await self._seal(item)
                batches = self._ledgers.read(item.ledger_id, number, last)
                async for batch in batches:
                    number += len(batch)
                    backoff.reset()
                    yield batch
                if number <= last:
                    await self._corrupt(place(item, number), "the ledger was not read to its end")
            except LedgerError as error:
                pause_s = backoff.next_s()
                await self._check_failure(item, number, error, backoff.failures)
                await asyncio.sleep(pause_s)
            finally:
                await _close_batches(batches)

    async def _seal(self, item: LedgerItem) -> None:
        if item.ledger_id in self._sealed:
            return
        description = await self._ledgers.recover(item.ledger_id)
        if description.last_entry < (item.last_entry or 0):
            detail = (
                f"the ledger ends at entry {description.last_entry}, the record says "
                f"{item.last_entry}"
            )
            await self._corrupt(place(item, description.last_entry + 1), detail)
        self._sealed.add(item.ledger_id)

    async def _check_failure(
        self, item: LedgerItem, number: int, error: LedgerError, tries: int
    ) -> None:
        """Returns if it may be tried again."""
        what = (
            f"{place(item, number)}: "
            f"{code_text(error.code)}{': ' + error.detail if error.detail else ''}"
        )
        answer = reaction(LedgerCall.READ, error.code)
        if answer is Reaction.NO_LEDGER:
            await self._corrupt(
                place(item, number), f"the ledger is missing ({code_text(error.code)})"
            )
        if answer is Reaction.FATAL:
            await self._stop(TierUnavailableError("tier1", what))
        if answer is Reaction.REFUSED:
            await self._stop(wrong_password(what, self._password_from, code=error.code))
        if tries < READ_TRIES:
            return
        if answer is Reaction.MISSING:
            await self._corrupt(
                place(item, number), f"the entry cannot be read ({code_text(error.code)})"
            )
        await self._check_record(what)
        raise TierUnavailableError("tier1", what)

    async def _stop(self, error: SegmentStoreError) -> NoReturn:
        """The log goes no further.

        If it is another owner's, that is what is wrong; if that cannot be found out, it stops all
        the same.
        """
        try:
            await self._check_owner()
        except NodeUnavailableError:
            pass
        self._fail(error)
        raise error

    async def _corrupt(self, where: str, detail: str) -> NoReturn:
        """Only the owner may say so."""
        await self._check_record(f"{where}: {detail}")
        raise DataCorruptionError(where, detail)

    async def _check_record(self, what: str) -> None:
        try:
            await self._check_owner()
        except NodeUnavailableError as error:
            raise TierUnavailableError(
                "tier1", f"{what}; and the log's record does not answer: {error}"
            ) from error


async def _close_batches(batches: AsyncIterator[Sequence[memoryview]] | None) -> None:
    """Close an iterator that was left in the middle."""
    close = getattr(batches, "aclose", None)
    if close is not None:
        await close()
