"""The frames of a log on ledgers, good and bad, for tools that look and never touch: nothing is fenced, nothing written.

Only what is closed can be read so: the last ledger of an owner who was killed, or is alive, has no end yet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from durablelog.bookkeeper.entry_checks import EntryChecks, place
from durablelog.bookkeeper.ledger_addresses import make_address, split_address
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerState, LedgerStore
from durablelog.bookkeeper.log_record import LedgerItem, LogRecord
from durablelog.durable_data_log import LogAddress
from durablelog.file.frame_reports import FrameReport
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError


class LedgerStillOpenError(TierUnavailableError):
    """A ledger has no end yet, so nothing is known about its last frames. The operator's move: stop the owner, or open once."""

    def __init__(self, item: LedgerItem) -> None:
        detail = (
            f"ledger {item.ledger_id} is open: its owner is alive, or was killed; what it holds can be looked at"
            " once the store was closed (after a kill: opened and closed)"
        )
        super().__init__("tier1", detail)


async def frame_reports(
    ledgers: LedgerStore, record: LogRecord, *, start: LogAddress | None = None
) -> AsyncGenerator[list[FrameReport], None]:
    """Every frame from the truncation point, or from `start` if that is higher, to the end or the first corruption.

    Raises LedgerStillOpenError, TierUnavailableError, ConfigError (a newer format).
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
            last = await _last_entry(ledgers, item)
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
            raise TierUnavailableError("tier1", f"{place(item, number)}: {error}") from error
        finally:
            close = getattr(batches, "aclose", None)
            if close is not None:
                # Left in the middle, it holds a connection until somebody says so.
                await close()


async def _last_entry(ledgers: LedgerStore, item: LedgerItem) -> int:
    if item.last_entry is not None:
        return item.last_entry
    described = await ledgers.describe(item.ledger_id)
    if described.state is not LedgerState.CLOSED:
        raise LedgerStillOpenError(item)
    return described.last_entry


def _report(checks: EntryChecks, item: LedgerItem, number: int, entry: memoryview) -> FrameReport:
    address = make_address(item.sequence, number)
    where = f"ledger {item.ledger_id}"
    try:
        frame = checks.frame(item, number, entry)
    except DataCorruptionError as error:
        return FrameReport(address, where, number, 0, item.epoch, 0, 0, "corrupt", memoryview(b""), error.detail)
    if frame is None:
        detail = "sent again by its writer"
        return FrameReport(address, where, number, 0, item.epoch, 0, 0, "stale", memoryview(b""), detail)
    return FrameReport(
        address, where, number, frame.sequence, frame.epoch, len(frame.payload), 0, "ok", frame.payload, ""
    )
