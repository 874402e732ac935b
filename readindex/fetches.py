"""Fetches: requests to Tier 2 that are under way, each for all who want its bytes (loop).

A fetch belongs to no reader: readers attach to any fetch in flight whose range has their
offset, and a reader that leaves does not stop it. What has come is kept by FetchedExtents; readers
get it from the fetch itself, so they get on however small that bound is. Rules:

- fetches never overlap one another or what is held: their ranges are cut at both;
- at most `fetches_in_flight_max` requests are sent at a time, the others wait for their turn;
- a fetch that waits for the budget begins at once when it becomes urgent;
- errors reach the readers attached, and no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from readindex.config import ReadIndexConfig
from readindex.extent import Extent, SequentialReader
from readindex.fetched_extents import FetchedExtents
from readindex.segment_read_index import SegmentIndexes, index_of
from segmentstore.contracts.backoff import backoff_s
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError, StorageUnavailableError

if TYPE_CHECKING:
    from readindex.block_source import BlockSource, FetchWatch

BACKOFF_S_MAX = 30.0
"""Longest pause between two tries of a fetch."""


class Fetch:
    """One request: bytes [start_offset, end_offset) of a segment, all in one chunk."""

    __slots__ = (
        "ahead",
        "chunk",
        "end_offset",
        "future",
        "reader",
        "segment_id",
        "start_offset",
        "task",
        "urgent",
        "wait_s",
    )

    def __init__(
        self,
        segment_id: int,
        chunk: ChunkRecord,
        start_offset: int,
        end_offset: int,
        *,
        ahead: bool,
    ) -> None:
        self.segment_id = segment_id
        self.chunk = chunk
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.reader: SequentialReader | None = None
        """The sequential reader it is for, if it is for one."""
        self.ahead = ahead
        """It began before a reader asked for its bytes."""
        self.wait_s = 0.0
        """For the budget, before it may begin; unless `urgent`."""
        self.urgent = asyncio.Event()

    @property
    def length(self) -> int:
        """Bytes asked for."""
        return self.end_offset - self.start_offset

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)
            # A read-ahead has no caller to receive its failure: the reader that comes tries again.
            self.future.exception()


class Fetches:
    """Of one container. `on_ended()` is called when a fetch has ended, however it did."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: SegmentIndexes,
        fetched: FetchedExtents,
        source: BlockSource,
        config: ReadIndexConfig,
        runtime: Runtime,
        on_ended: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._fetched = fetched
        self._source = source
        self._config = config
        self._random = runtime.random
        self._on_ended = on_ended
        self._in_flight: dict[int, list[Fetch]] = {}
        self._objects: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(config.fetches_in_flight_max)
        self._closed = False
        self._watch: FetchWatch | None = None
        self.bytes_in_flight = 0
        self.ahead_in_flight = 0
        """How many of those in flight were begun ahead of their reader."""
        self.started = self.started_ahead = 0
        self.bytes_fetched = self.bytes_fetched_ahead = 0

    def __len__(self) -> int:
        return sum(map(len, self._in_flight.values()))

    def report_to(self, watch: FetchWatch) -> None:
        """Report each fetch that succeeds or fails."""
        self._watch = watch

    def object_in_use(self, name: str) -> bool:
        """True while a fetch from this object is in flight."""
        return name in self._objects

    # --- what is held or on its way ---

    def find(self, segment_id: int, offset: int) -> Fetch | None:
        """The fetch in flight that will bring the byte at `offset`."""
        for fetch in self._in_flight.get(segment_id, ()):
            if fetch.start_offset <= offset < fetch.end_offset and not fetch.future.done():
                return fetch
        return None

    def first_missing(self, segment_id: int, offset: int, limit: int) -> int:
        """The first place from `offset` on that is neither held nor on its way; `limit` if there is
        none before it.
        """
        index = self._indexes.get(segment_id)
        while offset < limit:
            held: Fetch | Extent | None = self.find(segment_id, offset)
            if held is None and index is not None:
                held = index.find(offset)
            if held is not None:
                offset = held.end_offset
            elif index is not None and index.in_tail_buffer(offset):
                return limit
            else:
                return offset
        return limit

    def gap_around(self, segment_id: int, offset: int, start: int, end: int) -> tuple[int, int]:
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

    # --- one fetch ---

    def start(
        self, segment_id: int, chunk: ChunkRecord, start: int, end: int, *, ahead: bool
    ) -> Fetch:
        """Begin a fetch in the next turn of the loop; until then its reader and wait may be set."""
        fetch = Fetch(segment_id, chunk, start, end, ahead=ahead)
        self._in_flight.setdefault(segment_id, []).append(fetch)
        self.bytes_in_flight += fetch.length
        self._objects[chunk.object_name] += 1
        self.started += 1
        if ahead:
            self.ahead_in_flight += 1
            self.started_ahead += 1
        fetch.task = own_task(self._run(fetch), name="read index fetch")
        fetch.task.add_done_callback(lambda _: self._ended(fetch))
        return fetch

    async def close(self) -> None:
        """Cancel what is in flight; readers attached get ContainerStoppedError."""
        self._closed = True
        tasks = []
        for fetch in [fetch for fetches in self._in_flight.values() for fetch in fetches]:
            fetch.fail(ContainerStoppedError(self._metadata.container_id))
            if fetch.task is not None:
                fetch.task.cancel()
                tasks.append(fetch.task)
        if tasks:
            await asyncio.wait(tasks)

    # --- inside ---

    async def _run(self, fetch: Fetch) -> None:
        try:
            if fetch.wait_s:
                await self._wait_for_budget(fetch)
            async with self._turns:
                data = await self._read_with_retries(fetch)
        except (ObjectStorageError, TierUnavailableError, DataCorruptionError) as error:
            if self._watch is not None:
                self._watch.failed(
                    fetch.segment_id, fetch.chunk, fetch.start_offset, fetch.end_offset, error
                )
            fetch.fail(error)
            return
        if self._watch is not None:
            self._watch.fetched(fetch.chunk, fetch.start_offset, fetch.end_offset)
        self.bytes_fetched += fetch.length
        if fetch.ahead:
            self.bytes_fetched_ahead += fetch.length
        segment = self._metadata.segments.get(fetch.segment_id)
        if segment is not None and segment.start_offset < fetch.end_offset:
            index = index_of(self._indexes, fetch.segment_id)
            self._fetched.insert(index, fetch.start_offset, data, fetch.reader, ahead=fetch.ahead)
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

    def _ended(self, fetch: Fetch) -> None:
        fetches = self._in_flight[fetch.segment_id]
        fetches.remove(fetch)
        if not fetches:
            del self._in_flight[fetch.segment_id]
        self.bytes_in_flight -= fetch.length
        self.ahead_in_flight -= fetch.ahead
        name = fetch.chunk.object_name
        self._objects[name] -= 1
        if not self._objects[name]:
            del self._objects[name]
        if not fetch.future.done():
            # The task died of something that is our bug: its readers must get the error.
            task = fetch.task
            assert task is not None
            error = None if task.cancelled() else task.exception()
            fetch.fail(error or ContainerStoppedError(self._metadata.container_id))
        if not self._closed:
            self._on_ended()
