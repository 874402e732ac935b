"""Takes DataFrames apart again: frames in log order go in, whole records come out.

Pure. Rules of this file:

- frame sequence numbers grow by one; a repeated frame (same number, same content) is dropped before
  reassembly, anything else out of order is corruption;
- pieces of a record whose beginning was truncated away are skipped, at the very start only;
- a new record while one is open is legal exactly when the epoch grew since the open one's last
  piece: its owner died, and never acknowledged it;
- an open record at the end of the log was never acknowledged and is dropped by `finish`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from durablelog.data_frame import (
    ENTRY_FIRST,
    ENTRY_HEADER,
    ENTRY_HEADER_LENGTH,
    ENTRY_LAST,
    ENTRY_WHOLE,
)
from durablelog.durable_data_log import LogAddress, LogFrame
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import DataCorruptionError

REPEAT_WINDOW: Final = 64
"""How many frames back a repeated one is still recognised."""

_unpack_entry = ENTRY_HEADER.unpack_from


class Record(NamedTuple):
    """One whole record. Whole in one entry it is a view into the frame's payload, else a copy."""

    data: memoryview | bytes
    first_frame_address: LogAddress
    last_frame_address: LogAddress
    address: LogAddress | None = None
    """Of its first byte, the others follow; None if it lies in several frames, or its log cannot
    `read_ranges`.
    """
    stretches: tuple[tuple[LogAddress, int], ...] = ()
    """Where its pieces lie, if it has several: address and length."""

    def places_from(self, position: int) -> tuple[tuple[LogAddress, int], ...]:
        """Address and length of each stretch of its bytes from `position` on; none if its log
        cannot `read_ranges`.
        """
        if self.address is not None:
            return ((LogAddress(self.address + position), len(self.data) - position),)
        places = []
        for address, length in self.stretches:
            before = min(position, length)
            position -= before
            if length > before:
                places.append((LogAddress(address + before), length - before))
        return tuple(places)


class _OpenRecord:
    """A record whose end has not been seen yet."""

    __slots__ = ("epoch", "first_frame_address", "pieces", "stretches")

    def __init__(self, frame: LogFrame) -> None:
        self.pieces: list[memoryview] = []
        self.stretches: list[tuple[LogAddress, int]] = []
        self.first_frame_address = frame.address
        self.epoch = frame.epoch

    def add(self, frame: LogFrame, start: int, piece: memoryview) -> None:
        """The piece that follows, at `start` of a frame's payload."""
        self.pieces.append(piece)
        if frame.payload_address is not None:
            self.stretches.append((LogAddress(frame.payload_address + start), len(piece)))


class DataFrameReader:
    """Reassembles records. Feed it every frame of a log from the truncation point on, in order.

    After it raised, it is finished: the caller must not go on.
    """

    __slots__ = (
        "_epoch",
        "_open",
        "_recent",
        "_sequence",
        "_started",
        "dropped",
        "repeated",
        "skipped",
    )

    def __init__(self) -> None:
        self._open: _OpenRecord | None = None
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=REPEAT_WINDOW)
        self._sequence: int | None = None
        self._epoch = 0
        self._started = False
        self.skipped = 0
        """Entries at the head that belong to a record truncated away."""
        self.dropped = 0
        """Records cut by the death of their owner or by the end of the log; none was
        acknowledged.
        """
        self.repeated = 0
        """Frames that were there twice."""

    def feed(self, frame: LogFrame) -> list[Record]:
        """The records that end in `frame`, in order.

        Raises DataCorruptionError naming address and sequence.

        About 0.5 us per record that lies whole in one entry; no copy for those.
        """
        if not self._accept(frame):
            return []
        records: list[Record] = []
        payload = frame.payload
        address = frame.address
        payload_address = frame.payload_address
        size = len(payload)
        position = 0
        # Taken once per frame: while it is False an entry that is whole needs nothing else checked.
        open_record = self._open is not None
        while position < size:
            start = position + ENTRY_HEADER_LENGTH
            if start >= size:
                raise _corrupt(frame, f"an entry header is cut off at payload position {position}")
            length, flags = _unpack_entry(payload, position)
            position = start + length
            if not start < position <= size:
                raise _corrupt(frame, f"an entry at payload position {start} claims {length} bytes")
            if flags == ENTRY_WHOLE and not open_record:
                place = None if payload_address is None else LogAddress(payload_address + start)
                records.append(Record(payload[start:position], address, address, place))
            else:
                self._started = self._started or bool(records)
                record = self._piece(frame, start, payload[start:position], flags)
                if record is not None:
                    records.append(record)
                open_record = self._open is not None
        if records:
            self._started = True
        return records

    @property
    def between_records(self) -> bool:
        """Whether no record has begun that has not ended."""
        return self._open is None

    def accept_whole(self, frame: LogFrame) -> bool:
        """In place of `feed`, of a frame that the caller has found to have whole records alone,
        while `between_records`. False: it is a repetition, and none of them counts.

        Raises DataCorruptionError as `feed` does.
        """
        assert self._open is None
        if not self._accept(frame):
            return False
        self._started = True
        return True

    def finish(self) -> None:
        """The log ended: an open record is dropped."""
        if self._open is not None:
            self._open = None
            self.dropped += 1

    def _accept(self, frame: LogFrame) -> bool:
        """False if the frame is a repetition; raises if it is out of place."""
        expected = frame.sequence if self._sequence is None else self._sequence + 1
        checksum = crc32c(frame.payload) if frame.checksum is None else frame.checksum
        content = (frame.sequence, len(frame.payload), checksum)
        if frame.sequence != expected:
            if content in self._recent:
                self.repeated += 1
                return False
            if any(recent[0] == frame.sequence for recent in self._recent):
                raise _corrupt(
                    frame, "another frame with the same number and different content came before"
                )
            raise _corrupt(frame, f"frame {expected} belongs here")
        if frame.epoch < self._epoch:
            raise _corrupt(frame, f"epoch {frame.epoch} after epoch {self._epoch}")
        if not content[1]:
            raise _corrupt(frame, "the frame is empty")
        self._recent.append(content)
        self._sequence = frame.sequence
        self._epoch = frame.epoch
        return True

    def _piece(self, frame: LogFrame, start: int, piece: memoryview, flags: int) -> Record | None:
        """Any entry that is not a whole record met while none is open."""
        if flags & ~ENTRY_WHOLE:
            raise _corrupt(frame, f"an entry has unknown flags {flags:#04x}")
        current = self._open
        if flags & ENTRY_FIRST:
            if current is not None:
                if frame.epoch <= current.epoch:
                    raise _corrupt(frame, "a record begins before the one before it has ended")
                self.dropped += 1
                self._open = None
            self._started = True
            if flags & ENTRY_LAST:
                return Record(piece, frame.address, frame.address)
            self._open = _OpenRecord(frame)
            self._open.add(frame, start, piece)
            return None
        if current is None:
            if self._started:
                raise _corrupt(frame, "an entry continues a record that never began")
            self.skipped += 1
            return None
        if frame.epoch != current.epoch:
            raise _corrupt(
                frame, f"epoch {frame.epoch} continues a record of epoch {current.epoch}"
            )
        current.add(frame, start, piece)
        if not flags & ENTRY_LAST:
            return None
        self._open = None
        first, stretches = current.first_frame_address, tuple(current.stretches)
        return Record(b"".join(current.pieces), first, frame.address, None, stretches)


def _corrupt(frame: LogFrame, detail: str) -> DataCorruptionError:
    return DataCorruptionError(f"log address {frame.address:#x} frame {frame.sequence}", detail)
