"""SegmentCalls: what a container does for callers, about one segment or several.

An idle segment comes into memory for a call, and stays there as long as that lasts.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import TYPE_CHECKING, Final, cast

from durablelog import chunk_slices
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.metadata_needs import AttributeNeed, ChunkNeed, needs_of
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_processor import OperationProcessor
from durablelog.operations import (
    CreateOperation,
    MergeOperation,
    Operation,
    SealOperation,
    UpdateAttributesOperation,
)
from durablelog.pending_segment import Event
from readindex.read_index import ReadIndex
from segmentstore.container.active_segments import ActiveSegments
from segmentstore.container.container_state import ContainerState
from segmentstore.container.eviction import Eviction
from segmentstore.container.partial_segments import PartialSegments
from segmentstore.container.segment_scan import SegmentScan
from segmentstore.container.segment_waiters import SegmentKey
from segmentstore.contracts.attributes import AttributeKey, KeyedUpdate
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.segments import Merged
from segmentstore.contracts.waiting import outlast

if TYPE_CHECKING:
    from segmentstore.contracts.reports import BlockEntry

_RUNNING: Final = ContainerState.RUNNING
"""To find a member of an enumeration takes as long as the rest of the check."""


class SegmentCalls(ABC):
    """The calls of one container; everything on its event loop.

    They raise ContainerStoppedError or NotPrimaryError unless the container runs.
    """

    metadata: ContainerMetadata
    """The committed metadata, without the idle segments; read only."""
    segments: Mapping[int, SegmentMetadata]
    """The active segments by id, as committed. A live view."""
    segment_ids: Mapping[str, int]
    """Ids of the active segments that have a name: not merged, not deleted. A live view."""
    state: ContainerState
    bytes_read: int = 0
    """Given to readers since the start."""
    _processor: OperationProcessor | None
    """None: it does not run, or serves reads alone."""
    _active: ActiveSegments
    _partial: PartialSegments
    _eviction: Eviction
    _read_index: ReadIndex
    _updater: MetadataUpdater
    _catalog: MetadataCatalog
    container_id: int
    _check_primary: Callable[[], Awaitable[object]]
    """Raises NotPrimaryError once another owner has opened the log."""
    _confirming: asyncio.Task[None] | None
    """While it is not known whether another owner has opened the log."""

    @abstractmethod
    def check_running(self) -> None:
        """Raise ContainerStoppedError or NotPrimaryError unless the container serves."""

    @abstractmethod
    def _running(self) -> OperationProcessor:
        """The processor. Raises as `check_running`."""

    def peek(self, name: str) -> SegmentMetadata | None:
        """The segment of this name if it is in memory; None if it may be idle.

        Raises SegmentNotFoundError if there is none for sure.
        """
        segment_id = self.segment_ids.get(name)
        if segment_id is not None:
            return self.segments[segment_id]
        if not self._active.may_be(name):
            raise SegmentNotFoundError(name)
        return None

    def may_be(self, key: SegmentKey) -> bool:
        """Whether there may be a segment of this id, or name: it is in memory, or perhaps idle."""
        return self._active.may_be(key)

    def segment(self, key: SegmentKey) -> AbstractAsyncContextManager[SegmentMetadata]:
        """The segment of a name or an id, in memory meanwhile.

        Entering it may read the catalog, and wait for room. Raises SegmentNotFoundError,
        TooManyActiveSegmentsError, TierUnavailableError, DataCorruptionError.
        """
        self.check_running()
        return self._active.found(key) if self._confirming is None else self._found_later(key)

    @asynccontextmanager
    async def _found_later(self, key: SegmentKey) -> AsyncGenerator[SegmentMetadata, None]:
        await self._confirmed()
        async with self._active.found(key) as segment:
            yield segment

    def confirm_owner(self) -> None:
        """Have it checked now that no other owner has opened the log. Reads wait for that: another
        one may have appended more.

        One that has been fenced stops. While that is unknown, the container goes on as before.
        """
        if self._confirming is None and self.state is ContainerState.RUNNING:
            self._confirming = own_task(self._confirm(), name=f"confirm-{self.container_id}")

    async def _confirm(self) -> None:
        try:
            with suppress(SegmentStoreError):
                await self._check_primary()
        finally:
            self._confirming = None

    async def _stop_confirming(self) -> None:
        if (confirming := self._confirming) is not None:
            confirming.cancel()
            await outlast(confirming)

    async def _confirmed(self) -> None:
        """Return when it is known that no other owner has opened the log. Raises as
        `check_running`.
        """
        if self._confirming is not None:
            await asyncio.wait((self._confirming,))
        self.check_running()

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """As `recovery.open_container.OpenContainer`."""
        return self._active.held(ids, chunks)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """As `recovery.open_container.OpenContainer`."""
        return await self._active.chunks_in(names)

    def scan(self, prefix: str) -> SegmentScan:
        """The segments whose names begin with `prefix` now, active and idle. O(active names)."""
        return SegmentScan(
            self.metadata, self._updater.changes, self._catalog, prefix, self.check_running
        )

    def list_blocks(self, name: str | None) -> AsyncGenerator[BlockEntry, None]:
        """As `BlockListing.blocks`."""
        # Not at the top: listings alone need it.
        from segmentstore.container.block_listing import BlockListing  # noqa: PLC0415

        changes, running = self._updater.changes, self.check_running
        return BlockListing(self.metadata, changes, self._catalog, self.scan, running).blocks(name)

    def append(
        self,
        key: SegmentKey,
        data: bytes,
        expected_offset: int | None = None,
        updates: Sequence[KeyedUpdate] | None = None,
        event: Event | None = None,
    ) -> asyncio.Future[int | None]:
        """Enqueue an append; the future gives its offset once durable (None for a repeated
        event).

        Appends to one segment take effect in the order of the calls, by its id or its name.
        """
        # Not `_running`: its call would be a noticeable part of an append.
        processor = self._processor
        if processor is None or self.state is not _RUNNING:
            processor = self._running()
        segment_id = self.segment_ids.get(key)  # type: ignore[arg-type]
        if segment_id is None and isinstance(key, int) and key in self.segments:
            segment_id = key
        if segment_id is None or (self._active.wanted and self._active.goes_first(segment_id)):
            return self._active.append(key, data, expected_offset, updates, event)
        return processor.append(segment_id, data, expected_offset, updates, event)

    def room(self, size: int) -> asyncio.Future[None] | None:
        """As `QueueRoom.request`; None also where the append is refused for another reason."""
        processor = self._processor
        if processor is None or self.state is not _RUNNING:
            return None
        return processor.room.request(size)

    async def read(
        self, key: SegmentKey, offset: int, length_max: int, wait: float | None
    ) -> bytes:
        """As `ReadIndex.read`, of an idle segment too. A read that waits at the tail keeps no
        segment in memory.
        """
        if self._confirming is not None:
            await self._confirmed()
        self.check_running()
        segment_id = self.segment_ids.get(key) if isinstance(key, str) else key
        if segment_id is None or segment_id not in self.segments:
            async with self._active.found(key) as segment:
                segment_id = segment.segment_id
                try:
                    data = await self._read_index.read(segment_id, offset, length_max)
                except ContainerStoppedError:
                    self.check_running()  # It says why.
                    raise
        else:
            # As `found`, for a third of its cost.
            self._eviction.pin(segment_id)
            try:
                data = await self._read_index.read(segment_id, offset, length_max)
            except ContainerStoppedError:
                self.check_running()  # It says why.
                raise
            finally:
                self._eviction.unpin(segment_id)
        if not data and wait:
            # In the turn in which the end was seen: no change passes unseen.
            return await self._read_later(segment_id, offset, length_max, wait)
        self.bytes_read += len(data)
        return data

    async def _read_later(
        self, segment_id: int, offset: int, length_max: int, wait: float
    ) -> bytes:
        """The bytes that come behind the end within `wait` seconds; the segment may leave memory
        meanwhile.
        """
        name = self.segments[segment_id].name
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while (left := deadline - loop.time()) > 0:
            if not await self._read_index.changed(segment_id, left):
                break
            try:
                data = await self.read(segment_id, offset, length_max, None)
            except SegmentNotFoundError:
                detail = "it was deleted or merged away meanwhile"
                raise SegmentNotFoundError(name, detail) from None
            if data:
                return data
        return b""

    async def read_held(self, segment_id: int, offset: int, length_max: int) -> bytes:
        """As `ReadIndex.read_held`; nothing of an idle segment is in memory."""
        if self._confirming is not None:
            await self._confirmed()
        self.check_running()
        if segment_id not in self.segments:
            return b""
        self._eviction.pin(segment_id)
        try:
            data = await self._read_index.read_held(segment_id, offset, length_max)
            self.bytes_read += len(data)
            return data
        finally:
            self._eviction.unpin(segment_id)

    async def create_segment(self, name: str, updates: Sequence[KeyedUpdate]) -> SegmentMetadata:
        """Make an empty segment.

        Raises SegmentExistsError, BadAttributeUpdateError, TooManyAttributesError.
        """
        processor = self._running()
        found = await self._active.begin_creating(name)
        try:
            segment_id = await processor.submit(CreateOperation(name, updates=updates))
            segment = self.segments.get(cast("int", segment_id))
        finally:
            self._active.end_creating(name, found)
        self._eviction.prepare()
        if segment is None:
            raise SegmentNotFoundError(name, "it was deleted at once")
        return segment

    async def seal(self, name: str) -> int:
        """Allow no more appends; give the final length."""
        async with self.segment(name) as segment:
            return cast("int", await self._running().submit(SealOperation(segment.segment_id)))

    async def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`. Raises BadOffsetError."""
        async with self.segment(name) as segment:
            merging = self._updater.is_merging(segment.segment_id)
            operation = chunk_slices.truncation(self.metadata, segment, offset, merging=merging)
            await self._submit(operation)

    async def merge(self, target: str, source: str, updates: Sequence[KeyedUpdate]) -> Merged:
        """Append the source to the target and delete it."""
        async with AsyncExitStack() as stack:
            async with self._room_for_several(target, source):
                its_target = await stack.enter_async_context(self.segment(target))
                its_source = await stack.enter_async_context(self.segment(source))
            ids = (its_target.segment_id, its_source.segment_id)
            operation = MergeOperation(*ids, updates=updates)
            await self._submit(operation)
            return Merged(operation.offset, operation.offset + operation.length)

    def _room_for_several(self, *names: str) -> AbstractAsyncContextManager[object]:
        """As `ActiveSegments.several`. A call whose segments are all in memory waits for none."""
        if all(name in self.segment_ids for name in names):
            return nullcontext()
        return self._active.several(names)

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """As `SegmentStore.merge_batch`. All segments of one part are in memory together."""
        active_max = self._eviction.active_max
        part = len(sources) if active_max is None else max(1, active_max // 2)
        lengths = await self._merge_together(target, sources[:part])
        for first in range(part, len(sources), part):
            lengths += await self._merge_together(target, sources[first : first + part])
        return lengths

    async def _merge_together(self, target: str, sources: Sequence[str]) -> list[int]:
        async with AsyncExitStack() as stack:
            # None: it is not there, and was merged before.
            operations: list[MergeOperation | None] = []
            last: MergeOperation | None = None
            async with self._room_for_several(target, *sources):
                into = await stack.enter_async_context(self.segment(target))
                for name in sources:
                    try:
                        source = await stack.enter_async_context(self.segment(name))
                    except SegmentNotFoundError:
                        operations.append(None)
                    else:
                        last = MergeOperation(into.segment_id, source.segment_id, before=last)
                        operations.append(last)
            there = [operation for operation in operations if operation is not None]
            if self.metadata.partial:
                needs = (need for operation in there for need in needs_of(operation))
                await stack.enter_async_context(self._partial.known(needs))
            await self._submit_batch(there, into)
            return _lengths(operations, into.length)

    async def _submit_batch(
        self, operations: Sequence[MergeOperation], target: SegmentMetadata
    ) -> None:
        """Have merges into one target committed; those whose source is not there any more stay
        without a sequence number.
        """
        processor = self._running()
        # Queued without a break, and cancelled together: none goes in behind one that does not.
        futures: list[asyncio.Future[object]] = []
        for operation in operations:
            futures.append(processor.submit(operation))
            if futures[-1].done():
                break  # There is no room for it, or the container stops.
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, SegmentNotFoundError):
                raise error
            if error.name in (target.name, f"#{target.segment_id}"):
                raise SegmentNotFoundError(target.name)
        if errors:
            # Another call has them merged, and that may be on its way.
            await processor.settled()

    async def delete(self, name: str) -> None:
        """Remove the segment and all its bytes."""
        async with self.segment(name) as segment:
            merging = self._updater.is_merging(segment.segment_id)
            await self._submit(chunk_slices.deletion(self.metadata, segment, merging=merging))

    async def update_attributes(self, name: str, updates: Sequence[KeyedUpdate]) -> None:
        """Update attributes, all or none.

        Raises BadAttributeUpdateError, TooManyAttributesError.
        """
        async with self.segment(name) as segment:
            await self._submit(UpdateAttributesOperation(segment.segment_id, updates=updates))

    async def attributes(
        self, segment: SegmentMetadata, keys: Sequence[AttributeKey]
    ) -> dict[AttributeKey, int]:
        """Those of the attributes that a segment in memory has. O(keys).

        Raises SegmentNotFoundError if it is deleted or merged away meanwhile, TierUnavailableError,
        DataCorruptionError.
        """
        await self._partial.learn(AttributeNeed(segment.segment_id, key) for key in keys)
        self._partial.check_there(segment)
        found = ((key, segment.attributes.get(key)) for key in keys)
        return {key: value for key, value in found if value is not None}

    async def attributes_from(
        self, segment: SegmentMetadata, start: AttributeKey, limit: int
    ) -> tuple[list[tuple[AttributeKey, int]], AttributeKey | None]:
        """As `PartialSegments.attributes_from`."""
        return await self._partial.attributes_from(segment, start, limit)

    async def _submit(self, operation: Operation) -> object:
        """Have an operation committed. What it needs of long segments is read before it is queued,
        so that nothing behind it waits for that.
        """
        processor = self._running()
        if not self.metadata.partial:
            return await processor.submit(operation)
        async with self._partial.known(needs_of(operation)):
            return await self._running().submit(operation)


def _lengths(operations: Iterable[MergeOperation | None], length: int) -> list[int]:
    """The target's length behind each merge; `length` is the one behind the last.

    What was merged before adds nothing.
    """
    lengths: list[int] = []
    for operation in reversed(list(operations)):
        if operation is not None and operation.sequence_number:
            lengths.append(operation.offset + operation.length)
            length = operation.offset
        else:
            lengths.append(length)
    return lengths[::-1]
