"""Whether entries of ledgers are the frames of one log, in order. Pure.

A frame's header binds it to container, epoch and frame sequence number, and the ledger's item in
the record says which epoch it must have. Rules of this file:

- the numbers go up by one from frame to frame, across ledgers; a hole is corruption;
- a frame that was there already, with the same content, is dropped: a writer with an unconfirmed
  frame may have sent it twice. A different one with the same number is corruption;
- everything that is refused names ledger and entry.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.log_metadata import LedgerItem
from durablelog.data_frame import (
    FrameFormatError,
    FrameHeader,
    FrameVersionError,
    parse_header,
    payload_fault,
)
from durablelog.durable_data_log import LogFrame
from segmentstore.contracts.errors import ConfigError, DataCorruptionError

_REMEMBERED: Final = 4096
"""Frames a repeat may lie behind: more than ever were in flight at once."""


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
        header = parse_header(entry, 0)
    except FrameVersionError as error:
        raise ConfigError("log format", f"{where}: {error.reason}") from error
    except FrameFormatError as error:
        raise DataCorruptionError(where, error.reason) from error
    if header is None:
        raise DataCorruptionError(where, "no frame is there")
    if header.container_id != container_id:
        raise DataCorruptionError(where, f"a frame of container {header.container_id} lies there")
    if header.epoch != item.epoch:
        raise DataCorruptionError(
            where, f"a frame of epoch {header.epoch} in a ledger of epoch {item.epoch}"
        )
    payload = entry[header.header_length :]
    fault = payload_fault(header, payload)
    if fault is not None:
        raise DataCorruptionError(where, fault)
    return header, payload


class EntryChecks:
    """Takes the entries of one reading in their order."""

    def __init__(self, container_id: int) -> None:
        self._container_id = container_id
        self._expected: int | None = None
        self._seen: OrderedDict[int, tuple[int, int, int]] = OrderedDict()

    def frame(self, item: LedgerItem, number: int, entry: memoryview) -> LogFrame | None:
        """The next frame; None for a repeat. Raises DataCorruptionError, ConfigError."""
        header, payload = parse_entry(self._container_id, item, number, entry)
        content = (header.epoch, header.payload_length, header.payload_checksum)
        if self._expected is not None and header.sequence != self._expected:
            if header.sequence < self._expected and self._seen.get(header.sequence) == content:
                return None
            detail = f"frame {header.sequence} lies where frame {self._expected} is due"
            if header.sequence in self._seen:
                detail = f"frame {header.sequence} was there already, with other content"
            raise DataCorruptionError(place(item, number), detail)
        self._expected = header.sequence + 1
        self._seen[header.sequence] = content
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return LogFrame(make_address(item.sequence, number), header.sequence, header.epoch, payload)
