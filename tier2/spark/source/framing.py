"""Framing: cuts the bytes of a segment, as they come in pieces, into rows: whole lines, events, or
fixed pieces.

Rules of this file:

- a row belongs to the range of its first byte. A framer gives the rows that begin in [rows_from,
  end), each whole, and reads on behind `end` for the last of them. So any cutting of a range gives
  each row once;
- what is not whole when the bytes are over is given by `finish` only if nothing can follow it;
- no loop over rows where numpy can do it: a row of 100 bytes must cost less than its bytes;
- what is held of a row cut by pieces is bounded by `record_bytes_max`.

Pure: no await, no clock, no I/O. Offsets are places in the segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.events import EVENT_HEADER_BYTES, EVENT_LENGTH

RECORD_BYTES_LIMIT: Final = 1024**3
"""No setting allows longer rows: with the bytes of one piece they still have 32-bit places in an
Arrow buffer.
"""
NEWLINE: Final = 10
_SMALL_EVENT_BYTES: Final = 4096
"""Mean length up to which prefixes are cut out of a whole piece by a mask, and not event by
event.
"""


class FramingError(Exception):
    """The bytes are not framed as said.

    `offset` is the place in the segment where the row begins that is none.
    """

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(f"at offset {offset}: {detail}")
        self.offset = offset
        self.detail = detail


class Rows(NamedTuple):
    """Rows of one piece: row i is `data[bounds[i]:bounds[i + 1]]` and its first byte lies at
    `offsets[i]`.
    """

    offsets: NDArray[np.int64]
    bounds: NDArray[np.int32]
    data: Buffer | None
    """None if the query does not ask for the bytes."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Bytes of each row."""
        return np.diff(self.bounds)


class Framer(ABC):
    """Takes the bytes from `start` on, in order, and gives rows that begin in [rows_from, end).

    See the module's head.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        rows_from: int = 0,
        record_bytes_max: int,
        with_data: bool = True,
    ) -> None:
        self.position = start
        """Of the next byte to be fed."""
        self._done = start >= end
        self._end = end
        self._rows_from = rows_from
        self._record = start
        """Where the row begins whose bytes are held."""
        self._held: list[Buffer] = []
        self._record_bytes_max = record_bytes_max
        self._with_data = with_data

    def done(self) -> bool:
        """Whether everything that follows belongs to others."""
        return self._done

    @abstractmethod
    def feed(self, data: Buffer) -> Rows | None:
        """Rows that are whole now. `data` is not changed and may be kept. Raises FramingError."""

    @abstractmethod
    def finish(self, *, complete: bool) -> Rows | None:
        """The bytes are over; `complete`: and nothing will ever follow them.

        Raises FramingError.
        """

    def jump(self, offset: int) -> None:
        """The bytes up to `offset` are lost, which is taken for the beginning of a row; what was
        held is dropped.
        """
        self._held.clear()
        self.position = self._record = offset
        self._done = offset >= self._end

    @property
    def _held_bytes(self) -> int:
        return self.position - self._record

    def _hold(self, data: Buffer) -> None:
        """Keep bytes of a row that is not whole yet."""
        if len(data):
            self._held.append(data)
            self.position += len(data)
        if self._held_bytes > self._record_bytes_max:
            raise self._too_long(self._record)

    def _too_long(self, offset: int) -> FramingError:
        return FramingError(
            offset, f"a row of more than {self._record_bytes_max} bytes (recordBytesMax)"
        )

    def _take_held(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        return data

    def _selected(
        self, offsets: NDArray[np.int64], bounds: NDArray[np.int64], data: Buffer | None
    ) -> Rows | None:
        """The rows that begin at `rows_from` or later; offsets ascend."""
        first = int(np.searchsorted(offsets, self._rows_from))
        if first == len(offsets):
            return None
        if first:
            offsets, skipped = offsets[first:], int(bounds[first])
            bounds = bounds[first:] - skipped
            data = None if data is None else memoryview(data)[skipped:]
        return Rows(offsets, bounds.astype(np.int32), data if self._with_data else None)


class LineFramer(Framer):
    r"""Rows end in `\n`, which is not part of them; nothing else is taken away.

    `skip_first`: the first byte fed is the one before `start`, and the first row begins behind the
    first newline from there on. So a range that may begin inside of a line finds its first own one.
    Costs about 0.3 ms per MiB.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        rows_from: int = 0,
        record_bytes_max: int,
        with_data: bool = True,
        skip_first: bool = False,
    ) -> None:
        super().__init__(
            start, end, rows_from=rows_from, record_bytes_max=record_bytes_max, with_data=with_data
        )
        self._skipping = skip_first
        if skip_first:
            self.position -= 1

    def feed(self, data: Buffer) -> Rows | None:
        if self._done or not len(data):
            return None
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
        if self._skipping:
            if not len(newlines):
                self.position += len(data)
                self._done = self.position >= self._end
                return None
            self._skipping = False
            begun = int(newlines[0]) + 1
            self.position = self._record = self.position + begun
            self._done = self._record >= self._end
            return self.feed(memoryview(data)[begun:])
        begins = np.empty(len(newlines) + 1, np.int64)
        begins[0] = self._record
        begins[1:] = newlines + (self.position + 1)
        mine = min(int(np.searchsorted(begins, self._end)), len(newlines))
        if not mine:
            self._hold(data)
            return None
        held = self._held_bytes
        used = int(newlines[mine - 1]) + 1
        bounds = np.empty(mine + 1, np.int64)
        bounds[0] = 0
        # Each newline before it moves a row's end one byte ahead, once they are taken out.
        bounds[1:] = newlines[:mine] - np.arange(mine) + held
        self._check_lengths(begins, np.diff(bounds))
        rest = memoryview(data)[used:]
        body: bytes | None = None
        if self._with_data:
            whole = (
                data
                if not self._held and not len(rest)
                else b"".join((*self._held, memoryview(data)[:used]))
            )
            body = bytes(whole).replace(b"\n", b"")
        self._held.clear()
        self.position += used
        self._record = self.position
        self._done = self._record >= self._end
        if not self._done:
            self._hold(rest)
        return self._selected(begins[:mine], bounds, body)

    def finish(self, *, complete: bool) -> Rows | None:
        if self._done or self._skipping or not complete or not self._held_bytes:
            return None
        bounds = np.array((0, self._held_bytes), np.int64)
        self._done = True
        return self._selected(np.array((self._record,), np.int64), bounds, self._take_held())

    def jump(self, offset: int) -> None:
        super().jump(offset)
        self._skipping = False

    def _check_lengths(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Whatever pieces the bytes came in: a row that is too long is refused also where one piece
        holds it.
        """
        if int(lengths.max()) > self._record_bytes_max:
            raise self._too_long(int(begins[np.argmax(lengths > self._record_bytes_max)]))


class EventFramer(Framer):
    """Rows are events (segmentstore/contracts/events.py); the row's offset is its length prefix's.

    `start` is a border. `exact_end`: `end` is said to be one too, and an event that reaches over it
    is a FramingError. Costs about 0.2 us per event and 1 ms per MiB.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        rows_from: int = 0,
        record_bytes_max: int,
        with_data: bool = True,
        exact_end: bool = False,
    ) -> None:
        super().__init__(
            start, end, rows_from=rows_from, record_bytes_max=record_bytes_max, with_data=with_data
        )
        self._exact_end = exact_end
        self._needed = EVENT_HEADER_BYTES
        """Bytes the held event must have before it is worth another check."""

    def feed(self, data: Buffer) -> Rows | None:
        if self._done:
            return None
        if self._held_bytes + len(data) < self._needed:
            self._hold(data)
            return None
        if self._held:
            first = self._record
            whole: Buffer = b"".join((*self._held, data))
            self._held.clear()
        else:
            first, whole = self.position, data
        self.position += len(data)
        begins = self._walk(first, whole)
        used, rest = begins[-1], memoryview(whole)[begins[-1] :]
        self._record = first + used
        self.position = self._record
        if not self._done:
            self._hold(rest)
        if len(begins) == 1:
            return None
        starts = np.array(begins[:-1], np.int64)
        ends = np.array(begins[1:], np.int64)
        lengths = ends - starts - EVENT_HEADER_BYTES
        bounds = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        body = _without_prefixes(whole, starts, lengths, used) if self._with_data else None
        return self._selected(starts + first, bounds, body)

    def finish(self, *, complete: bool) -> Rows | None:
        if not self._done and complete and self._held_bytes:
            raise FramingError(
                self._record, f"the segment ends {self._held_bytes} bytes into an event"
            )
        return None

    def jump(self, offset: int) -> None:
        super().jump(offset)
        self._needed = EVENT_HEADER_BYTES

    def _walk(self, first: int, whole: Buffer) -> list[int]:
        """Where each whole event that is ours begins in `whole`, and last where the first other one
        does.
        """
        position, total = 0, len(whole)
        begins = [0]
        last = self._end - first
        self._needed = EVENT_HEADER_BYTES
        # What no event of ours may reach over; checked more closely only when one does.
        allowed = min(last, total) if self._exact_end else total
        unpack, most = EVENT_LENGTH.unpack_from, self._record_bytes_max
        while position < last and position + EVENT_HEADER_BYTES <= total:
            (length,) = unpack(whole, position)
            after = position + EVENT_HEADER_BYTES + length
            if length > most or after > allowed:
                self._check_event(first + position, length)
                self._needed = after - position
                break
            position = after
            begins.append(position)
        self._done = position >= last
        return begins

    def _check_event(self, offset: int, length: int) -> None:
        """Raise FramingError if there can be no event of this length at this place."""
        if length > self._record_bytes_max:
            detail = (
                f"an event of {length} bytes, more than {self._record_bytes_max} (recordBytesMax)"
            )
            raise FramingError(offset, f"{detail}: is this the border of an event?")
        if self._exact_end and offset + EVENT_HEADER_BYTES + length > self._end:
            raise FramingError(
                offset, f"an event of {length} bytes reaches over the border at {self._end}"
            )

    def _hold(self, data: Buffer) -> None:
        # The event's own length was checked already, and it has its prefix besides.
        if len(data):
            self._held.append(data)
            self.position += len(data)


class RawFramer(Framer):
    """Rows are the bytes between multiples of `row_bytes`, the first and the last as short as the
    range makes them.
    """

    def __init__(
        self, start: int, end: int, *, row_bytes: int, rows_from: int = 0, with_data: bool = True
    ) -> None:
        super().__init__(
            start, end, rows_from=rows_from, record_bytes_max=row_bytes, with_data=with_data
        )
        self._row_bytes = row_bytes

    def feed(self, data: Buffer) -> Rows | None:
        if self._done:
            return None
        data = memoryview(data)[: self._end - self.position]
        over = self.position + len(data)
        end = over if over >= self._end else over - over % self._row_bytes
        if end <= self._record:
            self._hold(data)
            return None
        used = end - self.position
        first = self._record
        body: Buffer = b"".join((*self._held, data[:used])) if self._held else data[:used]
        self._held.clear()
        self.position = self._record = end
        self._done = end >= self._end
        self._hold(data[used:])
        offsets = raw_offsets(first, end, self._row_bytes)
        return self._selected(offsets, np.append(offsets - first, end - first), body)

    def finish(self, *, complete: bool) -> Rows | None:
        del complete
        if self._done or not self._held_bytes:
            return None
        self._done = True
        bounds = np.array((0, self._held_bytes), np.int64)
        return self._selected(np.array((self._record,), np.int64), bounds, self._take_held())


def raw_offsets(start: int, end: int, row_bytes: int) -> NDArray[np.int64]:
    """Where the rows of [start, end) begin that RawFramer cuts; `start` < `end`."""
    inner = np.arange(start // row_bytes * row_bytes + row_bytes, end, row_bytes, dtype=np.int64)
    return np.concatenate((np.array((start,), np.int64), inner))


def _without_prefixes(
    whole: Buffer, starts: NDArray[np.int64], lengths: NDArray[np.int64], used: int
) -> Buffer:
    """The events' bytes without their length prefixes, one behind the other."""
    view = memoryview(whole)[:used]
    if used > _SMALL_EVENT_BYTES * len(starts):
        begins = (starts + EVENT_HEADER_BYTES).tolist()
        return b"".join(
            [
                view[begin : begin + length]
                for begin, length in zip(begins, lengths.tolist(), strict=True)
            ]
        )
    kept = np.ones(used, np.bool_)
    for place in range(EVENT_HEADER_BYTES):
        kept[starts + place] = False
    return np.frombuffer(view, np.uint8)[kept].data
