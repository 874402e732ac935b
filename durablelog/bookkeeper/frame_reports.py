"""The frames of a log on ledgers, good and bad, for tools that read and never write: nothing is
fenced, nothing written.

Only what is closed can be read so: the last ledger of an owner who was killed, or is alive, has no
end yet. A ledger that is missing, or is shorter than the record says, is corruption if the record
is still the one that was read: the caller checks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from durablelog.bookkeeper.entry_checks import EntryChecks, place
from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_addresses import make_address, split_address
from durablelog.bookkeeper.ledger_calls import wrong_password
from durablelog.bookkeeper.ledger_store import EMPTY, LedgerError, LedgerState, LedgerStore
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from durablelog.durable_data_log import LogAddress
from durablelog.file.frame_reports import FrameReport
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError


class LedgerStillOpenError(TierUnavailableError):
    """A ledger has no end yet, so nothing is known about its last frames.

    The operator's move: stop the owner, or open once.
    """

    def __init__(self, item: LedgerItem) -> None:
        detail = (
            f"ledger {item.ledger_id} is open, so where its log ends is not known: close "
            "the store that has it open, or, if"
            " that was killed, open the store once and close it; then check again"
        )
        super().__init__("tier1", detail)


async def frame_reports(
    ledgers: LedgerStore, record: LogMetadata, *, start: LogAddress | None = None
) -> AsyncGenerator[list[FrameReport], None]:
    """Every frame from the truncation point, or from `start` if that is higher, to the end or the
    first corruption.

    Raises LedgerStillOpenError, TierUnavailableError, ConfigError (a newer format, another
    password).
    """
    checks = EntryChecks(record.container_id)
    begin = max(record.truncation_address, start or LogAddress(0))
    first_sequence, first_entry = split_address(begin)
    for item in record.ledgers:
        if item.sequence < first_sequence:
            continue
        number = first_entry if item.sequence == first_sequence else 0
        batches: AsyncIterator[Sequence[memoryview]] | None = None
        try:
            last, least = await _ends(ledgers, item, record)
            if last < least:
                yield [
                    _lost(
                        item,
                        last + 1,
                        f"the ledger ends at entry {last}, the record knows of entry {least}",
                    )
                ]
                return
            batches = ledgers.read(item.ledger_id, number, last)
            async for batch in batches:
                reports = []
                for entry in batch:
                    reports.append(_report(checks, item, number, entry))
                    number += 1
                    if reports[-1].status == "corrupt":
                        break
                yield reports
                if reports and reports[-1].status == "corrupt":
                    return
        except LedgerError as error:
            answer = reaction(LedgerCall.READ, error.code)
            if answer is Reaction.REFUSED:
                raise wrong_password(
                    f"{place(item, number)}: {code_text(error.code)}", code=error.code
                ) from error
            if answer is Reaction.NO_LEDGER:
                yield [_lost(item, number, f"the ledger is missing ({code_text(error.code)})")]
                return
            raise TierUnavailableError("tier1", f"{place(item, number)}: {error}") from error
        finally:
            close = getattr(batches, "aclose", None)
            if close is not None:
                # A reading that is left in the middle holds a connection until it is closed.
                await close()


async def _ends(ledgers: LedgerStore, item: LedgerItem, record: LogMetadata) -> tuple[int, int]:
    """Up to which entry to read, and the last one that must be there, by the record."""
    truncation_sequence, truncation_entry = split_address(record.truncation_address)
    least = EMPTY if item.last_entry is None else item.last_entry
    if item.sequence == truncation_sequence:
        least = max(least, truncation_entry)
    described = await ledgers.describe(item.ledger_id)
    if described.state is not LedgerState.CLOSED:
        if item.last_entry is None:
            raise LedgerStillOpenError(item)
        return item.last_entry, EMPTY
    if item.last_entry is not None:
        return min(item.last_entry, described.last_entry), least
    return described.last_entry, least


def _lost(item: LedgerItem, number: int, detail: str) -> FrameReport:
    """What should be there, from an entry on."""
    address = make_address(item.sequence, number)
    return FrameReport(
        address,
        f"ledger {item.ledger_id}",
        number,
        0,
        item.epoch,
        0,
        0,
        "corrupt",
        memoryview(b""),
        detail,
    )


def _report(checks: EntryChecks, item: LedgerItem, number: int, entry: memoryview) -> FrameReport:
    address = make_address(item.sequence, number)
    where = f"ledger {item.ledger_id}"
    try:
        frame = checks.frame(item, number, entry)
    except DataCorruptionError as error:
        return FrameReport(
            address, where, number, 0, item.epoch, 0, 0, "corrupt", memoryview(b""), error.detail
        )
    if frame is None:
        detail = "sent again by its writer"
        return FrameReport(
            address, where, number, 0, item.epoch, 0, 0, "stale", memoryview(b""), detail
        )
    return FrameReport(
        address,
        where,
        number,
        frame.sequence,
        frame.epoch,
        len(frame.payload),
        0,
        "ok",
        frame.payload,
        "",
    )
