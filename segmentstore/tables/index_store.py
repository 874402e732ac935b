"""IndexStore: the sorted store on disk in which large tables of a store have their indexes.

One for all of them. What is in it can be built again from the segments, so one that fails is
destroyed, and a new one takes its place. Keys and values: docs/formats/table-records.md.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from durablelog.catalog.key_store import (
    ForeignKeyStoreError,
    KeyBatch,
    KeyStore,
    KeyStoreCorruptError,
    KeyStoreError,
)
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.tables.table_records import KeyLocation

FORMAT_VERSION: Final = 1

_TABLE = struct.Struct(">BIQ")
_STATE_TAG: Final = 1
_ENTRY_TAG: Final = 2
_STATE = struct.Struct(">BQQQBI")
_PLACE = struct.Struct(">QI")
_COPIED_PLACE = struct.Struct(">QIq")


class TableId(NamedTuple):
    """Which segment: ids are never used again in a container."""

    container_id: int
    segment_id: int


class IndexState(NamedTuple):
    """How far an index in the store is."""

    end: int
    """The offset up to which it has the segment."""
    entry_count: int
    live_bytes: int
    tail_length: int
    """Of the bytes before `end` that have the checksum."""
    tail_crc32c: int


def state_key(table: TableId) -> bytes:
    """Where the state of a table's index is."""
    return _TABLE.pack(_STATE_TAG, *table)


def entries_prefix(table: TableId) -> bytes:
    """What the keys of a table's entries begin with."""
    return _TABLE.pack(_ENTRY_TAG, *table)


def entries_range(table: TableId) -> StoreKeyRange:
    """All entries of a table."""
    return prefix_range(entries_prefix(table))


def encode_state(state: IndexState) -> bytes:
    """The value of `state_key`."""
    return _STATE.pack(FORMAT_VERSION, *state)


def decode_state(value: bytes) -> IndexState | None:
    """None if it is of another version."""
    if len(value) != _STATE.size or value[0] != FORMAT_VERSION:
        return None
    return IndexState(*_STATE.unpack(value)[1:])


def encode_place(location: KeyLocation, whole_key: bytes = b"") -> bytes:
    """The value of a key: where its record is, and the whole key if the store has a part of it."""
    offset, length, version = location
    if whole_key or version != offset:
        return _COPIED_PLACE.pack(offset, length, version) + whole_key
    return _PLACE.pack(offset, length)


def decode_place(stored_key: bytes, value: bytes) -> tuple[bytes, KeyLocation]:
    """The key and where its record is. `stored_key` is without the table's prefix."""
    if len(value) == _PLACE.size:
        offset, length = _PLACE.unpack(value)
        return stored_key, KeyLocation(offset, length, offset)
    location = KeyLocation(*_COPIED_PLACE.unpack_from(value))
    return value[_COPIED_PLACE.size :] or stored_key, location


class IndexStore:
    """Opens the store of keys when it is needed first, and anew when it has failed."""

    def __init__(self, make: Callable[[], KeyStore], on_failure: Callable[[], None]) -> None:
        """`make` gives an object for the same directory each time. `on_failure` is called when what
        was in it is lost: no index of before may be used.
        """
        self._make = make
        self._on_failure = on_failure
        self._store: KeyStore | None = None
        self._failed = False
        self._door = asyncio.Lock()
        self._sequence_number = 0
        self._writes: dict[TableId, asyncio.Task[None]] = {}

    async def open(self) -> KeyStore:
        """The store of keys. Raises TierUnavailableError: there is no room for it, or it is in use
        elsewhere.
        """
        if self._store is not None and not self._failed:
            return self._store
        async with self._door:
            if self._store is not None and self._failed:
                store, self._store = self._store, None
                await _quietly(store.destroy)
                self._failed = False
            if self._store is None:
                self._store = await self._open()
                self._sequence_number = self._store.sequence_number
            return self._store

    async def _open(self) -> KeyStore:
        store = self._make()
        try:
            try:
                await store.open()
            except (KeyStoreCorruptError, ForeignKeyStoreError):
                await self._make().destroy()
                store = self._make()
                await store.open()
        except KeyStoreError as error:
            raise TierUnavailableError("cache", str(error)) from error
        return store

    async def apply(self, store: KeyStore, batch: KeyBatch) -> None:
        """Make changes. Raises KeyStoreError."""
        self._sequence_number += 1
        await store.apply(batch, self._sequence_number)

    async def remove(self, table: TableId) -> None:
        """Remove the index of a table. Its id is not used again, so what is left is only waste."""
        store = await self.open()
        batch = KeyBatch()
        batch.delete(state_key(table))
        batch.delete_range(entries_range(table))
        try:
            await self.apply(store, batch)
        except KeyStoreError:
            self.fail(store)

    def fail(self, store: KeyStore) -> None:
        """It raised an error: what is in it is not to be used any more."""
        if store is self._store and not self._failed:
            self._failed = True
            self._on_failure()

    # --- writers ----------------------------------------------------------------------------------

    def writing(self, table: TableId, task: asyncio.Task[None]) -> None:
        """A task writes to an index; one at a time."""
        self._writes[table] = task
        task.add_done_callback(lambda _: self._writes.pop(table, None))

    async def written(self, table: TableId) -> None:
        """Wait until no index of the table, which may be dropped, writes any more."""
        while (task := self._writes.get(table)) is not None:
            await asyncio.wait((task,))

    async def close(self) -> None:
        """Make durable what is written, and close the store. Raises no error of the disk's."""
        while self._writes:
            await asyncio.wait(tuple(self._writes.values()))
        async with self._door:
            store, self._store = self._store, None
            if store is None:
                return
            if self._failed:
                await _quietly(store.destroy)
                return
            await _quietly(store.flush)
            await store.close()


async def _quietly(work: Callable[[], object]) -> None:
    try:
        await work()  # type: ignore[misc]
    except KeyStoreError:
        pass  # the index is built again
