"""EntryReading: the entries of an archived ledger, from one to another, parsed and checked.

Rules of this file:

- each reading has a position, bytes and requests of its own;
- the header of each block that is passed, the id and the length of each entry, and the padding are
  checked against the index. What does not fit is fetched again from the entry it begins at, twice,
  and is corrupt then. There is no other way back, so no reading goes round for ever;
- what an entry contains is not checked: PIP-17 has no checksum. Frames of a log have one, and what
  parses them checks it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerEntry
from tier2.archive.archive_format_error import ArchiveFormatError
from tier2.archive.data_block import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER,
    ENTRY_HEADER_BYTES,
    check_block_header,
    padding,
)
from tier2.archive.entry_offsets import EntryOffsets
from tier2.archive.index_block import IndexBlock
from tier2.archive.range_reads import RangeReads

FETCHES_MAX = 3
"""Of the bytes from one entry on, before they are called corrupt."""
KNOWN_BYTES = 256 * 1024
"""An entry so far behind the last known one is remembered."""


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """One archived ledger, and what its readings share."""

    data_name: str
    index: IndexBlock
    open_ranges: Callable[[int, int], RangeReads]
    """From an offset of the data object to another."""
    offsets: EntryOffsets
    batch_bytes: int
    """Of entries given together, but for a single larger one."""


class EntryReading:
    """One reading of entries `first` to `last`, which the ledger has."""

    def __init__(self, place: LedgerPlace, first: int, last: int) -> None:
        self._place = place
        self._index = place.index
        self._first = first
        self._last = last
        self._entry = 0
        """The next one's id."""
        self._at = 0
        """Offset of what is parsed next: an entry, or the header of a block."""
        self._part = 0
        self._block_end = 0
        self._known = 0
        self._begin()
        self._ranges: RangeReads | None = None
        self._buffer = memoryview(b"")

    async def batches(self) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """The entries, a batch for what a range or two give.

        Raises DataCorruptionError, and as ObjectStorage.get_range.
        """
        failures = 0
        try:
            while self._entry <= self._last:
                before = self._entry
                try:
                    batch = await self._batch()
                except ArchiveFormatError as error:
                    failures = failures + 1 if self._entry == before else 1
                    if failures == FETCHES_MAX:
                        raise DataCorruptionError(self._where(), error.reason) from error
                    await self._drop()
                    continue
                if self._entry > before:
                    failures = 0
                if batch:
                    yield batch
        finally:
            await self._drop()

    def _begin(self) -> None:
        """At the last known entry that is not behind the first one wanted."""
        number = self._index.floor(self._first)
        mapping = self._index.mapping(number)
        self._part = mapping.part
        block, self._block_end = self._index.block(self._part)
        self._entry, self._at = mapping.entry, mapping.offset
        if mapping.offset != block.offset:
            self._at += BLOCK_HEADER_BYTES  # Inside a block: what is before it is not fetched.
        known = self._place.offsets.floor(self._place.data_name, self._first)
        if known is not None and known[0] > self._entry:
            self._entry, self._at = known
        self._known = self._at

    def _end(self) -> int:
        """Behind all that can be needed."""
        number = self._index.floor(self._last) + 1
        if number == len(self._index):
            return self._index.data_length
        mapping = self._index.mapping(number)
        block, _ = self._index.block(mapping.part)
        # The first entry of the next block is not wanted, nor is that block's header.
        return mapping.offset + (BLOCK_HEADER_BYTES if mapping.offset != block.offset else 0)

    async def _batch(self) -> Sequence[LedgerEntry]:
        """What the buffer has; one entry at least, or none if what was passed was something else.

        Raises ArchiveFormatError; entries of before are parsed again then.
        """
        batch: list[LedgerEntry] = []
        room = self._place.batch_bytes
        block, _ = self._index.block(self._part)
        if self._at == block.offset:
            header = await self._take(BLOCK_HEADER_BYTES)
            check_block_header(header, self._block_end - block.offset, block.entry)
            self._advance(BLOCK_HEADER_BYTES)
        while self._entry <= self._last:
            if self._at + ENTRY_HEADER_BYTES > self._block_end:
                await self._next_block(batch)
                break
            if batch and len(self._buffer) < ENTRY_HEADER_BYTES:
                break
            length, entry_id = ENTRY_HEADER.unpack(await self._take(ENTRY_HEADER_BYTES))
            if length < 0:
                await self._next_block(batch)
                break
            whole = ENTRY_HEADER_BYTES + length
            if entry_id != self._entry or self._at + whole > self._block_end:
                if batch:
                    break  # Given first; it is met again, alone.
                raise ArchiveFormatError(
                    f"{length} bytes of entry {entry_id} where entry {self._entry} is due, "
                    f"{self._block_end - self._at} bytes before the block's end"
                )
            if batch and (len(self._buffer) < whole or length > room):
                break
            data = (await self._take(whole))[ENTRY_HEADER_BYTES:]
            self._remember()
            if self._entry >= self._first:
                batch.append(LedgerEntry(entry_id, data))
                room -= length
            self._entry += 1
            self._advance(whole)
        return batch

    async def _next_block(self, batch: Sequence[LedgerEntry]) -> None:
        """Pass the padding, if no entry waits to be given: a fetch may fail."""
        if batch:
            return
        left = self._block_end - self._at
        wanted = memoryview(padding(left))
        while left:
            got = await self._take_some(left)
            if got != wanted[: len(got)]:
                raise ArchiveFormatError(f"neither an entry nor padding at {self._at}")
            wanted = wanted[len(got) :]
            left -= len(got)
            self._buffer = self._buffer[len(got) :]
        self._at = self._block_end
        if self._part == self._index.blocks:
            raise ArchiveFormatError(f"entry {self._entry} is behind the last block")
        self._part += 1
        block, self._block_end = self._index.block(self._part)
        if block.entry != self._entry:
            raise ArchiveFormatError(
                f"entry {self._entry} is due, and the next block begins with {block.entry}"
            )
        self._known = self._at

    def _remember(self) -> None:
        if self._at - self._known >= KNOWN_BYTES:
            self._known = self._at
            mapping = self._index.mapping(self._index.floor(self._entry))
            if self._at - mapping.offset >= KNOWN_BYTES + BLOCK_HEADER_BYTES:
                self._place.offsets.add(self._place.data_name, self._entry, self._at)

    async def _take(self, length: int) -> memoryview:
        """The next `length` bytes, which stay the next ones."""
        if len(self._buffer) < length:
            pieces: list[bytes | memoryview] = [self._buffer]
            have = len(self._buffer)
            while have < length:
                pieces.append(await self._fetch())
                have += len(pieces[-1])
            self._buffer = memoryview(b"".join(pieces)) if len(pieces[0]) else _joined(pieces[1:])
        return self._buffer[:length]

    async def _take_some(self, length_max: int) -> memoryview:
        """The next bytes, as many as there are without a further request."""
        if not self._buffer:
            self._buffer = memoryview(await self._fetch())
        return self._buffer[:length_max]

    async def _fetch(self) -> bytes:
        if self._ranges is None:
            self._ranges = self._place.open_ranges(self._at, max(self._end(), self._at))
        data = await self._ranges.next()
        if not data:
            raise ArchiveFormatError(f"entry {self._entry} reaches beyond its end in the index")
        return data

    def _advance(self, length: int) -> None:
        self._at += length
        self._buffer = self._buffer[length:]

    async def _drop(self) -> None:
        ranges, self._ranges = self._ranges, None
        self._buffer = memoryview(b"")
        if ranges is not None:
            await ranges.close()

    def _where(self) -> str:
        return f"{self._place.data_name}, entry {self._entry} at {self._at}"


def _joined(pieces: list[bytes | memoryview]) -> memoryview:
    return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
