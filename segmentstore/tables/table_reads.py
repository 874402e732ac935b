"""TableReads: what is asked of an open table, from its index and its segment (adapter).

All answers are of what was acknowledged. Compaction may truncate what an answer is being read from:
then it is found again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    SegmentTruncatedError,
)
from segmentstore.service import SegmentStore
from segmentstore.tables.segment_records import read_places, record_slices
from segmentstore.tables.table_index import Located, TableIndex, order_key
from segmentstore.tables.table_records import REMOVAL, MalformedRecordError, value_of
from segmentstore.tables.table_types import (
    PAGE_BYTES_MAX,
    READ_BYTES_MAX,
    DeltaPage,
    TableEntry,
    VersionedKey,
)

_SCAN_KEYS: Final = 1000
"""Of one turn of the event loop."""
_KEY_OVERHEAD_BYTES: Final = 16
"""What a key of a page costs beside its bytes, on the wire."""
_ENTRY_OVERHEAD_BYTES: Final = 24
"""What an entry costs there, with the lengths of its value; an absent key has an empty one."""


class TableReads:
    """Reads of one table. `index` may be replaced."""

    def __init__(
        self, store: SegmentStore, name: str, index: TableIndex, check_held: Callable[[], None]
    ) -> None:
        """`check_held` raises if the table was dropped, so that another index holds."""
        self.index = index
        self._check_held = check_held
        self._store = store
        self._name = name

    async def get(self, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """The entry of each key; None where there is none. Raises InvalidArgumentError."""
        before: list[Located] | None = None
        while True:
            located = list((await self.index.locate(keys)).items())
            _check_size(keys, located)
            entries = await self._entries(located, before)
            if entries is not None:
                found = {entry.key: entry for entry in entries}
                return [found.get(key) for key in keys]
            before = located

    async def keys(self, start: bytes, end: bytes | None, limit: int) -> list[VersionedKey]:
        """At most `limit` keys from `start` on, in their order, and PAGE_BYTES_MAX."""
        located = await self._page(start, end, limit, with_values=False)
        return [VersionedKey(key, location.version) for key, location in located]

    async def entries(self, start: bytes, end: bytes | None, limit: int) -> list[TableEntry]:
        """As `keys`, with the values."""
        before: list[Located] | None = None
        while True:
            located = await self._page(start, end, limit, with_values=True)
            entries = await self._entries(located, before)
            if entries is not None:
                return entries
            before = located

    async def delta(self, position: int, limit: int) -> DeltaPage:
        """What was appended from `position` on. Raises InvalidArgumentError."""
        should_clear = False
        while True:
            info = await self._store.get_info(self._name)
            if position > info.length:
                words = f"the table ends at {info.length}"
                raise InvalidArgumentError("position", position, words)
            if position < info.start_offset:
                position, should_clear = info.start_offset, True
            try:
                return await self._delta(position, info.length, limit, should_clear=should_clear)
            except SegmentTruncatedError:
                continue

    async def _delta(
        self, position: int, length: int, limit: int, *, should_clear: bool
    ) -> DeltaPage:
        entries: dict[bytes, TableEntry] = {}
        size = 0
        try:
            async for records, data in record_slices(self._store, self._name, position, length):
                for record in records:
                    if len(entries) >= limit or size >= PAGE_BYTES_MAX:
                        page = list(entries.values())
                        return DeltaPage(page, should_clear, reached_end=False, position=position)
                    older = entries.pop(record.key, None)
                    if older is not None:
                        size -= _size(older)
                    if record.kind != REMOVAL:
                        value = data[record.value_start : record.value_end]
                        entry = TableEntry(record.key, record.location.version, value)
                        entries[record.key] = entry
                        size += _size(entry)
                    position = record.location.offset + record.location.length
        except MalformedRecordError as error:
            # The caller may have made it up; the table itself was read when it was opened.
            words = f"no record begins there: {error}"
            raise InvalidArgumentError("position", position, words) from error
        page = list(entries.values())
        return DeltaPage(page, should_clear, reached_end=True, position=position)

    async def _page(
        self, start: bytes, end: bytes | None, limit: int, *, with_values: bool
    ) -> list[Located]:
        page: list[Located] = []
        size = 0
        while len(page) < limit:
            wanted = min(_SCAN_KEYS, limit - len(page))
            part = await self.index.scan(start, end, wanted)
            for key, location in part:
                size += location.length if with_values else len(key)
                size += _KEY_OVERHEAD_BYTES
                if page and size > PAGE_BYTES_MAX:
                    return page
                page.append((key, location))
            if len(part) < wanted:
                break
            start = behind(part[-1][0])
            await asyncio.sleep(0)
        return page

    async def _entries(
        self, located: list[Located], before: list[Located] | None
    ) -> list[TableEntry] | None:
        """None: they were truncated meanwhile, and are elsewhere now than `before`."""
        places = [location for _, location in located]
        try:
            data = await read_places(self._store, self._name, places)
        except SegmentTruncatedError as error:
            self._check_held()
            if located == before:
                raise self._wrong_index(error.start_offset) from error
            return None
        entries = []
        for key, location in located:
            value = value_of(data[location.offset], key, location)
            if value is None:
                raise self._wrong_index(location.offset)
            entries.append(TableEntry(key, location.version, value))
        return entries

    def _wrong_index(self, offset: int) -> DataCorruptionError:
        where = f"table {self._name!r}, offset {offset}"
        return DataCorruptionError(where, "the index names a record that is not there")


def _check_size(keys: Sequence[bytes], located: Sequence[Located]) -> None:
    # As the reply has them: it repeats an entry whose key was asked for twice.
    lengths = {key: location.length for key, location in located}
    size = sum(lengths.get(key, len(key)) + _ENTRY_OVERHEAD_BYTES for key in keys)
    if size > READ_BYTES_MAX:
        words = f"their entries have {size} bytes; ask for at most {READ_BYTES_MAX} at once"
        raise InvalidArgumentError("keys", f"{len(keys)} keys", words)


def behind(key: bytes) -> bytes:
    """Where a scan begins that goes on behind a key."""
    return order_key(key) + b"\0"


def _size(entry: TableEntry) -> int:
    return len(entry.key) + len(entry.value) + _KEY_OVERHEAD_BYTES
