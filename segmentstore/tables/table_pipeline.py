"""TablePipeline: an open table's appends (adapter).

Each batch is one append that expects the offset behind the batch before it. So if one fails, so do
all behind it, and what succeeds was checked against what became durable. There is one exception:
others append just as many bytes as those that failed have. Rules of this file:

- between a check and its append nothing is awaited;
- a refusal is given when what it was checked against is durable: no caller learns of a state that
  may not be there after a crash;
- a batch that was appended behind one that failed has an unknown outcome: its records are there,
  and were checked against others that are not;
- when a batch has failed, nothing is appended until no batch is in flight. Then the batches are
  forgotten, if the failure says what is in the segment; else the table is dropped, and its segment
  is read again at the next use;
- changes and copies wait for room in the container's queue, as appends to streams do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    AppendTooLargeError,
    BadOffsetError,
    SegmentError,
    SegmentSealedError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.service import SegmentStore
from segmentstore.tables.pending_table import PendingTable
from segmentstore.tables.table_batch import TableBatch
from segmentstore.tables.table_records import (
    KeyLocation,
    TableRecord,
    copy_length,
    put_length,
    removal_length,
)
from segmentstore.tables.table_types import TableEntry, VersionedKey

_NOT_APPENDED: Final = (TierUnavailableError, AppendTooLargeError, SegmentSealedError)
"""After these the segment is as it was."""


class StaleTableError(Exception):
    """What is known of the table no longer holds: the call had no effect, and is repeated.

    `cause` is what the caller gets who has repeated it often enough.
    """

    def __init__(self, cause: SegmentStoreError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _InFlight:
    """A batch on its way, and those that wait for its outcome."""

    __slots__ = ("batch", "done", "error", "watchers")

    def __init__(self, batch: TableBatch, done: asyncio.Future[None]) -> None:
        self.batch = batch
        self.done = done
        """Its caller's."""
        self.error: BaseException | None = None
        self.watchers: list[asyncio.Future[bool]] = []
        """Get whether it was appended."""


class TablePipeline:
    """What is appended to one table. Used on the store's event loop."""

    def __init__(
        self,
        store: SegmentStore,
        table: PendingTable,
        *,
        on_commit: Callable[[], None],
        on_drop: Callable[[], None],
    ) -> None:
        """`on_commit` is called behind each batch; `on_drop` once, when the table is not to be used
        any more.
        """
        self.table = table
        self.dropped = False
        self._store = store
        self._name = table.name
        self._loop = asyncio.get_running_loop()
        self._bytes_max = store.config.append_bytes_max
        self._in_flight: deque[_InFlight] = deque()
        self._unsettled = 0
        """Of those in flight: they have no outcome yet."""
        self._failed = False
        self._cause: SegmentStoreError | None = None
        """Why it was dropped, or failed last."""
        self._closed_by: object | None = None
        """What keeps others from appending."""
        self._waiters: list[asyncio.Future[None]] = []
        """Of any change that may let them go on."""
        self._room_turn = asyncio.Lock()
        """Of the changes that wait for room in the container's queue: one of them asks for it."""
        self._asking = 0
        """How many of them there are."""
        self._on_commit = on_commit
        self._on_drop = on_drop

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._in_flight

    # --- calls ------------------------------------------------------------------------------------

    async def update(self, entries: Sequence[TableEntry], expected_length: int | None) -> list[int]:
        """Set entries; their versions. Raises as PendingTable.plan_update, StaleTableError."""
        size = sum(put_length(entry.key, entry.value) for entry in entries)
        committed = await self._admitted([entry.key for entry in entries], size)
        try:
            batch, versions = self.table.plan_update(entries, committed, expected_length)
        except SegmentError:
            await self.settled()
            raise
        await self.append(batch)
        return versions

    async def remove(self, keys: Sequence[VersionedKey], expected_length: int | None) -> None:
        """Remove keys. Raises as PendingTable.plan_removal, StaleTableError."""
        size = sum(removal_length(key) for key, _ in keys)
        committed = await self._admitted([key for key, _ in keys], size)
        try:
            batch = self.table.plan_removal(keys, committed, expected_length)
        except SegmentError:
            await self.settled()
            raise
        if batch.length:
            await self.append(batch)
        else:
            await self.settled()

    async def copy(self, records: Sequence[TableRecord], data: bytes) -> None:
        """Append copies of those of the records that are the newest of their keys.

        Their values are in `data`. Raises StaleTableError.
        """
        sizes = (copy_length(each.key, each.value_end - each.value_start) for each in records)
        committed = await self._admitted([each.key for each in records], sum(sizes))
        batch = self.table.plan_copies(records, data, committed)
        if batch.length:
            await self.append(batch)
        else:
            # Records may have been left out for newer ones that are not appended yet.
            await self.settled()

    async def close_while(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` with nothing in flight and no other append. Raises StaleTableError."""
        await self._enter()
        self._closed_by = work
        try:
            while self._in_flight:
                await self._changed()
            self.check_held()
            await work()
        finally:
            self._closed_by = None
            self._wake()

    async def settled(self) -> None:
        """Wait until all that is in flight now has been appended.

        Raises StaleTableError if it was not.
        """
        if self._in_flight:
            last = self._in_flight[-1]
            watcher: asyncio.Future[bool] = self._loop.create_future()
            last.watchers.append(watcher)
            if last.error is not None or not await watcher:
                raise self.stale()

    def check_held(self) -> None:
        """Raise StaleTableError if the table was dropped."""
        if self.dropped:
            raise self.stale()

    async def drained(self) -> None:
        """Wait until nothing is in flight."""
        while self._in_flight:
            await self._changed()

    def drop(self, cause: SegmentStoreError | None = None) -> None:
        """Do not use it any more. Idempotent."""
        if not self.dropped:
            self.dropped = True
            self._cause = cause
            self.table.index.drop()
            self._on_drop()
            self._wake()

    # --- the way in -------------------------------------------------------------------------------

    async def _enter(self) -> None:
        while (self._failed or self._closed_by is not None) and not self.dropped:
            await self._changed()
        self._check()

    async def _admitted(self, keys: Sequence[bytes], size: int) -> dict[bytes, KeyLocation]:
        """Where the index has the keys, when the store takes an append of `size` bytes.

        First come, first served. Raises why the container stops, StaleTableError.
        """
        committed = await self._located(keys)
        if not self._asking:
            room = self._store.room(self._name, size)
            if room is None:
                return committed
            room.cancel()
        # A lock that was released just now is free, and still others come first.
        self._asking += 1
        try:
            async with self._room_turn:
                return await self._with_room(keys, size)
        finally:
            self._asking -= 1

    async def _with_room(self, keys: Sequence[bytes], size: int) -> dict[bytes, KeyLocation]:
        committed = await self._located(keys)
        room = self._store.room(self._name, size)
        while room is not None:
            end = self.table.index.end
            await room
            turns: list[None] = []
            self._loop.call_soon(turns.append, None)
            # What was committed meanwhile counts. An index on disk takes other turns of the loop,
            # and in these the room may go to others: it is read only if there is anything new.
            if self.table.index.end != end or self._is_shut:
                committed = await self._located(keys)
            room = self._store.room(self._name, size) if turns else None
        return committed

    async def _located(self, keys: Sequence[bytes]) -> dict[bytes, KeyLocation]:
        """Where the index has them, now."""
        await self._enter()
        while True:
            committed = await self.table.index.locate(keys)
            if not self._is_shut:
                return committed
            await self._enter()

    @property
    def _is_shut(self) -> bool:
        return self._failed or self._closed_by is not None or self.dropped

    def _check(self) -> None:
        if self._is_shut:
            raise self.stale()

    def stale(self) -> StaleTableError:
        """What a call gets that has met a table that does not hold any more."""
        left = TierUnavailableError("cache", f"table {self._name!r} has left memory")
        return StaleTableError(self._cause or left)

    async def append(self, batch: TableBatch) -> None:
        """Append what was planned just now, and wait until it is durable."""
        if batch.length > self._bytes_max:
            raise AppendTooLargeError(batch.length, self._bytes_max)
        entry = _InFlight(batch, self._loop.create_future())
        data = self.table.begin(batch)
        try:
            appended = self._store.append(self._name, data, batch.offset)
        except BaseException:
            self.drop()
            raise
        self._in_flight.append(entry)
        self._unsettled += 1
        appended.add_done_callback(partial(self._settle, entry))
        await entry.done

    # --- outcomes ---------------------------------------------------------------------------------

    def _settle(self, entry: _InFlight, appended: asyncio.Future[int]) -> None:
        error = _error_of(appended)
        first = self._in_flight[0]
        if error is None and first is not entry:
            container_id = container_of(self._name, self._store.config.containers)
            error = AppendOutcomeUnknownError(container_id, first.error)
        if error is None:
            self._in_flight.popleft()
            self.table.commit(entry.batch)
        else:
            self._failed = True
            entry.error = error
        self._unsettled -= 1
        self._answer(entry)
        if error is None:
            self._on_commit()
        if not self._unsettled and self._failed:
            self._end_failure()
        elif not self._in_flight:
            self._wake()

    def _answer(self, entry: _InFlight) -> None:
        error, done = entry.error, entry.done
        # It may have been cancelled.
        if not done.done():
            if error is None:
                done.set_result(None)
            elif isinstance(error, BadOffsetError):
                others = TierUnavailableError("tier1", f"others append to it: {error}")
                done.set_exception(StaleTableError(others))
            else:
                done.set_exception(error)
        for watcher in entry.watchers:
            if not watcher.done():
                watcher.set_result(error is None)

    def _end_failure(self) -> None:
        """All in flight have failed: nothing is any more."""
        first = self._in_flight[0].error
        self._cause = first if isinstance(first, SegmentStoreError) else None
        appended = any(isinstance(x.error, AppendOutcomeUnknownError) for x in self._in_flight)
        self._in_flight.clear()
        if isinstance(first, _NOT_APPENDED) and not appended:
            self.table.reset()
            self._failed = False
        else:
            self.drop(self._cause)
        # If it was dropped before, its next opening waits for this.
        self._wake()

    # --- waiting ----------------------------------------------------------------------------------

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _error_of(appended: asyncio.Future[int]) -> BaseException | None:
    if appended.cancelled():
        return asyncio.CancelledError()
    return appended.exception()
