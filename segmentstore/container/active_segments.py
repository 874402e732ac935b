"""ActiveSegments: which segments of a container are in memory; brings back those that are idle.

A task reads them from the catalog for all callers, many of them by one call; another one those for
which there is room already. Rules of this file:

- a call that finds a segment has it pinned, until it unpins it. Appends alone are queued without a
  pin: one that meets its segment idle in the queue comes back here (`defer`), and goes first when
  the segment is there again;
- appends that wait for their segment are queued in the order of their calls, in the turn of the
  loop in which the segment comes into memory. So none that comes later overtakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.frame_requests import REQUEST_BYTES, AppendRequest
from durablelog.metadata_needs import ChunkNeed, needs_in_replay
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import CreateOperation, Operation, segments_of
from durablelog.pending_segment import Event
from segmentstore.container.eviction import Eviction
from segmentstore.container.partial_segments import PartialSegments
from segmentstore.container.segment_loader import LOADED_AT_ONCE, NAMES_AT_ONCE, SegmentLoader
from segmentstore.container.segment_waiters import (
    AppendQueue,
    Finder,
    SegmentKey,
    Waiter,
    WaitingAppend,
    not_found,
)
from segmentstore.contracts.attributes import KeyedUpdate
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    SegmentStoreError,
    TierUnavailableError,
    TooManyActiveSegmentsError,
)
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.owned_tasks import own_task


@dataclass(frozen=True, slots=True)
class ActiveSegmentsStatistics:
    """Segments of one container in memory, since it was opened."""

    count: int
    """In memory now: those of names, and sources of merges that Tier 2 has not linked."""
    activations: int
    """Idle segments that came into memory."""
    evictions: int
    """Segments that left it."""
    waiting: int
    """Calls that wait for a segment now."""
    partial: int
    """In memory now without some of their chunks or attributes."""
    bytes: int
    """What metadata took in memory after the last checkpoint by reference, about; 0 before one."""
    pages_read: int
    """Pages of chunks that memory lacked, and the catalog had."""
    attributes_read: int
    """Attributes that memory lacked, whether the catalog had them or not."""


class ActiveSegments:
    """Of one container; everything on its event loop.

    `queue_bytes_max` bounds the bytes of appends that wait here. `on_failure(error)`: the container
    must stop. `partial` has what memory lacks of those that are active.
    """

    def __init__(
        self,
        updater: MetadataUpdater,
        catalog: MetadataCatalog,
        eviction: Eviction,
        partial: PartialSegments,
        queue_bytes_max: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._updater = updater
        self._metadata = updater.metadata
        self._loader = SegmentLoader(updater, catalog, self._came_into_memory)
        self.eviction = eviction
        self.partial = partial
        self._queue_bytes_max = queue_bytes_max
        self._on_failure = on_failure
        self.queue: AppendQueue
        """Set before the first append."""
        self.wanted: dict[SegmentKey, list[tuple[int, Waiter]]] = {}
        """With the number of the waiter, in the order in which they came."""
        self._several = asyncio.Lock()
        """Held while one call brings several segments into memory."""
        self._waiters = 0
        self._roomy: dict[SegmentKey, None] = {}
        """Those of the keys for which there is room: no task waits for it on their behalf."""
        self._bytes_waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._roomy_task: asyncio.Task[None] | None = None
        self._return_task: asyncio.Task[None] | None = None
        self._refusal: Callable[[], BaseException] | None = None
        """Set once calls are refused."""
        self._stopped = False

    # --- finding ----------------------------------------------------------------------------------

    async def find(self, key: SegmentKey) -> SegmentMetadata | None:
        """The segment, pinned: the caller unpins it; None if there is none.

        Raises TooManyActiveSegmentsError, TierUnavailableError, DataCorruptionError, and why the
        container has stopped.
        """
        segment = self._loader.in_memory(key)
        if segment is not None:
            self.eviction.pin(segment.segment_id)
            return segment
        return await self._load(key) if self._loader.may_be_idle(key) else None

    @asynccontextmanager
    async def found(self, key: SegmentKey) -> AsyncIterator[SegmentMetadata]:
        """The segment, in memory meanwhile. Raises as `find`, and SegmentNotFoundError."""
        segment = await self.find(key)
        if segment is None:
            raise not_found(key)
        try:
            yield segment
        finally:
            self.eviction.unpin(segment.segment_id)

    @asynccontextmanager
    async def several(self, names: Collection[str]) -> AsyncIterator[None]:
        """Entered while one call brings these segments into memory.

        One call at a time: several that each hold a segment and wait for room for another could
        wait for each other. The time that a call waits for its turn is of that for which it waits
        for room. Raises TooManyActiveSegmentsError.
        """
        begun = asyncio.get_running_loop().time()
        loader, eviction = self._loader, self.eviction
        async with self._several:
            idle = [
                name for name in names if not loader.in_memory(name) and loader.may_be_idle(name)
            ]
            missing = len(idle)
            if missing and eviction.lacks(missing):
                # Of a batch that is sent again most may be merged. What is not there needs no room.
                for first in range(0, len(idle), NAMES_AT_ONCE):
                    missing -= len(await loader.free_names(idle[first : first + NAMES_AT_ONCE]))
            if missing and eviction.lacks(missing):
                await eviction.make_room(min(missing, eviction.share(2)), whole=True, begun=begun)
            yield

    # Not a context manager: one would be a noticeable part of a creation.
    async def begin_creating(self, name: str) -> SegmentMetadata | None:
        """Make room for a new segment, and have it known whether its name is free: until
        `end_creating`, which gets what this returns. The segment that has the name, if any.

        Raises as `find`: nothing is to be ended then.
        """
        eviction = self.eviction
        if eviction.lacks(1):
            await eviction.make_room(1)
        eviction.reserve()
        eviction.creating[name] = eviction.creating.get(name, 0) + 1
        try:
            found = self._loader.in_memory(name)
            if found is not None:
                eviction.pin(found.segment_id)
            elif self._loader.may_be_idle(name):
                # It takes the place that is reserved.
                found = await self._load(name, roomy=True)
        except BaseException:
            self.end_creating(name, None)
            raise
        return found

    def end_creating(self, name: str, found: SegmentMetadata | None) -> None:
        """The segment is there, or was refused."""
        eviction = self.eviction
        if found is not None:
            eviction.unpin(found.segment_id)
        eviction.release()
        left = eviction.creating[name] - 1
        if left:
            eviction.creating[name] = left
        else:
            del eviction.creating[name]

    @asynccontextmanager
    async def held(self, ids: Iterable[int], chunks: Iterable[ChunkNeed]) -> AsyncIterator[None]:
        """Those of the segments that there are, in memory meanwhile, and these chunks of them. As
        `hold`, and patient.
        """
        pinned = await self.hold(ids, patient=True)
        try:
            async with self.partial.known(chunks):
                yield
        finally:
            self.release(pinned)

    async def hold(self, ids: Iterable[int], *, patient: bool) -> list[int]:
        """Pin those of the segments that there are, until they are released; their ids.

        For the engine's own operations. A patient one waits for room first, and does without in the
        end; one that makes room itself must not wait for it. Raises TierUnavailableError,
        DataCorruptionError.
        """
        left, pinned = set(ids), list[int]()
        try:
            if patient and self._metadata.idle:
                segments = self._metadata.segments
                # Their difference as sets would pass over all segments.
                await self._make_room_for([each for each in left if each not in segments])
            while left:
                there = left & self._metadata.segments.keys()
                for segment_id in there:
                    self.eviction.pin(segment_id)
                    pinned.append(segment_id)
                left = {each for each in left - there if self._loader.may_be_idle(each)}
                wanted = list(left)
                found = await self._load_all(wanted)
                pairs = zip(wanted, found, strict=True)
                left = {each for each, segment in pairs if segment is not None}
        except BaseException:
            self.release(pinned)
            raise
        return pinned

    def release(self, pinned: Iterable[int]) -> None:
        """End a `hold`."""
        for segment_id in pinned:
            self.eviction.unpin(segment_id)

    async def _make_room_for(self, ids: Collection[int]) -> None:
        missing = sum(map(self._loader.may_be_idle, ids))
        if missing and self.eviction.lacks(missing):
            with suppress(TooManyActiveSegmentsError):
                await self.eviction.make_room(min(missing, self.eviction.share(2)), whole=True)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """As `SegmentLoader.chunks_in`."""
        return await self._loader.chunks_in(names)

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        """As `SegmentLoader.names_of`."""
        return await self._loader.names_of(ids)

    def goes_first(self, segment_id: int) -> bool:
        """Whether an append to the segment waits here, though that is in memory. O(1)."""
        wanted, segment = self.wanted, self._metadata.segments[segment_id]
        return segment_id in wanted or segment.name in wanted

    def evicted(self, segment: SegmentMetadata) -> None:
        """The segment has left memory."""
        self._loader.touched(segment)

    def may_be(self, key: SegmentKey) -> bool:
        """Whether there may be such a segment: it is in memory, or perhaps idle. O(1)."""
        return self._loader.in_memory(key) is not None or self._loader.may_be_idle(key)

    async def _load(self, key: SegmentKey, *, roomy: bool = False) -> SegmentMetadata | None:
        finder = Finder(self.eviction)
        self._want(key, finder, roomy=roomy)
        try:
            return await finder.future
        except asyncio.CancelledError:
            found = finder.future.result() if _succeeded(finder.future) else None
            if found is not None:
                self.eviction.unpin(found.segment_id)
            raise

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self,
        key: SegmentKey,
        data: bytes,
        expected_offset: int | None,
        updates: Sequence[KeyedUpdate] | None,
        event: Event | None,
    ) -> asyncio.Future[int | None]:
        """An append whose segment is not in memory; its future."""
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if not self.may_be(key):
            future.set_exception(not_found(key))
            return future
        if self._bytes_waiting + len(data) > self._queue_bytes_max:
            detail = f"{self._queue_bytes_max} bytes of appends wait for idle segments already"
            future.set_exception(TierUnavailableError("tier1", f"{detail}; nothing was taken"))
            return future
        # An append by name has no id yet.
        segment_id = key if isinstance(key, int) else -1
        request = (segment_id, data, future, expected_offset, updates, event)
        self._take(key, request, deferred=False)
        return future

    def defer(self, request: AppendRequest) -> bool:
        """Take a queued append whose segment has become idle; False: there is no such segment.

        It was accepted when it was queued: it waits for no room.
        """
        if not self._loader.may_be_idle(request[0]):
            return False
        self._take(request[0], request, deferred=True)
        return True

    def _take(self, key: SegmentKey, request: AppendRequest, *, deferred: bool) -> None:
        self._count(len(request[1]) + REQUEST_BYTES)
        waiter = WaitingAppend(self.queue, key, request, self._append_ended, deferred=deferred)
        self._want(key, waiter, accepted=deferred, roomy=deferred)

    def _append_ended(self, size: int) -> None:
        self._count(-size - REQUEST_BYTES)

    def _count(self, count: int) -> None:
        self._bytes_waiting += count
        self.queue.room.held_elsewhere = self._bytes_waiting

    def statistics(self) -> ActiveSegmentsStatistics:
        """As of now. O(segments that are waited for)."""
        return ActiveSegmentsStatistics(
            len(self._metadata.segments),
            self._loader.activations,
            self.eviction.evictions,
            sum(map(len, self.wanted.values())),
            len(self._metadata.partial),
            self.partial.bytes_counted,
            self.partial.pages_read,
            self.partial.attributes_read,
        )

    # --- life -------------------------------------------------------------------------------------

    async def prepare(self, operations: Sequence[Operation]) -> None:
        """For replay: have in memory what the operations are about, before they are replayed.

        Raises TierUnavailableError, DataCorruptionError.
        """
        metadata = self._metadata
        if metadata.idle:
            await self._load_segments_of(operations)
        if metadata.partial:
            await self.partial.learn(needs_in_replay(metadata, operations))

    async def _load_segments_of(self, operations: Sequence[Operation]) -> None:
        metadata, newest = self._metadata, self._loader.newest_id
        wanted: dict[SegmentKey, None] = {}
        for operation in operations:
            if isinstance(operation, CreateOperation):
                if operation.name not in metadata.names:
                    wanted[operation.name] = None
            else:
                for segment_id in segments_of(operation):
                    # A younger one is being made by these operations.
                    if segment_id <= newest and segment_id not in metadata.segments:
                        wanted[segment_id] = None
        await self._load_all([key for key in wanted if self._loader.may_be_idle(key)])

    def start(self) -> None:
        """Behind a replay, which may have left more segments in memory than may be."""
        if self.eviction.lacks(0):
            self._return_task = own_task(
                self.eviction.return_to_bound(),
                name=f"segments above the bound {self._metadata.container_id}",
                on_failure=self._failed,
            )
        self.eviction.prepare()

    async def drain(self, refusal: Callable[[], BaseException]) -> None:
        """Refuse calls that have to wait from now on; return when no call waits any more."""
        self._refusal = refusal
        self.eviction.close()
        while (task := self._task or self._roomy_task) is not None:
            await asyncio.wait((task,))

    async def stop(self, refusal: Callable[[], BaseException]) -> None:
        """Read nothing more; all who wait get the refusal. Idempotent."""
        self._refusal, self._stopped = refusal, True
        self.eviction.close()
        await self.partial.stop(refusal)
        for task in (self._task, self._roomy_task, self._return_task):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        self._task = self._roomy_task = self._return_task = None
        self._fail(list(self.wanted), refusal())

    async def _load_all(self, keys: Collection[SegmentKey]) -> list[SegmentMetadata | None]:
        """As `SegmentLoader.load`, of however many keys. Raises what stands in the way."""
        every, result = list(keys), list[SegmentMetadata | None]()
        for begin in range(0, len(every), LOADED_AT_ONCE):
            for found in await self._loader.load(every[begin : begin + LOADED_AT_ONCE]):
                if isinstance(found, SegmentStoreError):
                    raise found
                result.append(found)
        return result

    # --- reading the catalog ----------------------------------------------------------------------

    def _want(
        self, key: SegmentKey, waiter: Waiter, *, accepted: bool = False, roomy: bool = False
    ) -> None:
        """`accepted`: the call was taken before, and is refused by the end of all alone."""
        if self._refusal is not None and (self._stopped or not accepted):
            waiter.fail(self._refusal())
            return
        self._waiters += 1
        self.wanted.setdefault(key, []).append((self._waiters, waiter))
        name = f"idle segments {self._metadata.container_id}"
        if roomy:
            self._roomy[key] = None
            if self._roomy_task is None:
                self._roomy_task = own_task(
                    self._run_roomy(), name=f"{name}, with room", on_failure=self._failed
                )
        elif self._task is None:
            self._task = own_task(self._run(), name=name, on_failure=self._failed)

    def _failed(self, error: BaseException) -> None:
        if not self._stopped:
            self._on_failure(error)

    async def _run(self) -> None:
        # Others of the same turn come into the first reading.
        await asyncio.sleep(0)
        while True:
            others = (key for key in self.wanted if key not in self._roomy)
            keys = list(islice(others, LOADED_AT_ONCE))
            if not keys:
                break
            try:
                if self.eviction.lacks(len(keys)):
                    keys = keys[: self._batch_max]
                    keys = keys[: await self.eviction.make_room(len(keys))]
            except TooManyActiveSegmentsError as error:
                self._fail([key for key in keys if key not in self._roomy], error)
            else:
                await self._answer(keys)
        self._task = None

    async def _run_roomy(self) -> None:
        await asyncio.sleep(0)
        while self._roomy:
            # Most are names of segments that are being created, and are free.
            keys = list(islice(self._roomy, NAMES_AT_ONCE))
            for name in await self._loader.free_names(keys):
                self._resolve(name, None)
            left = [key for key in keys if key in self.wanted]
            for begin in range(0, len(left), LOADED_AT_ONCE):
                await self._answer(left[begin : begin + LOADED_AT_ONCE])
            for key in keys:
                if key not in self.wanted:
                    del self._roomy[key]
        self._roomy_task = None

    async def _answer(self, keys: Sequence[SegmentKey]) -> None:
        for key, found in zip(keys, await self._loader.load(keys), strict=True):
            if key not in self.wanted:
                continue  # Most of them: who waited went on when it came into memory.
            if isinstance(found, SegmentStoreError):
                if any(waiter.deferred for _, waiter in self.wanted.get(key, ())):
                    # It was accepted, and so may be others of its writer behind it.
                    self._on_failure(found)
                self._fail([key], found)
            elif found is None or found is self._loader.in_memory(key):
                # Else it has left memory again, and is loaded once more.
                self._resolve(key, found)

    @property
    def _batch_max(self) -> int:
        """Keys that find room together where there is little."""
        return max(1, min(LOADED_AT_ONCE, self.eviction.share(8)))

    def _came_into_memory(self, segment: SegmentMetadata) -> None:
        self.eviction.recent.add(segment.segment_id)
        # In this turn: what waits goes before what finds it in memory.
        self._resolve(segment.segment_id, segment)

    def _resolve(self, key: SegmentKey, segment: SegmentMetadata | None) -> None:
        waiters = self.wanted.pop(key, [])
        if segment is not None:
            other = segment.segment_id if isinstance(key, str) else segment.name
            waiters += self.wanted.pop(other, [])
            waiters.sort(key=_number_of)
        # Those that were queued before the segment left go before all others, which may be written
        # as soon as they are queued.
        back: list[AppendRequest] = []
        for _, waiter in waiters:
            if waiter.deferred:
                waiter.resolve(segment, back)
        if back:
            self.queue.put_back(back, 0)
        for _, waiter in waiters:
            if not waiter.deferred:
                waiter.resolve(segment, back)

    def _fail(self, keys: Iterable[SegmentKey], error: BaseException) -> None:
        for key in keys:
            for _, waiter in self.wanted.pop(key, ()):
                waiter.fail(error)


_number_of = itemgetter(0)


def _succeeded(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
