"""Parts of a log whose frames are kept as objects: in memory, or in the harness's service.

A part takes frames up to a size; the next opening begins another one. Rules of this file:

- a part stays whole until all of it lies before the truncation point, and longer if retained;
- a reader of a part holds its frames, so truncation waits for no reader;
- an entry's header is made when it is read: it says the same each time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH, seal_header
from durablelog.durable_data_log import LogAddress, LogFrame, SealedPart
from durablelog.generated_ledgers import generated_metadata
from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.ledgers import (
    LedgerEntry,
    LedgerMetadata,
    LedgerNotFoundError,
    ReadHandle,
)

PART_BYTES: Final = 1024 * 1024
"""Small: what is truncated in a part that is not full takes memory."""
BATCH_BYTES: Final = 256 * 1024
"""Of entries that are handed out at once, unless one is larger."""


@dataclass(slots=True)
class MemoryPart:
    """Frames one after another, whose addresses count their bytes."""

    number: int
    first: LogAddress
    end: LogAddress
    frames: list[LogFrame] = field(default_factory=list)
    taken_ms: int = 0
    """When it took its last frame."""


class MemoryParts:
    """The parts of one log; the last one takes frames."""

    def __init__(self, first: LogAddress, part_bytes: int = PART_BYTES) -> None:
        self._part_bytes = part_bytes
        self._parts = [MemoryPart(1, first, first)]
        self._retained: list[MemoryPart] = []

    def __len__(self) -> int:
        return len(self._retained) + len(self._parts)

    @property
    def retained_bytes(self) -> int:
        """Of retained parts. O(these)."""
        return sum(part.end - part.first for part in self._retained)

    @property
    def first_retained(self) -> int | None:
        """Number of the oldest retained part."""
        return self._retained[0].number if self._retained else None

    def add(self, frame: LogFrame, end: LogAddress, now_ms: int) -> None:
        """One more frame; the next one lies at `end`."""
        if end - self._parts[-1].first > self._part_bytes:
            self.seal()
        tail = self._parts[-1]
        tail.frames.append(frame)
        tail.end, tail.taken_ms = end, now_ms

    def seal(self) -> None:
        """What comes next is in another part."""
        tail = self._parts[-1]
        if tail.frames:
            self._parts.append(MemoryPart(tail.number + 1, tail.end, tail.end))

    def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        """Drop what lies before the frame at `address`, as far as it is whole parts; retain those
        from this number on.
        """
        before = [part for part in self._parts[:-1] if part.end <= address]
        self._parts = self._parts[len(before) :]
        if retain_from is not None:
            self._retained += [part for part in before if part.number >= retain_from]

    def delete_retained(self, below: int | None = None) -> None:
        """Drop retained parts of lower numbers, or all."""
        self._retained = [
            part for part in self._retained if below is not None and part.number >= below
        ]

    def part_of(self, address: LogAddress) -> int:
        """The number of the part that a frame lies in. O(log parts)."""
        index = bisect_right(self._parts, address, key=lambda part: part.first)
        return self._parts[max(index, 1) - 1].number

    def sealed(self, above: int = 0) -> list[SealedPart]:
        """All but the last, retained ones first; of numbers higher than `above`."""
        return [
            SealedPart(
                part.number, part.number, part.first, part.end, part.end - part.first, part.taken_ms
            )
            for part in (*self._retained, *self._parts[:-1])
            if part.number > above
        ]

    def open(self, number: int, container_id: int, check: Callable[[], None]) -> ReadHandle:
        """A sealed part; `check` raises once its log is closed. Raises LedgerNotFoundError."""
        for part in (*self._retained, *self._parts[:-1]):
            if part.number == number:
                return MemoryReadHandle(part, container_id, check)
        raise LedgerNotFoundError(number, f"the log of container {container_id}")

    def copy(self) -> MemoryParts:
        """Another one that goes its own way."""
        twin = MemoryParts(LogAddress(0), self._part_bytes)
        twin._parts = [replace(part, frames=list(part.frames)) for part in self._parts]
        twin._retained = list(self._retained)
        return twin


class MemoryReadHandle(ReadHandle):
    """A part that takes no more frames."""

    def __init__(self, part: MemoryPart, container_id: int, check: Callable[[], None]) -> None:
        self._number = part.number
        self._frames: Sequence[LogFrame] = part.frames
        self._container_id = container_id
        self._check = check
        self._closed = False
        self._metadata = generated_metadata(
            container_id=container_id,
            number=part.number,
            epoch=part.frames[0].epoch,
            first_frame=part.frames[0].sequence,
            entries=len(part.frames),
            length=part.end - part.first,
            address=part.first,
        )

    @property
    def ledger_id(self) -> int:
        return self._number

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        self._check_open()
        self.check_entries(first, last)
        batch: list[LedgerEntry] = []
        room = BATCH_BYTES
        for entry in range(first, last + 1):
            length = FRAME_HEADER_LENGTH + len(self._frames[entry].payload)
            if batch and length > room:
                yield batch
                await asyncio.sleep(0)
                self._check_open()
                batch, room = [], BATCH_BYTES
            batch.append(LedgerEntry(entry, self._entry(entry)))
            room -= length
        yield batch

    async def close(self) -> None:
        self._closed = True
        self._frames = ()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError("handle", self._number, "it is closed")
        self._check()

    def _entry(self, entry: int) -> memoryview:
        frame = self._frames[entry]
        payload = frame.payload
        header = seal_header(
            self._container_id, frame.epoch, frame.sequence, frame.sequence - 1, [payload]
        )
        assert len(header) == FRAME_HEADER_LENGTH
        return memoryview(b"".join((header, payload)))
