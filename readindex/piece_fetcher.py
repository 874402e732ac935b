"""PieceFetcher: bytes from Tier 2 in aligned pieces, each fetched once for all who want it, with read-ahead (loop).

Theory of operation. A fetch belongs to the fetcher, not to the reader that asked: readers attach to any
fetch in flight whose range holds their offset, and a reader that goes away leaves it running. A piece
that lands is kept by Holdings; the readers get it from the fetch itself, so they get on however small
that bound is.

Read-ahead: the end of every piece read is remembered as a place where a sequential reader may come next.
When a read begins exactly there the reader is taken for sequential, and 1, then 2, then up to
`read_ahead_pieces_max` pieces behind it are asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from readindex.block_source import BlockSource
from readindex.config import ReadIndexConfig
from readindex.holdings import Holdings
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import ContainerStoppedError, DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError, StorageUnavailableError

_STREAMS_MAX = 256
"""Sequential readers remembered at one time, over all segments."""


class Fetch:
    """One piece on its way: bytes [start_offset, end_offset) of a segment."""

    __slots__ = ("chunk", "end_offset", "future", "segment_id", "start_offset", "task")

    def __init__(self, segment_id: int, chunk: ChunkRecord, start_offset: int, end_offset: int) -> None:
        self.segment_id = segment_id
        self.chunk = chunk
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None


class PieceFetcher:
    """Fetches for one container. Errors reach the readers attached, and nobody else."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        holdings: Holdings,
        source: BlockSource,
        config: ReadIndexConfig,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._holdings = holdings
        self._source = source
        self._config = config
        self._random = runtime.random
        self._in_flight: dict[int, list[Fetch]] = {}
        self._bytes_in_flight = 0
        self._objects: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(config.fetches_in_flight_max)
        self._streams: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._closed = False
        self.fetches = 0
        self.prefetches = 0

    @property
    def in_flight(self) -> int:
        """Pieces on their way."""
        return sum(map(len, self._in_flight.values()))

    def object_in_use(self, name: str) -> bool:
        """True while a fetch from this object is in flight."""
        return name in self._objects

    async def fetch(self, segment: SegmentMetadata, chunk: ChunkRecord, offset: int, max_length: int) -> bytes:
        """At most `max_length` bytes from `offset`, up to the end of the piece that holds it.

        Raises ObjectNotFoundError (look the chunk up again), TierUnavailableError, DataCorruptionError,
        ContainerStoppedError.
        """
        fetch = self._find(segment.segment_id, offset)
        if fetch is None:
            fetch = self._start(segment.segment_id, chunk, offset)
        # Asked for before this one has come, so that the pieces travel together.
        self.advance(segment, fetch.start_offset, fetch.end_offset, offset)
        data = await asyncio.shield(fetch.future)
        self._touch_landed(fetch, offset, max_length)
        begin = offset - fetch.start_offset
        return data if begin == 0 and max_length >= len(data) else data[begin : begin + max_length]

    def advance(self, segment: SegmentMetadata, start_offset: int, end_offset: int, offset: int) -> None:
        """Note a read that begins at `offset` within a fetched piece [start_offset, end_offset).

        Reads ahead if it is sequential. Never raises, never waits.
        """
        if self._closed:
            return
        key = (segment.segment_id, start_offset)
        depth = self._streams.pop(key, None) if offset == start_offset else None
        next_key = (segment.segment_id, end_offset)
        ahead = 0 if depth is None else min(max(1, 2 * depth), self._config.read_ahead_pieces_max)
        self._streams[next_key] = max(ahead, self._streams.get(next_key, 0))
        if len(self._streams) > _STREAMS_MAX:
            self._streams.popitem(last=False)
        if ahead:
            self._read_ahead(segment, end_offset, ahead)

    async def close(self) -> None:
        """Cancel what is in flight; readers attached get ContainerStoppedError."""
        self._closed = True
        tasks = []
        for fetch in [fetch for fetches in self._in_flight.values() for fetch in fetches]:
            if not fetch.future.done():
                self._fail(fetch, ContainerStoppedError(self._metadata.container_id))
            if fetch.task is not None:
                fetch.task.cancel()
                tasks.append(fetch.task)
        if tasks:
            await asyncio.wait(tasks)

    def _find(self, segment_id: int, offset: int) -> Fetch | None:
        for fetch in self._in_flight.get(segment_id, ()):
            if fetch.start_offset <= offset < fetch.end_offset and not fetch.future.done():
                return fetch
        return None

    def _piece(self, chunk: ChunkRecord, offset: int) -> tuple[int, int]:
        piece_bytes = self._config.piece_bytes
        start = offset - (offset - chunk.start_offset) % piece_bytes
        return start, min(start + piece_bytes, chunk.end_offset)

    def _start(self, segment_id: int, chunk: ChunkRecord, offset: int) -> Fetch:
        start, end = self._piece(chunk, offset)
        fetch = Fetch(segment_id, chunk, start, end)
        self._in_flight.setdefault(segment_id, []).append(fetch)
        self._bytes_in_flight += end - start
        self._objects[chunk.object_name] += 1
        self.fetches += 1
        fetch.task = asyncio.create_task(self._run(fetch), name="read index fetch")
        fetch.task.add_done_callback(lambda _: self._finished(fetch))
        return fetch

    async def _run(self, fetch: Fetch) -> None:
        try:
            async with self._turns:
                data = await self._read_with_retries(fetch)
        except (ObjectStorageError, TierUnavailableError, DataCorruptionError) as error:
            self._fail(fetch, error)
            return
        segment = self._metadata.segments.get(fetch.segment_id)
        if segment is not None and segment.start_offset < fetch.end_offset:
            self._holdings.insert_fetched(self._holdings.index_of(fetch.segment_id), fetch.start_offset, data)
        if not fetch.future.done():
            fetch.future.set_result(data)

    async def _read_with_retries(self, fetch: Fetch) -> bytes:
        length = fetch.end_offset - fetch.start_offset
        attempt = 1
        while True:
            try:
                data = await self._source.read(fetch.chunk, fetch.start_offset, length)
            except StorageUnavailableError as error:
                if attempt == self._config.fetch_attempts:
                    raise TierUnavailableError("tier2", f"{error} ({attempt} attempts)") from error
                pause = self._config.fetch_backoff_s * 2 ** (attempt - 1)
                await asyncio.sleep(pause * (0.5 + self._random.random()))
                attempt += 1
                continue
            if len(data) != length:
                raise DataCorruptionError(
                    f"object {fetch.chunk.object_name}", f"{len(data)} bytes came where {length} were asked for"
                )
            return data

    def _finished(self, fetch: Fetch) -> None:
        fetches = self._in_flight[fetch.segment_id]
        fetches.remove(fetch)
        if not fetches:
            del self._in_flight[fetch.segment_id]
        self._bytes_in_flight -= fetch.end_offset - fetch.start_offset
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

    @staticmethod
    def _fail(fetch: Fetch, error: BaseException) -> None:
        if not fetch.future.done():
            fetch.future.set_exception(error)
            # A read-ahead has nobody to hear of its failure: the reader that comes tries again.
            fetch.future.exception()

    def _touch_landed(self, fetch: Fetch, offset: int, max_length: int) -> None:
        index = self._holdings.indexes.get(fetch.segment_id)
        extent = None if index is None else index.find(offset)
        if extent is not None:
            self._holdings.touch_if_fetched(extent, offset, offset + max_length)

    def _read_ahead(self, segment: SegmentMetadata, offset: int, pieces: int) -> None:
        index = self._holdings.indexes.get(segment.segment_id)
        for _ in range(pieces):
            chunk = segment.find_chunk(offset)
            if chunk is None:
                return
            start, end = self._piece(chunk, offset)
            # What is fetched ahead may fill half of the stock: never what others wait to read.
            if self._bytes_in_flight + end - start > self._config.fetched_bytes_max // 2:
                return
            there = index is not None and index.covers(offset)
            if not there and self._find(segment.segment_id, offset) is None:
                self.prefetches += 1
                self._start(segment.segment_id, chunk, offset)
            offset = end
