"""Prefetcher: bytes from Tier 2, each fetched once for all who want it, and ahead of those who
read in sequence (loop).

Theory of operation. A fetch belongs to the fetcher, not to the reader that asked: readers attach to
any fetch in flight whose range holds their offset, and a reader that goes away leaves it running.
What has come is kept by FetchedExtents; the readers get it from the fetch itself, so they get on
however small that bound is. Rules:

- a read that continues no other fetches what it wants and no more, in one request, and waits for
  nothing but its turn among `fetches_in_flight_max`; one that continues another fetches the piece
  it is in;
- read-ahead (`_read_ahead`) goes from the end of what a stream has to the end of its window, over
  the borders of chunks and objects, in GETs of up to a quarter of the window: few and large ones
  once the reader is well under way. It takes at most three quarters of the fetches and begins none
  that has no room in memory or no budget; it is tried again whenever a fetch ends (`_hungry`);
- fetches never overlap one another or what is held: their ranges are cut at both;
- only sequential readers wait for the budget; what others fetch is charged to it, within bounds,
  and a fetch that waits for it begins at once when somebody else wants its bytes;
- a stream that has not come on for `stream_idle_s` is let go of by a timer, which runs only while
  there are streams.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from readindex.block_source import BlockSource, FetchWatch
from readindex.config import ReadIndexConfig
from readindex.extent import Extent, SequentialReader
from readindex.fair_delivery import FairDelivery
from readindex.fetched_extents import FetchedExtents
from readindex.segment_indexes import SegmentIndexes
from segmentstore.contracts.backoff import backoff_s
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError, StorageUnavailableError

BACKOFF_S_MAX = 30.0
"""Longest pause between two tries of a fetch."""
_BUDGET_GETS_PER_S = 8
"""Under a budget GETs are so small that no reader pays for another's for longer than this part of a
second.
"""


class Fetch:
    """One request on its way: bytes [start_offset, end_offset) of a segment, all in one chunk."""

    __slots__ = (
        "ahead",
        "chunk",
        "end_offset",
        "future",
        "segment_id",
        "start_offset",
        "stream",
        "task",
        "urgent",
        "wait_s",
    )

    def __init__(
        self, segment_id: int, chunk: ChunkRecord, start_offset: int, end_offset: int
    ) -> None:
        self.segment_id = segment_id
        self.chunk = chunk
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.stream: SequentialReader | None = None
        """The sequential reader it is for, if it is for one."""
        self.ahead = False
        self.wait_s = 0.0
        """For the budget, before it may begin; unless `urgent`."""
        self.urgent = asyncio.Event()

    @property
    def length(self) -> int:
        """Bytes asked for."""
        return self.end_offset - self.start_offset


class Prefetcher:
    """Fetches for one container. Errors reach the readers attached, and nobody else."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: SegmentIndexes,
        fetched: FetchedExtents,
        pacer: FairDelivery,
        source: BlockSource,
        config: ReadIndexConfig,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._fetched = fetched
        self._pacer = pacer
        self._source = source
        self._config = config
        self._random = runtime.random
        self._readers = fetched.readers
        self._limiter = RateLimiter(config.catch_up_bytes_per_s)
        self._in_flight: dict[int, list[Fetch]] = {}
        self._bytes_in_flight = 0
        self._ahead_in_flight = 0
        self._ahead_max = max(1, config.fetches_in_flight_max * 3 // 4)
        self._objects: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(config.fetches_in_flight_max)
        self._hungry: OrderedDict[SequentialReader, None] = OrderedDict()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._limit_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.watch: FetchWatch | None = None
        self.fetches = self.fetches_random = self.prefetches = 0
        self.fetched_bytes = self.prefetched_bytes = 0

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        return sum(map(len, self._in_flight.values()))

    def object_in_use(self, name: str) -> bool:
        """True while a fetch from this object is in flight."""
        return name in self._objects

    async def fetch(
        self, segment: SegmentMetadata, chunk: ChunkRecord, offset: int, max_length: int
    ) -> bytes:
        """At most `max_length` bytes from `offset`, up to the end of what one request brings.

        Raises ObjectNotFoundError (look the chunk up again), TierUnavailableError,
        DataCorruptionError, ContainerStoppedError.
        """
        segment_id = segment.segment_id
        fetch = self._find(segment_id, offset)
        missed = fetch is None
        continues = self._readers.expects(segment_id, offset)
        if fetch is None:
            start, end = self._wanted(chunk, offset, max_length, continues=continues)
            fetch = self._start(
                segment_id, chunk, *self._cut_at_neighbours(segment_id, offset, start, end)
            )
        elif not continues:
            fetch.urgent.set()
        end_offset = min(offset + max_length, fetch.end_offset)
        stream = self._advance(segment_id, offset, end_offset, missed=missed)
        if missed:
            self._charge(fetch, stream)
        # Asked for before this one has come, so that they travel together.
        if stream.sequential:
            self._read_ahead(segment, stream)
        data = await asyncio.shield(fetch.future)
        if self._pacer.spend(end_offset - offset):
            await self._pacer.give_way()
        index = self._indexes.get(fetch.segment_id)
        extent = None if index is None else index.find(offset)
        if extent is not None:
            self._fetched.touch(extent, offset, end_offset, stream)
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
        stream = self._advance(segment.segment_id, offset, end_offset, missed=False)
        self._fetched.touch(extent, offset, end_offset, stream)
        if stream.sequential:
            self._read_ahead(segment, stream)
        return data

    async def close(self) -> None:
        """Cancel what is in flight; readers attached get ContainerStoppedError."""
        self._closed = True
        self._pacer.close()
        for timer in (self._idle_timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        tasks = []
        for fetch in [fetch for fetches in self._in_flight.values() for fetch in fetches]:
            if not fetch.future.done():
                self._fail(fetch, ContainerStoppedError(self._metadata.container_id))
            if fetch.task is not None:
                fetch.task.cancel()
                tasks.append(fetch.task)
        if tasks:
            await asyncio.wait(tasks)

    # --- what to ask for ---

    def _find(self, segment_id: int, offset: int) -> Fetch | None:
        for fetch in self._in_flight.get(segment_id, ()):
            if fetch.start_offset <= offset < fetch.end_offset and not fetch.future.done():
                return fetch
        return None

    def _wanted(
        self, chunk: ChunkRecord, offset: int, max_length: int, *, continues: bool
    ) -> tuple[int, int]:
        """The range to fetch for a read that found nothing, aligned within the chunk."""
        unit = self._config.random_bytes
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

    def _cut_at_neighbours(
        self, segment_id: int, offset: int, start: int, end: int
    ) -> tuple[int, int]:
        """The part of [start, end) around `offset` that is neither held nor on its way; `offset` is
        neither.
        """
        index = self._indexes.get(segment_id)
        if index is not None:
            start, end = next(gap for gap in index.gaps(start, end) if gap[0] <= offset < gap[1])
        for fetch in self._in_flight.get(segment_id, ()):
            if fetch.future.done():
                continue
            if fetch.end_offset <= offset:
                start = max(start, fetch.end_offset)
            else:
                end = min(end, fetch.start_offset)
        return start, end

    def _read_ahead(self, segment: SegmentMetadata, stream: SequentialReader) -> None:
        """Ask for what the stream's window has room for."""
        window = min(stream.window, self._readers.share)
        piece_bytes = self._config.piece_bytes
        if window < piece_bytes or self._closed:
            return
        get_bytes = max(
            piece_bytes, min(window // 4, self._get_bytes_max()) // piece_bytes * piece_bytes
        )
        target = stream.position + window
        while stream.ahead_end < target:
            start = self._first_missing(segment.segment_id, stream.ahead_end, target)
            stream.ahead_end = start
            chunk = segment.find_chunk(start) if start < target else None
            if chunk is None:
                return
            position = start - chunk.start_offset
            end = min(
                chunk.start_offset + (position + get_bytes) // piece_bytes * piece_bytes,
                chunk.end_offset,
            )
            if end > target:
                return
            start, end = self._cut_at_neighbours(segment.segment_id, start, start, end)
            if not self._may_begin_ahead(stream, end - start):
                return
            fetch = self._start(segment.segment_id, chunk, start, end, ahead=stream)
            self._charge(fetch, stream)
            stream.ahead_end = end

    def _get_bytes_max(self) -> int:
        rate = self._config.catch_up_bytes_per_s
        return (
            min(self._config.get_bytes_max, rate // _BUDGET_GETS_PER_S)
            if rate
            else self._config.get_bytes_max
        )

    def _first_missing(self, segment_id: int, offset: int, limit: int) -> int:
        """The first place from `offset` on that is neither held nor on its way; `limit` if there is
        none before it.
        """
        index = self._indexes.get(segment_id)
        while offset < limit:
            held: Fetch | Extent | None = self._find(segment_id, offset)
            if held is None and index is not None:
                held = index.find(offset)
            if held is not None:
                offset = held.end_offset
            elif index is not None and index.in_tail_buffer(offset):
                return limit
            else:
                return offset
        return limit

    def _may_begin_ahead(self, stream: SequentialReader, count: int) -> bool:
        wait_s = self._limiter.wait_s(asyncio.get_running_loop().time())
        if wait_s > 0 and self._limit_timer is None:
            self._limit_timer = asyncio.get_running_loop().call_later(wait_s, self._budget_is_there)
        if (
            wait_s == 0
            and self._ahead_in_flight < self._ahead_max
            and self._fetched.make_room(self._bytes_in_flight + count)
        ):
            return True
        self._hungry[stream] = None
        return False

    def _feed(self) -> None:
        """Try again for each stream that read-ahead had to stop for, those that wait longest
        first.
        """
        for _ in range(len(self._hungry)):
            if self._ahead_in_flight >= self._ahead_max:
                return
            stream, _ = self._hungry.popitem(last=False)
            segment = self._metadata.segments.get(stream.segment_id)
            if segment is not None and stream.sequential:
                self._read_ahead(segment, stream)

    def _budget_is_there(self) -> None:
        self._limit_timer = None
        self._feed()

    # --- streams ---

    def _advance(
        self, segment_id: int, offset: int, end_offset: int, *, missed: bool
    ) -> SequentialReader:
        loop = asyncio.get_running_loop()
        stream = self._readers.advance(segment_id, offset, end_offset, loop.time(), missed=missed)
        if stream.sequential and self._idle_timer is None and not self._closed:
            self._idle_timer = loop.call_later(self._config.stream_idle_s, self._let_idle_go)
        return stream

    def _let_idle_go(self) -> None:
        loop = asyncio.get_running_loop()
        self._readers.idle_before(loop.time() - self._config.stream_idle_s)
        self._idle_timer = None
        if self._readers.running:
            self._idle_timer = loop.call_later(self._config.stream_idle_s / 2, self._let_idle_go)
        self._feed()

    # --- one fetch ---

    def _start(
        self,
        segment_id: int,
        chunk: ChunkRecord,
        start: int,
        end: int,
        *,
        ahead: SequentialReader | None = None,
    ) -> Fetch:
        fetch = Fetch(segment_id, chunk, start, end)
        self._in_flight.setdefault(segment_id, []).append(fetch)
        self._bytes_in_flight += fetch.length
        self._objects[chunk.object_name] += 1
        self.fetches += 1
        if ahead is not None:
            fetch.ahead = True
            self._ahead_in_flight += 1
            self.prefetches += 1
        fetch.task = own_task(self._run(fetch), name="read index fetch")
        fetch.task.add_done_callback(lambda _: self._finished(fetch))
        return fetch

    def _charge(self, fetch: Fetch, stream: SequentialReader) -> None:
        """Say whose fetch it is, which has not begun yet: it begins in the next turn of the
        loop.
        """
        now_s = asyncio.get_running_loop().time()
        if stream.sequential:
            fetch.stream = stream
            fetch.wait_s = self._limiter.reserve(now_s, fetch.length)
        else:
            self._limiter.charge(now_s, fetch.length)
            self.fetches_random += 1

    async def _run(self, fetch: Fetch) -> None:
        try:
            if fetch.wait_s:
                await self._wait_for_budget(fetch)
            async with self._turns:
                data = await self._read_with_retries(fetch)
        except (ObjectStorageError, TierUnavailableError, DataCorruptionError) as error:
            if self.watch is not None:
                self.watch.failed(
                    fetch.segment_id, fetch.chunk, fetch.start_offset, fetch.end_offset, error
                )
            self._fail(fetch, error)
            return
        if self.watch is not None:
            self.watch.fetched(fetch.chunk, fetch.start_offset, fetch.end_offset)
        self.fetched_bytes += fetch.length
        if fetch.ahead:
            self.prefetched_bytes += fetch.length
        segment = self._metadata.segments.get(fetch.segment_id)
        if segment is not None and segment.start_offset < fetch.end_offset:
            index = self._indexes.of(fetch.segment_id)
            self._fetched.insert(index, fetch.start_offset, data, fetch.stream, ahead=fetch.ahead)
        if not fetch.future.done():
            fetch.future.set_result(data)

    @staticmethod
    async def _wait_for_budget(fetch: Fetch) -> None:
        timer = asyncio.get_running_loop().call_later(fetch.wait_s, fetch.urgent.set)
        try:
            await fetch.urgent.wait()
        finally:
            timer.cancel()

    async def _read_with_retries(self, fetch: Fetch) -> bytes:
        attempt = 1
        while True:
            try:
                data = await self._source.read(fetch.chunk, fetch.start_offset, fetch.length)
            except StorageUnavailableError as error:
                if attempt == self._config.fetch_attempts:
                    raise TierUnavailableError("tier2", f"{error} ({attempt} attempts)") from error
                pause_s = backoff_s(
                    self._random, attempt, self._config.fetch_backoff_s, BACKOFF_S_MAX
                )
                await asyncio.sleep(pause_s)
                attempt += 1
                continue
            if len(data) != fetch.length:
                raise DataCorruptionError(
                    f"object {fetch.chunk.object_name}",
                    f"{len(data)} bytes came where {fetch.length} were asked for",
                )
            return data

    def _finished(self, fetch: Fetch) -> None:
        fetches = self._in_flight[fetch.segment_id]
        fetches.remove(fetch)
        if not fetches:
            del self._in_flight[fetch.segment_id]
        self._bytes_in_flight -= fetch.length
        self._ahead_in_flight -= fetch.ahead
        name = fetch.chunk.object_name
        self._objects[name] -= 1
        if not self._objects[name]:
            del self._objects[name]
        if not fetch.future.done():
            # The task died of something that is our bug: its readers must hear of it.
            task = fetch.task
            assert task is not None
            error = None if task.cancelled() else task.exception()
            self._fail(fetch, error or ContainerStoppedError(self._metadata.container_id))
        if self._hungry and not self._closed:
            self._feed()

    @staticmethod
    def _fail(fetch: Fetch, error: BaseException) -> None:
        if not fetch.future.done():
            fetch.future.set_exception(error)
            # A read-ahead has nobody to hear of its failure: the reader that comes tries again.
            fetch.future.exception()
