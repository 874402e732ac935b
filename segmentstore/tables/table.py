"""Table: an open table. Joins its appends, its reads and its maintenance (adapter).

Maintenance is compaction, and the move of an index to disk that has become large. It runs in one
task of the table, when a commit has found that it is due. One that failed is tried again by a
commit after a back-off.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.service import SegmentStore
from segmentstore.tables.compaction import compact, is_due
from segmentstore.tables.errors import TableNotEmptyError
from segmentstore.tables.pending_table import PendingTable
from segmentstore.tables.stored_index import IndexFailedError
from segmentstore.tables.table_index import TableIndex
from segmentstore.tables.table_opening import TableIndexes
from segmentstore.tables.table_pipeline import StaleTableError, TablePipeline
from segmentstore.tables.table_reads import TableReads
from segmentstore.tables.table_records import MalformedRecordError

_GROWTH_BYTES: Final = 256 * 1024
"""Of an index in memory: then others may have to leave."""
AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""Of maintenance that failed: the back-off before it is tried again."""


class Table:
    """An open table. Used on the store's event loop."""

    def __init__(
        self,
        store: SegmentStore,
        info: SegmentInfo,
        key_length: int,
        epoch: int,
        index: TableIndex,
        indexes: TableIndexes,
        *,
        dead_bytes_min: int,
        on_growth: Callable[[], None],
        on_drop: Callable[[Table], None],
    ) -> None:
        """`epoch`: of the container, before anything was read of the table. `on_growth` is called
        when its memory has grown; `on_drop` when it is dropped.
        """
        self.name = info.name
        self.segment_id = info.segment_id
        self.key_length = key_length
        self.epoch = epoch
        self.users = 0
        """Calls that need it in memory."""
        self.pipeline = TablePipeline(
            store,
            PendingTable(info.name, index),
            on_commit=self._committed,
            on_drop=lambda: on_drop(self),
        )
        self.reads = TableReads(store, info.name, index, self.pipeline.check_held)
        self._store = store
        self._info = info
        self._start_offset = info.start_offset
        self._indexes = indexes
        self._dead_bytes_min = dead_bytes_min
        self._on_growth = on_growth
        self._maintenance: asyncio.Task[None] | None = None
        rng = random.Random(info.segment_id)  # noqa: S311 - it spreads retries
        self._backoff = Backoff(rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        self._maintained_from_s = 0.0
        """By the loop's clock: not before."""
        self._memory_bytes = index.memory_bytes

    @property
    def index(self) -> TableIndex:
        """Of what is committed."""
        return self.pipeline.table.index

    @property
    def idle(self) -> bool:
        """Whether it may leave memory."""
        return (
            not self.users
            and self.pipeline.idle
            and self._maintenance is None
            and not self.index.busy
        )

    async def delete(self, *, must_be_empty: bool) -> None:
        """Delete its segment. Raises TableNotEmptyError, StaleTableError."""

        async def work() -> None:
            if must_be_empty and self.index.entry_count:
                raise TableNotEmptyError(self.name, self.index.entry_count)
            try:
                await self._store.delete(self.name)
            finally:
                # Cancelled, it may be deleted or not.
                self.pipeline.drop()

        await self.pipeline.close_while(work)

    async def close(self) -> None:
        """Wait until its maintenance has ended, which is cancelled."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait((self._maintenance,))

    # --- maintenance ------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Begin what is due."""
        if self._maintenance is not None or self.pipeline.dropped or not self._is_due():
            return
        if asyncio.get_running_loop().time() >= self._maintained_from_s:
            self._maintenance = own_task(self._maintain(), name="table maintenance")

    def _committed(self) -> None:
        if self._is_due():
            self.maintain()
        memory_bytes = self.index.memory_bytes
        if memory_bytes > self._memory_bytes + _GROWTH_BYTES:
            self._memory_bytes = memory_bytes
            self._on_growth()

    def _is_due(self) -> bool:
        return self._is_compaction_due() or self._indexes.is_too_large(self.index)

    def _is_compaction_due(self) -> bool:
        index = self.index
        dead_bytes = index.end - self._start_offset - index.live_bytes
        return is_due(dead_bytes, index.live_bytes, self._dead_bytes_min)

    async def _maintain(self) -> None:
        try:
            while self._is_due() and not self.pipeline.dropped:
                await self._move()
                # One that failed half-way has truncated.
                self._start_offset = (await self._store.get_info(self.name)).start_offset
                if self._is_compaction_due():
                    self._start_offset = await compact(
                        self._store, self.pipeline, self._start_offset, self._dead_bytes_min
                    )
            self._backoff.reset()
        except (StaleTableError, IndexFailedError, MalformedRecordError, SegmentStoreError):
            # Of a store that stops, or of a tier that is away: a later commit tries again.
            now_s = asyncio.get_running_loop().time()
            self._maintained_from_s = now_s + self._backoff.next_s()
        finally:
            self._maintenance = None

    async def _move(self) -> None:
        index = self.index
        moved = await self._indexes.moved(self._info, index)
        if moved is not index:
            self.pipeline.table.index = self.reads.index = moved
