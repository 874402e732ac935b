"""Prefetcher: what is asked of Tier 2 for reads, and ahead of those who read in sequence (loop).

Rules:

- a read that continues no other fetches what it wants and no more, in one request, and waits for
  nothing but its turn. One that continues another fetches the read unit it is in;
- read-ahead (`_read_ahead`) goes from the end of what a sequential reader has to the end of its
  window, over the borders of chunks and objects. Its GETs have up to a quarter of the window: few
  and large ones once the reader is well under way. It takes at most three quarters of the fetches
  and begins none that has no room in memory or no budget; it is tried again whenever a fetch ends
  (`_hungry`);
- only sequential readers wait for the budget; what others fetch is charged to it, within bounds;
- a sequential reader that has not read for `stream_idle_s` is ended by a timer, which runs only
  while there are such readers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, SequentialReader
from readindex.fair_delivery import FairDelivery
from readindex.fetched_extents import FetchedExtents
from readindex.fetches import Fetch, Fetches
from readindex.segment_read_index import SegmentIndexes
from segmentstore.contracts.chunk_list import UnknownChunksError
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from readindex.block_source import BlockSource

KnowChunk = Callable[[int, int], Awaitable[None]]
"""Has the chunk of a segment with an offset in memory, which may be in the catalog alone. Raises
TierUnavailableError, DataCorruptionError.
"""

_BUDGET_GETS_PER_S = 8
"""Under a budget GETs are so small that no reader pays for another's for longer than this part of a
second.
"""


class Prefetcher:
    """Of one container."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: SegmentIndexes,
        fetched: FetchedExtents,
        pacer: FairDelivery,
        source: BlockSource,
        config: ReadIndexConfig,
        runtime: Runtime,
        know_chunk: KnowChunk,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._fetched = fetched
        self._pacer = pacer
        self._config = config
        self._readers = fetched.readers
        self._limiter = RateLimiter(config.catch_up_bytes_per_s)
        self.fetches = Fetches(
            metadata, indexes, fetched, source, config, runtime, on_ended=self._feed
        )
        self._ahead_max = max(1, config.fetches_in_flight_max * 3 // 4)
        self._hungry: OrderedDict[SequentialReader, None] = OrderedDict()
        self._know_chunk = know_chunk
        self._lookups: dict[int, asyncio.Task[None]] = {}
        """By segment, for readers that came to chunks that are not in memory."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._limit_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.fetches_random = 0
        """Of all fetches, those for reads that continued no other."""

    async def fetch(
        self, segment: SegmentMetadata, chunk: ChunkRecord, offset: int, max_length: int
    ) -> bytes:
        """At most `max_length` bytes from `offset`, up to the end of what one request brings.

        Raises ObjectNotFoundError (find the chunk again), TierUnavailableError,
        DataCorruptionError, ContainerStoppedError.
        """
        segment_id = segment.segment_id
        fetch = self.fetches.find(segment_id, offset)
        missed = fetch is None
        continues = self._readers.expects(segment_id, offset)
        if fetch is None:
            start, end = self._wanted(chunk, offset, max_length, continues=continues)
            start, end = self.fetches.gap_around(segment_id, offset, start, end)
            fetch = self.fetches.start(segment_id, chunk, start, end, ahead=False)
        elif not continues:
            fetch.urgent.set()
        end_offset = min(offset + max_length, fetch.end_offset)
        reader = self._advance(segment_id, offset, end_offset, missed=missed)
        if missed:
            self._charge(fetch, reader)
        # Asked for before this one has come, so that they travel together.
        if reader.sequential:
            self._read_ahead(segment, reader)
        data = await asyncio.shield(fetch.future)
        if self._pacer.spend(end_offset - offset):
            await self._pacer.give_way()
        index = self._indexes.get(fetch.segment_id)
        extent = None if index is None else index.find(offset)
        if extent is not None:
            self._fetched.touch(extent, offset, end_offset, reader)
        return data[offset - fetch.start_offset : end_offset - fetch.start_offset]

    def read_held(
        self, segment: SegmentMetadata, extent: Extent, offset: int, max_length: int
    ) -> bytes:
        """At most `max_length` bytes from `offset` out of a fetched extent, up to its end, where
        the next read then begins.

        Notes the read, and reads ahead of a sequential one. Never waits.
        """
        data = extent.slice(offset, max_length)
        end_offset = offset + len(data)
        reader = self._advance(segment.segment_id, offset, end_offset, missed=False)
        self._fetched.touch(extent, offset, end_offset, reader)
        if reader.sequential:
            self._read_ahead(segment, reader)
        return data

    async def close(self) -> None:
        """Cancel what is in flight; readers attached get ContainerStoppedError."""
        self._closed = True
        for timer in (self._idle_timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        lookups = list(self._lookups.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)
        await self.fetches.close()

    # --- what to ask for ---

    def _wanted(
        self, chunk: ChunkRecord, offset: int, max_length: int, *, continues: bool
    ) -> tuple[int, int]:
        """The range to fetch for a read that found nothing, aligned within the chunk."""
        unit = min(self._config.random_bytes, self._config.piece_bytes)
        position = offset - chunk.start_offset
        if continues:
            # A share too small for a piece must not be overrun by every reader that comes to its
            # end.
            unit = min(self._config.piece_bytes, max(unit, self._readers.share // unit * unit))
            max_length = 1
        start = position // unit * unit
        end = -(-(position + max_length) // unit) * unit
        end = min(end, start + self._config.piece_bytes, chunk.length)
        return chunk.start_offset + start, chunk.start_offset + end

    def _read_ahead(self, segment: SegmentMetadata, reader: SequentialReader) -> None:
        """Ask for what the reader's window has room for."""
        window = min(reader.window, self._readers.share)
        piece_bytes = self._config.piece_bytes
        if window < piece_bytes or self._closed:
            return
        get_bytes = max(
            piece_bytes, min(window // 4, self._get_bytes_max()) // piece_bytes * piece_bytes
        )
        target = reader.position + window
        while reader.ahead_end < target:
            start = self.fetches.first_missing(segment.segment_id, reader.ahead_end, target)
            reader.ahead_end = start
            try:
                chunk = segment.find_chunk(start) if start < target else None
            except UnknownChunksError:
                self._request_chunk(segment.segment_id, start, reader)
                return
            if chunk is None:
                return
            position = start - chunk.start_offset
            end = min(
                chunk.start_offset + (position + get_bytes) // piece_bytes * piece_bytes,
                chunk.end_offset,
            )
            if end > target:
                return
            start, end = self.fetches.gap_around(segment.segment_id, start, start, end)
            if not self._may_begin_ahead(reader, end - start):
                return
            fetch = self.fetches.start(segment.segment_id, chunk, start, end, ahead=True)
            self._charge(fetch, reader)
            reader.ahead_end = end

    def _request_chunk(self, segment_id: int, offset: int, reader: SequentialReader) -> None:
        """Read ahead again once the chunk is in memory."""
        self._hungry[reader] = None
        if segment_id not in self._lookups:
            self._lookups[segment_id] = own_task(
                self._know(segment_id, offset), name=f"chunk lookup {segment_id}"
            )

    async def _know(self, segment_id: int, offset: int) -> None:
        try:
            await self._know_chunk(segment_id, offset)
        except SegmentStoreError:
            # The reader gets the error when it comes there.
            return
        finally:
            del self._lookups[segment_id]
        self._feed()

    def _get_bytes_max(self) -> int:
        rate = self._config.catch_up_bytes_per_s
        return (
            min(self._config.get_bytes_max, rate // _BUDGET_GETS_PER_S)
            if rate
            else self._config.get_bytes_max
        )

    def _may_begin_ahead(self, reader: SequentialReader, count: int) -> bool:
        wait_s = self._limiter.wait_s(asyncio.get_running_loop().time())
        if wait_s > 0 and self._limit_timer is None:
            self._limit_timer = asyncio.get_running_loop().call_later(wait_s, self._budget_is_there)
        if (
            wait_s == 0
            and self.fetches.ahead_in_flight < self._ahead_max
            and self._fetched.make_room(self.fetches.bytes_in_flight + count)
        ):
            return True
        self._hungry[reader] = None
        return False

    def _feed(self) -> None:
        """Try again for each reader that read-ahead had to stop for, those that wait longest
        first.
        """
        for _ in range(len(self._hungry)):
            if self.fetches.ahead_in_flight >= self._ahead_max:
                return
            reader, _ = self._hungry.popitem(last=False)
            segment = self._metadata.segments.get(reader.segment_id)
            if segment is not None and reader.sequential:
                self._read_ahead(segment, reader)

    def _budget_is_there(self) -> None:
        self._limit_timer = None
        self._feed()

    # --- sequential readers ---

    def _advance(
        self, segment_id: int, offset: int, end_offset: int, *, missed: bool
    ) -> SequentialReader:
        loop = asyncio.get_running_loop()
        reader = self._readers.advance(segment_id, offset, end_offset, loop.time(), missed=missed)
        if reader.sequential and self._idle_timer is None and not self._closed:
            self._idle_timer = loop.call_later(self._config.stream_idle_s, self._end_idle)
        return reader

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._readers.end_idle(loop.time() - self._config.stream_idle_s)
        self._idle_timer = None
        if self._readers.running:
            self._idle_timer = loop.call_later(self._config.stream_idle_s / 2, self._end_idle)
        self._feed()

    # --- the budget ---

    def _charge(self, fetch: Fetch, reader: SequentialReader) -> None:
        """Set whose fetch it is, which has not begun yet."""
        now_s = asyncio.get_running_loop().time()
        if reader.sequential:
            fetch.reader = reader
            fetch.wait_s = self._limiter.reserve(now_s, fetch.length)
        else:
            self._limiter.charge(now_s, fetch.length)
            self.fetches_random += 1
