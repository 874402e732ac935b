"""Readers and exactly-once writers: small sessions on one segment, bound to its id.

Bound to the id, not the name. When the name is deleted and created again, a session of the old
segment gets an error and never touches the new one's bytes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from threading import get_ident
from types import TracebackType
from typing import Self

from durablelog.pending_segment import EventSession
from segmentstore.arguments import (
    OFFSET_MAX,
    check_loop,
    checked_data,
    checked_offset,
    failed_future,
)
from segmentstore.container import SegmentContainer
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import AttributeKey, next_key
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    EndOfSegmentError,
    SegmentNotFoundError,
    SegmentStoreError,
    WriterNotOpenError,
)
from segmentstore.contracts.metadata import SegmentMetadata

_FOLLOW_WAIT_S = 60.0
_SLICE = 256
"""Attributes that are given without a turn for other tasks of the loop: about 0.5 ms."""
_LAST_KEY = b"\xff" * 16


class BoundSegment:
    """The segment of a session: found by its name, once, and known by its id from then on."""

    def __init__(self, container: SegmentContainer, name: str) -> None:
        """Raises SegmentNotFoundError if there is no such segment for sure."""
        self._container = container
        self._name = name
        segment = container.peek(name)
        self.id = segment.segment_id if segment is not None else None
        """None: it is idle, or there is none, and no call has waited for it yet."""

    @asynccontextmanager
    async def segment(self) -> AsyncIterator[SegmentMetadata]:
        """The segment, in memory meanwhile. Raises as `SegmentContainer.segment`."""
        async with AsyncExitStack() as stack:
            key = self._name if self.id is None else self.id
            try:
                segment = await stack.enter_async_context(self._container.segment(key))
            except SegmentNotFoundError:
                raise self.missing() from None
            self.id = segment.segment_id
            if segment.merged_into is not None:
                raise self.missing()
            yield segment

    async def attributes_from(
        self, segment: SegmentMetadata, start: AttributeKey
    ) -> tuple[list[tuple[AttributeKey, int]], AttributeKey | None]:
        """A slice of the segment's attributes, as `PartialSegments.attributes_from`."""
        return await self._container.attributes_from(segment, start, _SLICE)

    def living(self) -> int:
        """The id of a segment that was found.

        Raises SegmentNotFoundError once it is deleted or merged away.
        """
        segment_id = self.id
        assert segment_id is not None
        segment = self._container.segments.get(segment_id)
        if segment is None:
            if not self._container.may_be(segment_id):
                raise self.missing()
        elif segment.merged_into is not None:
            raise self.missing()
        return segment_id

    def missing(self) -> SegmentNotFoundError:
        """What a call gets without it."""
        if self.id is None:
            return SegmentNotFoundError(self._name)
        detail = f"the segment of id {self.id} is deleted or merged away"
        return SegmentNotFoundError(self._name, detail)


class SegmentReader:
    """An async iterator over a segment's bytes, in chunks as they come to hand.

    `offset` is where the next chunk begins. Ends at the end of a sealed segment; without `follow`
    also at the tail. Raises SegmentTruncatedError when truncation has passed it,
    SegmentNotFoundError when the segment is deleted or merged away.
    """

    def __init__(
        self,
        container: SegmentContainer,
        name: str,
        offset: int,
        chunk_bytes: int,
        *,
        follow: bool,
        keeps: object,
    ) -> None:
        self._container = container
        self._bound = BoundSegment(container, name)
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._chunk_bytes = chunk_bytes
        self._follow = follow
        # The store is closed when it is not used: a holder of a session uses it.
        self._keeps = keeps
        self.offset = offset
        self._turn = asyncio.Lock()
        """Two who ask at once get one chunk each, in order, and not the same one."""

    def __aiter__(self) -> SegmentReader:
        return self

    async def __anext__(self) -> bytes:
        check_loop(self._loop, self._birth)
        async with self._turn:
            data = await self.fetch(self.offset)
            if not data:
                raise StopAsyncIteration
            # Nothing is awaited from here on: a caller that is cancelled before finds the offset
            # unmoved.
            self.offset += len(data)
            return data

    async def fetch(self, offset: int) -> bytes:
        """The chunk that begins at an offset; b"" at the end. Moves nothing."""
        check_loop(self._loop, self._birth)
        wait = _FOLLOW_WAIT_S if self._follow else None
        while True:
            try:
                data = await self._read(offset, wait)
            except EndOfSegmentError:
                return b""
            if data or not self._follow:
                return data

    async def _read(self, offset: int, wait: float | None) -> bytes:
        bound = self._bound
        if bound.id is None:
            async with bound.segment():
                assert bound.id is not None
        return await self._container.read(bound.id, offset, self._chunk_bytes, wait)


class SegmentWriter:
    """Exactly-once appends of one writer id to one segment.

    The number of the last event is an attribute of the segment, updated in the very operation that
    carries the bytes. So after any failure the writer opens a new session, asks
    `last_event_number`, and resends what is above it (or everything: what is not above it is
    acknowledged and dropped).

    That holds only while events commit without a gap, so a session ends with its first refusal.
    Every later append fails with the same error, and the writer opens a new one. Cancelling an
    append gives up waiting for it, not the append.

    Enter it by `async with`, or `await open()`: that brings an idle segment into memory, and of one
    with many writers what it has of this one. Where that is needed, a session that was not entered
    raises WriterNotOpenError.
    """

    def __init__(
        self,
        container: SegmentContainer,
        name: str,
        writer_id: uuid.UUID,
        append_bytes_max: int,
        keeps: object,
    ) -> None:
        self._container = container
        self._bound = BoundSegment(container, name)
        self._key = writer_id.bytes
        self._append_bytes_max = append_bytes_max
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._birth = forks.Birth()
        self._keeps = keeps
        self.writer_id = writer_id
        self._last: int | None = None
        self._session = EventSession()
        """Has the refusal of an event that was queued: it holds for all behind that."""
        self._refusal: BaseException | None = None
        """Of an event that was not queued: those before it go on."""
        segment = container.peek(name)
        if segment is not None and segment.attributes.knows(self._key):
            last = segment.attributes.get(self._key)
            self._last = -1 if last is None else last

    async def open(self) -> Self:
        """Have the segment in memory, and find the writer's last event. Idempotent.

        Raises SegmentNotFoundError, TooManyActiveSegmentsError, TierUnavailableError,
        DataCorruptionError.
        """
        check_loop(self._loop, self._birth)
        if self._last is None:
            async with self._bound.segment() as segment:
                found = await self._container.attributes(segment, (self._key,))
            # Another call may have opened it meanwhile, and events may have been sent since.
            if self._last is None:
                self._last = found.get(self._key, -1)
        return self

    @property
    def last_event_number(self) -> int:
        """The highest event number the segment has from this writer, or that this session has sent;
        -1 for none. Raises WriterNotOpenError.
        """
        if self._last is None:
            raise WriterNotOpenError
        return self._last

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to release: what is in flight stays in flight."""

    def append(self, data: Buffer, event_number: int | None = None) -> asyncio.Future[int | None]:
        """Append one event, enqueued when called; await it for the acknowledgement.

        `event_number` defaults to the last + 1 and may skip numbers. Gives the event's offset, or
        None if its number is not above the last one the segment has: it was there already and was
        dropped. A malformed call raises at once, so that no later event of a pipeline goes in
        before the caller knows.
        """
        # As in `BlockWriter.append`.
        if (
            get_ident() != self._thread
            or self._birth.generation != forks.generation
            or not self._loop.is_running()
        ):
            check_loop(self._loop, self._birth)
            self._thread = get_ident()
        last = self._last
        if last is None:
            raise WriterNotOpenError
        number = last + 1 if event_number is None else event_number
        if event_number is not None or number > OFFSET_MAX:
            checked_offset("event_number", number)
        payload = data
        if type(payload) is not bytes or len(payload) > self._append_bytes_max:
            payload = checked_data(data, self._append_bytes_max)
        refusal = self._refusal or self._session.refusal
        if refusal is not None:
            return failed_future(refusal)
        try:
            segment_id = self._bound.living()
            event = (self._key, number, self._session)
            future = self._container.append(segment_id, payload, None, None, event)
        except SegmentStoreError as error:
            future = failed_future(error)
        if future.done() and not future.cancelled():
            self._refusal = future.exception()
        if self._refusal is None and number > last:
            self._last = number
        return future


class AttributeIterator:
    """An async iterator over the attributes of a segment, (id, value), by id.

    See `SegmentStore.iterate_attributes`. It holds one slice, and other tasks of the loop have a
    turn between two. Tasks that share it get each attribute once.
    """

    def __init__(
        self,
        container: SegmentContainer,
        name: str,
        from_id: uuid.UUID | None,
        to_id: uuid.UUID | None,
        keeps: object,
    ) -> None:
        self._bound = BoundSegment(container, name)
        self._start = bytes(16) if from_id is None else from_id.bytes
        self._last = _LAST_KEY if to_id is None else to_id.bytes
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._keeps = keeps
        self._slice: list[tuple[uuid.UUID, int]] = []
        self._place = 0
        """Of the next one in the slice."""
        self._turn = asyncio.Lock()
        """Of tasks that ask at once, one gets the next slice."""

    def __aiter__(self) -> AttributeIterator:
        return self

    async def __anext__(self) -> tuple[uuid.UUID, int]:
        check_loop(self._loop, self._birth)
        if self._place == len(self._slice):
            async with self._turn:
                # Another task may have got it meanwhile.
                if self._place == len(self._slice):
                    await self._advance()
        # Nothing is awaited from there to here: each task gets an attribute of its own.
        item = self._slice[self._place]
        self._place += 1
        return item

    async def _advance(self) -> None:
        behind: uuid.UUID | None = None
        if self._slice:
            behind = self._slice[-1][0]
            await asyncio.sleep(0)
        items = await self.fetch(behind)
        if not items:
            raise StopAsyncIteration
        self._slice, self._place = items, 0

    async def fetch(self, behind: uuid.UUID | None) -> list[tuple[uuid.UUID, int]]:
        """The slice behind an attribute, of None the first; empty at the end.

        Moves nothing. O(slice + log attributes). Raises SegmentNotFoundError,
        ContainerStoppedError, and as `SegmentWriter.open`.
        """
        check_loop(self._loop, self._birth)
        start: AttributeKey | None = self._start if behind is None else next_key(behind.bytes)
        async with self._bound.segment() as segment:
            while start is not None and start <= self._last:
                items, last = await self._bound.attributes_from(segment, start)
                found = [(uuid.UUID(bytes=key), value) for key, value in items if key <= self._last]
                if found:
                    return found
                # All of this part were removed, and the catalog does not know it yet.
                start = None if last is None else next_key(last)
        return []
