"""TableIndex: where the newest record of each key of a table is, as acknowledged.

A view of the segment, which can be built again from it at any time. What every implementation
promises (tests/tables/test_table_indexes.py):

- `locate` and `scan` give what was applied by the moment when they return;
- keys are in the order of `order_key`, for tokens to stay valid when an index takes over from
  another.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from sortedcontainers import SortedKeyList

from segmentstore.tables.table_batch import TAIL_BYTES, TableBatch
from segmentstore.tables.table_records import KeyLocation

ORDER_PREFIX_BYTES: Final = 1024
"""Keys up to this length are ordered by their bytes."""
ENTRY_MEMORY_BYTES: Final = 300
"""What one key costs in memory, about, beside its bytes."""

Changes: TypeAlias = Mapping[bytes, KeyLocation | None]
"""By key; None: it is removed."""
Located: TypeAlias = tuple[bytes, KeyLocation]
"""A key and where its record is."""


def order_key(key: bytes) -> bytes:
    """What a key is ordered by: itself; of a long one its beginning and a hash.

    A sorted store on disk takes no key of KEY_BYTES_MAX. Tables whose order is promised have
    shorter ones.
    """
    if len(key) <= ORDER_PREFIX_BYTES:
        return key
    return key[:ORDER_PREFIX_BYTES] + hashlib.sha256(key).digest()


class TableIndex(ABC):
    """An index of one table. Used on one event loop."""

    entry_count: int = 0
    """Number of keys."""
    live_bytes: int = 0
    """Bytes of all records it names."""
    end: int = 0
    """The offset up to which it has the segment."""
    tail: bytes = b""
    """Up to TAIL_BYTES before `end`; fewer of an index that has fewer."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """What it costs, about."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether it writes something just now, and cannot be dropped."""

    @abstractmethod
    async def locate(self, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
        """Where the records of those keys are that it has."""

    @abstractmethod
    async def scan(self, start: bytes, end: bytes | None, limit: int) -> list[Located]:
        """The first `limit` keys whose `order_key` is from `start` up to `end`, which is not among
        them; None: no bound.
        """

    def apply(self, batch: TableBatch) -> None:
        """Make the changes of a batch that begins at `end`."""
        self.end = batch.end
        self.entry_count += batch.count_growth
        self.live_bytes += batch.live_growth
        tail = batch.tail
        self.tail = tail if len(tail) >= TAIL_BYTES else (self.tail + tail)[-TAIL_BYTES:]
        self._apply(batch.changes)

    @abstractmethod
    def _apply(self, changes: Changes) -> None: ...

    @abstractmethod
    async def settle(self) -> None:
        """Wait until it has caught up with what it writes behind."""

    @abstractmethod
    def drop(self) -> None:
        """Write nothing any more."""


class MemoryIndex(TableIndex):
    """An index in memory."""

    def __init__(self) -> None:
        self.entries: dict[bytes, KeyLocation] = {}
        self._order: SortedKeyList[bytes, bytes] = SortedKeyList(key=order_key)
        self._key_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self._key_bytes + ENTRY_MEMORY_BYTES * len(self.entries)

    @property
    def busy(self) -> bool:
        return False

    async def locate(self, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
        entries = self.entries
        return {key: entries[key] for key in keys if key in entries}

    async def scan(self, start: bytes, end: bytes | None, limit: int) -> list[Located]:
        entries = self.entries
        keys = self._order.irange_key(start, end, inclusive=(True, False))
        return [(key, entries[key]) for key in islice(keys, limit)]

    def _apply(self, changes: Changes) -> None:
        entries, order = self.entries, self._order
        for key, location in changes.items():
            if location is None:
                if entries.pop(key, None) is not None:
                    order.remove(key)
                    self._key_bytes -= len(key)
            else:
                if key not in entries:
                    order.add(key)
                    self._key_bytes += len(key)
                entries[key] = location

    async def settle(self) -> None:
        """It has no other place to write to."""

    def drop(self) -> None:
        """Nothing is written."""
