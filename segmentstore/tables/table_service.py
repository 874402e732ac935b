"""TableService: the API of tables on an open store.

Hash tables and fixed-key tables as Pravega has them. A table is a segment that is marked at its
creation; every change is one append of records. All calls are coroutines on the store's event loop.
Calls that change a table may be in flight together. Each is applied whole, in an order of its own:
a caller that needs one waits for the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from durablelog.catalog.key_store import KeyStore
from segmentstore.arguments import checked_offset
from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    BadOffsetError,
    DataCorruptionError,
    InvalidArgumentError,
)
from segmentstore.service import SegmentStore
from segmentstore.stats_types import TableStats
from segmentstore.tables.errors import UnsupportedTableOperationError
from segmentstore.tables.index_store import IndexStore, TableId
from segmentstore.tables.open_tables import OpenTables, TableLimits
from segmentstore.tables.page_tokens import decode_token, encode_token
from segmentstore.tables.table import Table
from segmentstore.tables.table_arguments import (
    check_key_length,
    check_key_lengths,
    check_limit,
    checked_entries,
    checked_keys,
    checked_plain_keys,
)
from segmentstore.tables.table_opening import TableIndexes
from segmentstore.tables.table_reads import behind
from segmentstore.tables.table_types import (
    KEY_LENGTH,
    SEGMENT_TYPE,
    TABLE_ATTRIBUTES,
    TABLE_SEGMENT,
    DeltaPage,
    EntryPage,
    KeyPage,
    TableEntry,
    TableInfo,
)

T = TypeVar("T")


class TableService:
    """Tables of one store. `close` it before the store.

    Every call may raise what the store's calls do: SegmentNotFoundError, ContainerStoppedError,
    AppendOutcomeUnknownError and others. On a segment that is no table it raises NotATableError.
    """

    def __init__(
        self,
        store: SegmentStore,
        make_key_store: Callable[[], KeyStore] | None = None,
        limits: TableLimits | None = None,
    ) -> None:
        """`make_key_store` gives the sorted store for the indexes of large tables, an object for
        the same directory each time, not opened yet. Without it all indexes are in memory.
        """
        self._store = store
        self._limits = TableLimits() if limits is None else limits
        self._on_disk = (
            None if make_key_store is None else IndexStore(make_key_store, self._drop_stored)
        )
        indexes = TableIndexes(
            store=store,
            on_disk=self._on_disk,
            memory_bytes_max=self._limits.memory_index_bytes_max,
        )
        self._indexes = indexes
        self._tables = OpenTables(store, indexes, self._limits)

    def _drop_stored(self) -> None:
        self._tables.drop_stored()

    async def close(self) -> None:
        """End what goes on by itself, and release the index store. Idempotent.

        Waits for appends on their way, 5 s at most: behind that they go on. Later calls raise
        StoreClosedError.
        """
        await self._tables.close()
        if self._on_disk is not None:
            await self._on_disk.close()

    def statistics(self) -> TableStats:
        """Numbers of now. O(open tables)."""
        return {"open": len(self._tables), "index_bytes": self._tables.memory_bytes}

    # --- tables -----------------------------------------------------------------------------------

    async def create(
        self, name: str, key_length: int = 0, attributes: Sequence[AttributeUpdate] = ()
    ) -> None:
        """Make an empty table; of keys of `key_length` bytes, or a hash table.

        Raises SegmentExistsError, InvalidNameError, InvalidArgumentError.
        """
        check_key_length(key_length)
        if any(getattr(each, "id", None) in TABLE_ATTRIBUTES for each in attributes):
            raise InvalidArgumentError("attributes", attributes, "they mark the table itself")
        marks = [AttributeUpdate(SEGMENT_TYPE, UpdateType.REPLACE, TABLE_SEGMENT)]
        if key_length:
            marks.append(AttributeUpdate(KEY_LENGTH, UpdateType.REPLACE, key_length))
        await self._store.create_segment(name, [*attributes, *marks])

    async def delete(self, name: str, *, must_be_empty: bool = False) -> None:
        """Delete a table; with `must_be_empty` only if it has no keys.

        Raises TableNotEmptyError, UnsupportedTableOperationError (`must_be_empty` of a fixed-key
        table).
        """

        async def work(table: Table) -> TableId:
            if must_be_empty and table.key_length:
                raise _unsupported(name, "deletion only if it is empty", table.key_length)
            info = await self._tables.current(table)
            await table.delete(must_be_empty=must_be_empty)
            return TableId(info.container_id, info.segment_id)

        await self._indexes.forget(await self._tables.run(name, work))

    async def info(self, name: str) -> TableInfo:
        """A table as acknowledged. O(1) if it is open."""

        async def work(table: Table) -> TableInfo:
            info = await self._tables.current(table)
            return TableInfo(
                name=name,
                start_offset=info.start_offset,
                length=info.length,
                entry_count=table.index.entry_count,
                key_length=table.key_length,
            )

        return await self._tables.run(name, work)

    # --- changes ----------------------------------------------------------------------------------

    async def update(
        self,
        name: str,
        entries: Sequence[tuple[bytes, int, bytes]],
        expected_length: int | None = None,
    ) -> list[int]:
        """Set entries (key, version, value), all or none; the new versions in their order.

        A key's version is NO_VERSION for no condition, NOT_EXISTS or the one it must have now. With
        `expected_length` only if the segment's length is that. All conditions are of the state
        before the call. Of a key that is there twice, the last entry remains.

        Raises BadKeyVersionError, KeyNotFoundError, WrongKeyLengthError, BadOffsetError,
        AppendTooLargeError, InvalidArgumentError, SegmentSealedError.
        """
        checked = checked_entries(entries, self._store.config.append_bytes_max)
        if expected_length is not None:
            checked_offset("expected_length", expected_length)
        lengths = [len(entry.key) for entry in checked]

        async def work(table: Table) -> list[int]:
            check_key_lengths(name, lengths, table.key_length)
            if not checked:
                await self._tables.current(table)
                return []
            return await table.pipeline.update(checked, expected_length)

        return await self._tables.run(name, work)

    async def remove(
        self,
        name: str,
        keys: Sequence[tuple[bytes, int]],
        expected_length: int | None = None,
    ) -> None:
        """Remove keys (key, version), all or none. The rules of `update` hold.

        A key that is absent already is removed, if that is no condition's contrary.
        """
        checked = checked_keys(keys)
        if expected_length is not None:
            checked_offset("expected_length", expected_length)
        lengths = [len(key) for key, _ in checked]

        async def work(table: Table) -> None:
            check_key_lengths(name, lengths, table.key_length)
            await self._tables.current(table)
            await table.pipeline.remove(checked, expected_length)

        await self._tables.run(name, work)

    # --- reads ------------------------------------------------------------------------------------

    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """The entry of each key in their order; None: it is absent.

        Raises WrongKeyLengthError, InvalidArgumentError (over READ_BYTES_MAX).
        """
        checked = checked_plain_keys(keys)
        lengths = [len(key) for key in checked]

        async def work(table: Table) -> list[TableEntry | None]:
            check_key_lengths(name, lengths, table.key_length)
            await self._tables.current(table)
            return await self._read(table, table.reads.get(checked))

        return await self._tables.run(name, work)

    async def keys(
        self,
        name: str,
        limit: int,
        *,
        token: bytes = b"",
        from_key: bytes = b"",
        to_key: bytes = b"",
    ) -> KeyPage:
        """A page of keys: at most `limit`, and PAGE_BYTES_MAX. An empty one ends the iteration.

        A hash table goes on by the `token` of the page before. A fixed-key table is in the order of
        its keys, from `from_key` to `to_key`, both included; empty: no bound. Its pages have no
        token: go on behind their last key. Raises InvalidArgumentError for what is the other
        kind's, and for a token of another table; WrongKeyLengthError.

        A key that is there all the time is given once, others once or not at all.
        """
        check_limit(limit)

        async def work(table: Table) -> KeyPage:
            page_range = await self._range(table, token, from_key, to_key)
            keys = await table.reads.keys(page_range.start, page_range.end, limit)
            last = keys[-1].key if keys else b""
            return KeyPage(keys, page_range.next_token(last))

        return await self._tables.run(name, work)

    async def entries(
        self,
        name: str,
        limit: int,
        *,
        token: bytes = b"",
        from_key: bytes = b"",
        to_key: bytes = b"",
    ) -> EntryPage:
        """A page of entries. The rules of `keys` hold."""
        check_limit(limit)

        async def work(table: Table) -> EntryPage:
            page_range = await self._range(table, token, from_key, to_key)
            reading = table.reads.entries(page_range.start, page_range.end, limit)
            entries = await self._read(table, reading)
            last = entries[-1].key if entries else b""
            return EntryPage(entries, page_range.next_token(last))

        return await self._tables.run(name, work)

    async def delta(self, name: str, position: int, limit: int) -> DeltaPage:
        """What was written to a hash table from `position` on, 0 or one that a page gave.

        In the order of the log; at most `limit` entries, and PAGE_BYTES_MAX. Raises
        InvalidArgumentError (a position beyond the end), UnsupportedTableOperationError.
        """
        checked_offset("position", position)
        check_limit(limit)

        async def work(table: Table) -> DeltaPage:
            if table.key_length:
                raise _unsupported(name, "delta", table.key_length)
            page = await self._read(table, table.reads.delta(position, limit))
            # A part of it may be another table's that has the name by now.
            await self._tables.current(table)
            return page

        return await self._tables.run(name, work)

    async def _read(self, table: Table, reading: Awaitable[T]) -> T:
        """What a read of the table's segment gives.

        Raises StaleTableError if it failed, and another segment has the name by now, or its
        container has been opened again meanwhile.
        """
        try:
            return await reading
        except (BadOffsetError, DataCorruptionError, InvalidArgumentError):
            await self._tables.current(table)
            raise

    async def _range(
        self, table: Table, token: bytes, from_key: bytes, to_key: bytes
    ) -> _PageRange:
        info = await self._tables.current(table)
        ids = TableId(info.container_id, info.segment_id)
        checked_plain_keys((from_key, to_key))
        if table.key_length:
            if token != b"":
                raise InvalidArgumentError("token", token, "a fixed-key table goes on by from_key")
            end = to_key + b"\0" if to_key else None
            return _PageRange(from_key, end, None, token)
        if from_key or to_key:
            words = "a hash table has no order to begin or end in"
            raise InvalidArgumentError("from_key, to_key", (from_key, to_key), words)
        start = b"" if token == b"" else behind(decode_token(token, *ids))
        return _PageRange(start, None, ids, token)


class _PageRange(NamedTuple):
    """What a page is of."""

    start: bytes
    """A place among `order_key`s; so is the end."""
    end: bytes | None
    table: TableId | None
    """None: it has no tokens."""
    token: bytes

    def next_token(self, last: bytes) -> bytes:
        """Behind a page that ends with the key `last`; empty: the page is."""
        if self.table is None or not last:
            return self.token
        return encode_token(*self.table, last)


def _unsupported(name: str, operation: str, key_length: int) -> UnsupportedTableOperationError:
    kind = f"table of keys of {key_length} bytes"
    return UnsupportedTableOperationError(name, operation, kind)
