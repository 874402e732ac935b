"""Opening of a table: its index is brought up to its segment's end (adapter).

The index of a large table is in the IndexStore, and goes on where it ends. It is built again from
the segment's start if it is absent, of another version, or does not fit the segment. That is: it
ends before the start (compaction removed what it lacks), beyond the end, or has other bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from durablelog.catalog.key_store import KeyStore, KeyStoreError
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.service import SegmentStore
from segmentstore.tables.index_store import (
    IndexState,
    IndexStore,
    TableId,
    decode_state,
    state_key,
)
from segmentstore.tables.key_filter import KeyFilter
from segmentstore.tables.pending_table import replayed
from segmentstore.tables.segment_records import read_exactly, record_slices
from segmentstore.tables.stored_index import IndexFailedError, StoredIndex
from segmentstore.tables.table_index import MemoryIndex, TableIndex
from segmentstore.tables.table_records import MalformedRecordError

MEMORY_INDEX_BYTES_MAX: Final = 4 * 1024 * 1024
"""An index that would take more memory goes to disk."""


@dataclass(slots=True, kw_only=True)
class TableIndexes:
    """Where indexes are kept: in memory, and the large ones in a store on disk if there is one."""

    store: SegmentStore
    on_disk: IndexStore | None
    memory_bytes_max: int = MEMORY_INDEX_BYTES_MAX

    async def open(self, info: SegmentInfo) -> TableIndex:
        """The index of a table as acknowledged. O(live bytes), in slices; O(recent changes) if it
        is on disk.

        Raises DataCorruptionError, IndexFailedError, and as SegmentStore.read.
        """
        index = await self._begin(info)
        try:
            slices = record_slices(self.store, info.name, index.end, info.length)
            seen = KeyFilter() if isinstance(index, MemoryIndex) else None
            async for records, data in slices:
                keys = [record.key for record in records]
                committed = await index.locate(keys if seen is None else seen.add(keys))
                index.apply(replayed(records, data, committed))
                index = await self.moved(info, index)
        except MalformedRecordError as error:
            where = f"table {info.name!r}, offset {error.offset}"
            raise DataCorruptionError(where, error.detail) from error
        return index

    async def moved(self, info: SegmentInfo, index: TableIndex) -> TableIndex:
        """The index, or one on disk that goes on with what it has now, if it is too large for
        memory. Raises TierUnavailableError.
        """
        if self.on_disk is None or not self.is_too_large(index):
            return index
        assert isinstance(index, MemoryIndex)
        store = await self.on_disk.open()
        # From here on nothing is awaited until the caller has it.
        return StoredIndex(self.on_disk, store, TableId(info.container_id, info.segment_id), index)

    def is_too_large(self, index: TableIndex) -> bool:
        """Whether it is in memory, and should be on disk."""
        return (
            self.on_disk is not None
            and isinstance(index, MemoryIndex)
            and index.memory_bytes > self.memory_bytes_max
        )

    def is_on_disk(self, index: TableIndex) -> bool:
        """Whether it is lost with the store on disk."""
        return isinstance(index, StoredIndex)

    async def forget(self, table: TableId) -> None:
        """Remove the index of a table that is deleted."""
        if self.on_disk is not None:
            await self.on_disk.written(table)
            await self.on_disk.remove(table)

    async def _begin(self, info: SegmentInfo) -> TableIndex:
        table = TableId(info.container_id, info.segment_id)
        if self.on_disk is not None:
            await self.on_disk.written(table)
            store = await self.on_disk.open()
            state = await self._state(store, table)
            tail = None if state is None else await self._tail(state, info)
            if state is not None and tail is not None:
                index = StoredIndex(self.on_disk, store, table, state)
                index.tail = tail
                return index
        empty = MemoryIndex()
        empty.end = info.start_offset
        return empty

    async def _state(self, store: KeyStore, table: TableId) -> IndexState | None:
        assert self.on_disk is not None
        try:
            (value,) = await store.get([state_key(table)])
        except KeyStoreError as error:
            self.on_disk.fail(store)
            raise IndexFailedError from error
        return None if value is None else decode_state(value)

    async def _tail(self, state: IndexState, info: SegmentInfo) -> bytes | None:
        """The bytes of the segment that the state has a checksum of; None if they are others."""
        first = state.end - state.tail_length
        if not info.start_offset <= first <= state.end <= info.length:
            return None
        tail = await read_exactly(self.store, info.name, first, state.tail_length)
        return tail if crc32c(tail) == state.tail_crc32c else None
