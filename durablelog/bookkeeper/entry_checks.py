"""Whether entries of ledgers are the frames of one log, in order. Pure.

A frame's header binds it to its log (frame_order.py), and the ledger's item in the record says
which epoch it must have. Everything that is refused names ledger and entry.
"""

from __future__ import annotations

from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.log_metadata import LedgerItem
from durablelog.data_frame import FrameFormatError, FrameHeader, FrameVersionError
from durablelog.durable_data_log import LogFrame
from durablelog.frame_order import FrameOrder, open_frame
from segmentstore.contracts.errors import ConfigError, DataCorruptionError


def place(item: LedgerItem, entry: int) -> str:
    """For people and for tools."""
    return f"ledger {item.ledger_id} entry {entry} (address {item.sequence}:{entry})"


def parse_entry(
    container_id: int, item: LedgerItem, number: int, entry: memoryview
) -> tuple[FrameHeader, memoryview]:
    """The frame that is one entry of a ledger, all of it verified.

    Raises DataCorruptionError, ConfigError (a newer format).
    """
    where = place(item, number)
    try:
        header, payload = open_frame(container_id, entry)
    except FrameVersionError as error:
        raise ConfigError("log format", f"{where}: {error.reason}") from error
    except FrameFormatError as error:
        raise DataCorruptionError(where, error.reason) from error
    if header.epoch != item.epoch:
        raise DataCorruptionError(
            where, f"a frame of epoch {header.epoch} in a ledger of epoch {item.epoch}"
        )
    return header, payload


class EntryChecks:
    """Takes the entries of one reading in their order."""

    def __init__(self, container_id: int) -> None:
        self._container_id = container_id
        self._order = FrameOrder()

    def frame(self, item: LedgerItem, number: int, entry: memoryview) -> LogFrame | None:
        """The next frame; None for a repeat. Raises DataCorruptionError, ConfigError."""
        header, payload = parse_entry(self._container_id, item, number, entry)
        try:
            if not self._order.accept(header):
                return None
        except FrameFormatError as error:
            raise DataCorruptionError(place(item, number), error.reason) from error
        return LogFrame(make_address(item.sequence, number), header.sequence, header.epoch, payload)
