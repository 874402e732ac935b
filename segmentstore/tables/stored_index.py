"""StoredIndex: the index of a large table, in the sorted store on disk, written behind.

What was committed since the last write is in memory, over what the store has. A write has the
changes, the offset up to which the index then has the segment, and its totals in one batch. Rules
of this file:

- while a batch is being written, its changes stay visible in memory;
- a read of the store is repeated if a write ended meanwhile: what memory then forgot may be newer
  than what was read.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyStore, KeyStoreError
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.tables.index_store import (
    IndexState,
    IndexStore,
    TableId,
    decode_place,
    encode_place,
    encode_state,
    entries_prefix,
    entries_range,
    state_key,
)
from segmentstore.tables.table_index import (
    ENTRY_MEMORY_BYTES,
    Changes,
    Located,
    MemoryIndex,
    TableIndex,
    order_key,
)
from segmentstore.tables.table_records import KeyLocation

T = TypeVar("T")

WRITE_KEYS: Final = 2000
"""From so many changes on they are written."""
_UNWRITTEN_MAX: Final = 8
"""So many times that, and callers wait."""
_TURN_KEYS: Final = 1000


class IndexFailedError(Exception):
    """The store on disk failed: all indexes in it are dropped."""


class StoredIndex(TableIndex):
    """An index in an IndexStore."""

    def __init__(
        self,
        indexes: IndexStore,
        store: KeyStore,
        table: TableId,
        source: IndexState | MemoryIndex,
    ) -> None:
        """With a state, the one that the store has. With a MemoryIndex, a new one in its place:
        whatever the store has of the table is removed with the first write.
        """
        self._indexes = indexes
        self._store = store
        self._table = table
        self._prefix = entries_prefix(table)
        self._new = isinstance(source, MemoryIndex)
        self._unwritten: dict[bytes, KeyLocation | None] = {}
        self._being_written: dict[bytes, KeyLocation | None] = {}
        self._writes = 0
        """That have ended."""
        self._task: asyncio.Task[None] | None = None
        self._dropped = False
        self._failed = False
        if isinstance(source, MemoryIndex):
            self._unwritten.update(source.entries)
            self.tail = source.tail
        self.end, self.entry_count = source.end, source.entry_count
        self.live_bytes = source.live_bytes
        if self._new:
            # So that it need not be built again when it leaves memory.
            self._begin_write()

    @property
    def memory_bytes(self) -> int:
        return ENTRY_MEMORY_BYTES * (len(self._unwritten) + len(self._being_written))

    @property
    def busy(self) -> bool:
        return self._task is not None

    # --- reads ------------------------------------------------------------------------------------

    async def locate(self, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
        self._check()
        if len(self._unwritten) > WRITE_KEYS * _UNWRITTEN_MAX:
            await self.settle()
        while True:
            missing = [key for key in dict.fromkeys(keys) if not self._in_memory(key)]
            stored: dict[bytes, KeyLocation] = {}
            if missing and not self._new:
                writes = self._writes
                stored = await self._guarded(self._stored(missing))
                if writes != self._writes:
                    continue
            newest = ((key, self._newest(key, stored)) for key in keys)
            return {key: location for key, location in newest if location is not None}

    async def scan(self, start: bytes, end: bytes | None, limit: int) -> list[Located]:
        self._check()
        while True:
            writes = self._writes
            stored: dict[bytes, Located] = {}
            place: bytes | None = start
            while place is not None:
                place = await self._guarded(self._scan(place, end, limit, stored))
                if writes != self._writes:
                    break
                found = self._merged(stored, start, end if place is None else place)
                if len(found) >= limit or place is None:
                    return found[:limit]

    async def _stored(self, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
        prefix = self._prefix
        values = await self._store.get([prefix + order_key(key) for key in keys])
        located = (
            decode_place(key, value)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        )
        return dict(located)

    async def _scan(
        self, start: bytes, end: bytes | None, limit: int, stored: dict[bytes, Located]
    ) -> bytes | None:
        """Add what the store has, by `order_key`; where to go on, None: that was all."""
        if self._new:
            return None
        prefix = self._prefix
        stop = entries_range(self._table).end if end is None else prefix + end
        pairs, rest = await self._store.scan(StoreKeyRange(prefix + start, stop), limit)
        for key, value in pairs:
            place = key[len(prefix) :]
            stored[place] = decode_place(place, value)
        return None if rest is None else rest.start[len(prefix) :]

    def _merged(
        self, stored: dict[bytes, Located], start: bytes, end: bytes | None
    ) -> list[Located]:
        """What the store has from `start` to `end`, and memory over it."""
        if not (self._being_written or self._unwritten):
            return list(stored.values())
        merged: dict[bytes, Located] = dict(stored)
        for changes in (self._being_written, self._unwritten):
            for key, location in changes.items():
                place = order_key(key)
                if place < start or (end is not None and place >= end):
                    continue
                if location is None:
                    merged.pop(place, None)
                else:
                    merged[place] = (key, location)
        return [merged[place] for place in sorted(merged)]

    def _in_memory(self, key: bytes) -> bool:
        return key in self._unwritten or key in self._being_written

    def _newest(self, key: bytes, stored: dict[bytes, KeyLocation]) -> KeyLocation | None:
        for changes in (self._unwritten, self._being_written):
            if key in changes:
                return changes[key]
        return stored.get(key)

    # --- writes -----------------------------------------------------------------------------------

    def _apply(self, changes: Changes) -> None:
        self._unwritten.update(changes)
        if len(self._unwritten) >= WRITE_KEYS:
            self._begin_write()

    async def settle(self) -> None:
        while (self._new or self._unwritten or self._task) and not self._dropped:
            self._begin_write()
            if self._task is not None:
                await asyncio.wait((self._task,))
            self._check()
        if self._dropped:
            raise IndexFailedError

    def drop(self) -> None:
        self._dropped = True

    def _begin_write(self) -> None:
        if self._task is None and not (self._dropped or self._failed):
            self._task = own_task(self._write(), name="write table index")
            self._indexes.writing(self._table, self._task)

    async def _write(self) -> None:
        try:
            changes, self._unwritten = self._unwritten, {}
            self._being_written = changes
            state = IndexState(
                self.end, self.entry_count, self.live_bytes, len(self.tail), crc32c(self.tail)
            )
            batch, prefix = KeyBatch(), self._prefix
            if self._new:
                batch.delete(state_key(self._table))
                batch.delete_range(entries_range(self._table))
            for number, (key, location) in enumerate(changes.items(), 1):
                place = order_key(key)
                if location is None:
                    batch.delete(prefix + place)
                elif place is key:
                    batch.put(prefix + place, encode_place(location))
                else:
                    batch.put(prefix + place, encode_place(location, key))
                if number % _TURN_KEYS:
                    continue
                if self._new:
                    # RocksDB holds the interpreter's lock. Without a state no part of it counts.
                    await self._indexes.apply(self._store, batch)
                    batch = KeyBatch()
                else:
                    await asyncio.sleep(0)
            batch.put(state_key(self._table), encode_state(state))
            await self._indexes.apply(self._store, batch)
            self._being_written = {}
            self._new = False
            self._writes += 1
        except KeyStoreError:
            self._failed = True
            self._indexes.fail(self._store)
        finally:
            self._task = None
        if len(self._unwritten) >= WRITE_KEYS:
            self._begin_write()

    def _check(self) -> None:
        if self._failed:
            raise IndexFailedError

    async def _guarded(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (KeyStoreError, struct.error) as error:
            self._indexes.fail(self._store)
            raise IndexFailedError from error
