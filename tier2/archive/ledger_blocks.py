"""LedgerBlocks: a closed ledger as the blocks of a data object, one after another.

The ledger is read once, from its first entry to its last; one block is held at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from segmentstore.contracts.ledgers import LedgerEntry, ReadHandle
from tier2.archive.data_block import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    DataBlock,
    block_length,
)
from tier2.archive.index_block import EntryMapping, IndexBlock
from tier2.archive.ledger_offloader import OffloadRefusedError


class LedgerBlocks:
    """The blocks of one ledger, and its index once they have all been given."""

    def __init__(self, handle: ReadHandle, block_bytes: int, mapping_bytes: int | None) -> None:
        """Blocks of `block_bytes`; a mapping for each block, and inside a block for an entry
        `mapping_bytes` behind the last one (None: none). Raises OffloadRefusedError.
        """
        metadata = handle.metadata
        if not metadata.closed:
            raise OffloadRefusedError(handle.ledger_id, "it is open")
        if metadata.last_entry < 0:
            raise OffloadRefusedError(handle.ledger_id, "it is empty")
        self._handle = handle
        self._block_bytes = block_bytes
        self._mapping_bytes = mapping_bytes
        self._mappings: list[EntryMapping] = []
        self._next_entry = 0
        self._bytes_left = metadata.length
        self._offset = 0
        self._part = 0

    @property
    def is_one_block(self) -> bool:
        """Whether there will be one block."""
        metadata = self._handle.metadata
        headers = BLOCK_HEADER_BYTES + (metadata.last_entry + 1) * ENTRY_HEADER_BYTES
        return headers + metadata.length <= self._block_bytes

    def index(self) -> IndexBlock:
        """Behind the last block."""
        return IndexBlock(self._handle.metadata, self._offset, self._mappings)

    async def blocks(self) -> AsyncGenerator[bytearray, None]:
        """Each block whole. Raises OffloadRefusedError, and what reading the ledger raises."""
        last = self._handle.metadata.last_entry
        block: DataBlock | None = None
        async with aclosing(self._handle.read(0, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    self._check(entry)
                    if block is None or not block.add(entry.entry_id, entry.data):
                        if block is not None:
                            yield self._ended(block)
                        block = None  # Not held beside the next one.
                        block = self._begin(entry)
                    self._map(block, entry)
                    self._next_entry += 1
                    self._bytes_left -= len(entry.data)
                # A ledger in memory has batches at once: the loop belongs to others, too.
                await asyncio.sleep(0)
        if self._next_entry <= last or self._bytes_left or block is None:
            # Before the last block is given: nothing becomes an object of what was cut.
            raise self._refused(
                f"it ended at entry {self._next_entry} of {last + 1}, {self._bytes_left} bytes "
                "before the length in its metadata"
            )
        yield self._ended(block)

    def _begin(self, entry: LedgerEntry) -> DataBlock:
        left = self._handle.metadata.last_entry + 1 - entry.entry_id
        length = block_length(self._block_bytes, left, self._bytes_left)
        block = DataBlock(length, entry.entry_id)
        self._part += 1
        if not block.add(entry.entry_id, entry.data):
            raise self._refused(
                f"entry {entry.entry_id} has {len(entry.data)} bytes, and a block of {length} "
                "does not hold it"
            )
        self._mappings.append(EntryMapping(entry.entry_id, self._part, self._offset))
        return block

    def _map(self, block: DataBlock, entry: LedgerEntry) -> None:
        """Remember where an entry that was added is, if it is far behind the last one mapped."""
        if self._mapping_bytes is not None:
            start = block.filled - len(entry.data) - ENTRY_HEADER_BYTES
            offset = self._offset + start - BLOCK_HEADER_BYTES
            if offset - self._mappings[-1].offset >= self._mapping_bytes:
                self._mappings.append(EntryMapping(entry.entry_id, self._part, offset))

    def _ended(self, block: DataBlock) -> bytearray:
        block.pad()
        self._offset += len(block.data)
        return block.data

    def _check(self, entry: LedgerEntry) -> None:
        if entry.entry_id != self._next_entry:
            raise self._refused(f"entry {entry.entry_id} came where {self._next_entry} was due")
        if len(entry.data) > self._bytes_left:
            raise self._refused("its entries are longer than the length in its metadata")

    def _refused(self, reason: str) -> OffloadRefusedError:
        return OffloadRefusedError(self._handle.ledger_id, reason)
