"""The frames of a log from its parts: ledgers, files, or what the archive has of either.

What recovery reads instead of a log. Rules of this file:

- every frame is verified, header and payload;
- a frame that was there already is dropped, in its own part or across parts. A part is what a
  ledger holds, and a frame of unknown outcome may lie in two of them;
- the parts are handed in from the oldest to the newest; a part that is left out is a hole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from durablelog.data_frame import FRAME_HEADER_LENGTH, FrameFormatError, FrameVersionError
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.frame_order import FrameOrder, open_frame
from durablelog.generated_ledgers import first_address
from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from segmentstore.contracts.ledgers import LedgerEntry, ReadHandle

_ENTRY_BITS = 32


class PartFrames:
    """One reading of one container's log, over any number of its parts."""

    def __init__(self, container_id: int) -> None:
        self._container_id = container_id
        self._order = FrameOrder()

    async def read(
        self, handle: ReadHandle, number: int, first: int = 0, last: int | None = None
    ) -> AsyncGenerator[list[LogFrame], None]:
        """Frames of part `number` that lie in entries `first` to `last`, to its end by default.

        In batches of at least one. The addresses are those that the log gave; of a generated ledger
        that is not read from its beginning they are lower, and ordered all the same. Raises
        DataCorruptionError, ConfigError (a newer format), and what the handle raises.
        """
        end = handle.last_entry if last is None else last
        if end < first == 0:
            return  # an empty ledger
        base = first_address(handle.metadata)
        # At least so much lies before: where exactly is not known.
        offset = first * FRAME_HEADER_LENGTH
        async with aclosing(handle.read(first, end)) as batches:
            async for batch in batches:
                frames: list[LogFrame] = []
                for entry in batch:
                    if base is None:
                        address = LogAddress(number << _ENTRY_BITS | entry.entry_id)
                    else:
                        address = LogAddress(base + offset)
                    frame = self.frame(handle, entry, address)
                    offset += len(entry.data)
                    if frame is not None:
                        frames.append(frame)
                if frames:
                    yield frames

    def frame(self, handle: ReadHandle, entry: LedgerEntry, address: LogAddress) -> LogFrame | None:
        """The next frame; None for a repeat. Raises DataCorruptionError, ConfigError."""
        try:
            header, payload = open_frame(self._container_id, entry.data)
            if not self._order.accept(header):
                return None
        except FrameVersionError as error:
            raise ConfigError("log format", f"{_place(handle, entry)}: {error.reason}") from error
        except FrameFormatError as error:
            raise DataCorruptionError(_place(handle, entry), error.reason) from error
        return LogFrame(
            address, header.sequence, header.epoch, payload, checksum=header.payload_checksum
        )

    def follow(self, frames: Sequence[LogFrame]) -> list[LogFrame]:
        """Frames that a log itself gives behind the parts, without those that were in the parts.

        Raises DataCorruptionError for a hole.
        """
        kept: list[LogFrame] = []
        for frame in frames:
            try:
                if self._order.accept_frame(frame):
                    kept.append(frame)
            except FrameFormatError as error:
                raise DataCorruptionError(f"frame {frame.sequence}", error.reason) from error
        return kept


def _place(handle: ReadHandle, entry: LedgerEntry) -> str:
    return f"ledger {handle.ledger_id} entry {entry.entry_id}"
