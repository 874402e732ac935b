"""Opening a log on BookKeeper: take the record, fence, find the end, begin a ledger of our own.

The order is what makes it safe:

1. the record gets a new epoch, by compare-and-set: from now on no earlier owner can list a ledger
   or truncate;
2. ledgers are recovered from the newest backwards until two that hold something have been: no
   earlier owner can have an append acknowledged after that. (The newest is the only one that may be
   open. The one before it is fenced as well: a bookie that was set up anew may have forgotten its
   writer);
3. a new ledger goes into the record by compare-and-set, the ends that were found with it, the empty
   ones out of the list. It may be created beside step 2, for no log has it until it is listed;
4. only now is anything written.

A crash in between leaves a higher epoch, fenced ledgers, and maybe a ledger that nothing lists
(segmentstore gc).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, NamedTuple, NoReturn

from durablelog.bookkeeper.entry_checks import parse_entry
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.ledger_calls import BegunLedger, LedgerCalls
from durablelog.bookkeeper.ledger_reading import LedgerReader, LedgerStretch
from durablelog.bookkeeper.ledger_store import EMPTY
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from durablelog.bookkeeper.log_metadata_size import check_size
from durablelog.bookkeeper.log_metadata_store import LogMetadataStore
from durablelog.bookkeeper.waiting import Waiting
from segmentstore.contracts.errors import DataCorruptionError

_FENCED_NONEMPTY: Final = 2


class Found(NamedTuple):
    """Where the log ends."""

    ends: tuple[tuple[int, int, int], ...]
    """(sequence, last entry, length) of what was recovered and not noted before."""
    last_sequence: int
    """Of its last frame; 0 for none."""


async def fence(
    keeper: LogMetadataStore,
    calls: LedgerCalls,
    reader: LedgerReader,
    waiting: Waiting,
    container_id: int,
) -> Found:
    """Step 2.

    Raises DataCorruptionError, NotPrimaryError, TierUnavailableError, ConfigError (a newer format).
    """
    record = keeper.record
    truncation = split_address(record.truncation_address)
    ends: list[tuple[int, int, int]] = []
    last: LedgerStretch | None = None
    nonempty = 0
    for item in reversed(record.ledgers):
        if nonempty == _FENCED_NONEMPTY:
            break
        description = await calls.recover(item.ledger_id, waiting)
        if description is None:
            if not item.is_empty and item.sequence >= truncation[0]:
                detail = f"the ledger is missing, the record {keeper.path} lists it"
                await _corrupt(keeper, waiting, item, detail)
            ends.append((item.sequence, EMPTY, 0))
            continue
        reader.sealed(item.ledger_id)
        last_entry, length = description.last_entry, description.length
        if item.last_entry is not None:
            if last_entry < item.last_entry:
                detail = f"it ends at entry {last_entry}, the record says {item.last_entry}"
                await _corrupt(keeper, waiting, item, detail)
            last_entry = item.last_entry
        else:
            ends.append((item.sequence, last_entry, length))
        if item.sequence == truncation[0] and last_entry < truncation[1]:
            detail = f"it ends at entry {last_entry}, the log begins at its entry {truncation[1]}"
            await _corrupt(keeper, waiting, item, detail)
        if last_entry != EMPTY:
            nonempty += 1
            last = last or LedgerStretch(item, last_entry, last_entry)
    return Found(tuple(ends), await _last_frame(reader, container_id, last))


async def list_ledger(
    keeper: LogMetadataStore,
    begun: BegunLedger,
    ends: tuple[tuple[int, int, int], ...],
    deleted: tuple[int, ...],
    waiting: Waiting,
    *,
    record_bytes_max: int,
) -> LedgerItem:
    """Put a ledger that was begun into the record, behind ledgers whose ends are known by now.

    Raises NotPrimaryError, TierUnavailableError (also for a record that gets too large), and what
    the keeper raises.
    """
    ledger_id = begun.writer.ledger_id

    def edit(record: LogMetadata) -> LogMetadata:
        if any(item.ledger_id == ledger_id for item in record.ledgers):
            return record
        item = LedgerItem(
            sequence=record.next_sequence,
            ledger_id=ledger_id,
            epoch=record.epoch,
            replication=begun.replication,
        )
        wanted = record.ended(ends).without(deleted).followed_by(item)
        check_size(wanted, keeper.path, record_bytes_max)
        return wanted

    await waiting.for_node(lambda: keeper.change(edit))
    return keeper.record.ledgers[-1]


async def _corrupt(
    keeper: LogMetadataStore, waiting: Waiting, item: LedgerItem, detail: str
) -> NoReturn:
    """A later owner may have claimed, truncated and deleted since we read the record: a process
    that is not the owner concludes nothing.
    """
    await waiting.for_node(keeper.check)
    raise DataCorruptionError(_ledger_place(item), detail)


async def _last_frame(reader: LedgerReader, container_id: int, last: LedgerStretch | None) -> int:
    """The number of the last frame of the log."""
    if last is None:
        return 0
    async with aclosing(reader.entries(last)) as batches:
        async for batch in batches:
            header, _ = parse_entry(container_id, last.item, last.first, batch[0])
            return header.sequence
    raise DataCorruptionError(_ledger_place(last.item), f"entry {last.last} is not there")


def _ledger_place(item: LedgerItem) -> str:
    return f"ledger {item.ledger_id} (number {item.sequence} of its log)"
