"""OpenTables: the tables that are in memory, and which of them leave it (adapter).

A table that is asked for is opened, in one task however many ask. When there are too many, or their
indexes take too much memory, those leave that were not used for longest and are not needed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from segmentstore.contracts.errors import (
    SegmentStoreError,
    SegmentTruncatedError,
    StoreClosedError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.service import SegmentStore
from segmentstore.tables.errors import NotATableError
from segmentstore.tables.stored_index import IndexFailedError
from segmentstore.tables.table import Table
from segmentstore.tables.table_index import TableIndex
from segmentstore.tables.table_opening import TableIndexes
from segmentstore.tables.table_pipeline import StaleTableError
from segmentstore.tables.table_types import TABLE_ATTRIBUTES, is_table, key_length_of

T = TypeVar("T")

CLOSE_S: Final = 5.0
_ATTEMPTS: Final = 16
"""Of a call on a table that was dropped while it was on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """How much of tables is in memory, and when they are compacted."""

    tables_max: int = 1000
    """Open ones, but for those in use."""
    index_bytes_max: int = 64 * 1024 * 1024
    """Of all indexes in memory."""
    memory_index_bytes_max: int = 4 * 1024 * 1024
    """Of one: a larger one is on disk."""
    dead_bytes_min: int = 1024 * 1024
    """A table with fewer dead bytes is not compacted."""


class _Opening:
    """A table on its way into memory."""

    __slots__ = ("table", "task", "waiting")

    def __init__(self, task: asyncio.Task[Table]) -> None:
        self.task = task
        self.waiting = 0
        """Calls that will use it."""
        self.table: Table | None = None
        """When it is there, and has them among its users."""


class OpenTables:
    """Tables of one store. Used on its event loop."""

    def __init__(self, store: SegmentStore, indexes: TableIndexes, limits: TableLimits) -> None:
        self._store = store
        self._indexes = indexes
        self._limits = limits
        self._tables: OrderedDict[str, Table] = OrderedDict()
        """By name; those used last are behind."""
        self._opening: dict[str, _Opening] = {}
        self._draining: dict[str, Table] = {}
        """Dropped, with appends in flight."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def memory_bytes(self) -> int:
        """What their indexes take, about. O(open tables)."""
        return sum(table.index.memory_bytes for table in self._tables.values())

    async def run(self, name: str, work: Callable[[Table], Awaitable[T]]) -> T:
        """What `work` gives, on the open table, which it has in memory meanwhile.

        Repeated on a table that is opened anew, if what was known of it turned out not to hold.
        """
        cause: SegmentStoreError | None = None
        for _ in range(_ATTEMPTS):
            if self._closed:
                raise StoreClosedError
            table = self._tables.get(name)
            if table is None:
                try:
                    table = await self._opened(name)
                except IndexFailedError:
                    cause = _unavailable(name)
                    continue
            else:
                self._tables.move_to_end(name)
                table.users += 1
            try:
                if table.epoch != self._store.container_epoch(name):
                    # Another owner may have changed it meanwhile.
                    table.pipeline.drop()
                table.pipeline.check_held()
                return await work(table)
            except StaleTableError as error:
                cause = error.cause
            except IndexFailedError:
                cause = _unavailable(name)
                table.pipeline.drop(cause)
            finally:
                table.users -= 1
                if len(self._tables) > self._limits.tables_max:
                    self.evict()
        assert cause is not None
        raise cause

    async def current(self, table: Table) -> SegmentInfo:
        """The segment of an open table. Raises SegmentNotFoundError, StaleTableError: it is
        another one by now, or another owner may have changed it.
        """
        info = await self._store.get_info(table.name)
        is_other = info.segment_id != table.segment_id
        if is_other or table.epoch != self._store.container_epoch(table.name):
            table.pipeline.drop()
            raise table.pipeline.stale()
        return info

    def drop_stored(self) -> None:
        """Drop the tables whose index is not in memory alone: what was on disk is lost."""
        for table in tuple(self._tables.values()):
            if self._indexes.is_on_disk(table.index):
                table.pipeline.drop(_unavailable(table.name))

    def evict(self) -> None:
        """Have those leave that were not used for longest, while there are too many.

        Checked when a table is opened or has grown by a share of the bound: O(open tables).
        """
        limits = self._limits
        memory_bytes = self.memory_bytes
        if len(self._tables) <= limits.tables_max and memory_bytes <= limits.index_bytes_max:
            return
        for table in tuple(self._tables.values()):
            if len(self._tables) <= limits.tables_max and memory_bytes <= limits.index_bytes_max:
                break
            if table.idle:
                memory_bytes -= table.index.memory_bytes
                table.pipeline.drop()

    async def close(self) -> None:
        """End what tables do by themselves, and drop them: later calls raise StoreClosedError.

        Returns when no append of theirs is on its way, CLOSE_S later at the latest.
        """
        self._closed = True
        for opening in tuple(self._opening.values()):
            opening.task.cancel()
            await asyncio.wait((opening.task,))
        for table in tuple(self._tables.values()):
            await table.close()
            table.pipeline.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for table in tuple(self._draining.values()):
                    await table.pipeline.drained()

    # --- opening ----------------------------------------------------------------------------------

    async def _opened(self, name: str) -> Table:
        """The table, with the caller among its users."""
        opening = self._opening.get(name)
        if opening is None:
            opening = _Opening(own_task(self._open(name), name="open table"))
            self._opening[name] = opening
            opening.task.add_done_callback(partial(self._end_opening, name, opening))
        opening.waiting += 1
        try:
            await asyncio.wait((opening.task,))
        except BaseException:
            opening.waiting -= 1
            if opening.table is not None:
                opening.table.users -= 1
            raise
        if opening.task.cancelled():
            raise StoreClosedError
        try:
            return opening.task.result()
        finally:
            # The task has its error, and that this frame: kept here it would be a cycle.
            del opening

    def _end_opening(self, name: str, opening: _Opening, task: asyncio.Task[Table]) -> None:
        del self._opening[name]
        if not task.cancelled() and task.exception() is None:
            # Before those that wait have their turns, in which it might have left again.
            opening.table = task.result()
            opening.table.users += opening.waiting
            self.evict()

    async def _open(self, name: str) -> Table:
        if (draining := self._draining.get(name)) is not None:
            await draining.pipeline.drained()
        for other in [name for name, table in self._draining.items() if table.pipeline.idle]:
            del self._draining[other]
        epoch = self._store.container_epoch(name)
        attributes = await self._store.get_attributes(name, TABLE_ATTRIBUTES)
        if not is_table(attributes):
            raise NotATableError(name)
        info, index = await self._index(name)
        table = Table(
            self._store,
            info,
            key_length_of(attributes),
            epoch,
            index,
            self._indexes,
            dead_bytes_min=self._limits.dead_bytes_min,
            on_growth=self.evict,
            on_drop=self._dropped,
        )
        self._tables[name] = table
        table.maintain()
        return table

    async def _index(self, name: str) -> tuple[SegmentInfo, TableIndex]:
        while True:
            info = await self._store.get_info(name)
            try:
                return info, await self._indexes.open(info)
            except SegmentTruncatedError:
                # By a compaction that began before the table was dropped.
                continue

    def _dropped(self, table: Table) -> None:
        if self._tables.get(table.name) is table:
            del self._tables[table.name]
        if not table.pipeline.idle:
            self._draining[table.name] = table


def _unavailable(name: str) -> TierUnavailableError:
    return TierUnavailableError("cache", f"the index of table {name!r} is built again")
