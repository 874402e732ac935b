"""Readers and exactly-once writers: small sessions on one segment, bound to its id.

Bound to the id, not the name. When the name is deleted and created again, a session of the old
segment gets an error and never touches the new one's bytes.
"""

from __future__ import annotations

import asyncio
import uuid
from itertools import islice
from types import TracebackType
from typing import Any, Self

from segmentstore.arguments import checked_offset, running_loop
from segmentstore.container import SegmentContainer
from segmentstore.contracts import forks
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    EndOfSegmentError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentStoreError,
    WrongEventLoopError,
)
from segmentstore.contracts.metadata import SegmentMetadata

_FOLLOW_WAIT_S = 60.0
_SLICE = 256
"""Attributes that are given without a turn for anybody else on the loop: about 0.5 ms."""
_LAST_KEY = b"\xff" * 16


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
        self._segment_id = container.find(name).segment_id
        self._name = name
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
        _check_loop(self._loop, self._birth)
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
        _check_loop(self._loop, self._birth)
        wait = _FOLLOW_WAIT_S if self._follow else None
        while True:
            try:
                data = await self._container.read(self._segment_id, offset, self._chunk_bytes, wait)
            except EndOfSegmentError:
                return b""
            if data or not self._follow:
                return data


class SegmentWriter:
    """Exactly-once appends of one writer id to one segment.

    The number of the last event is an attribute of the segment, updated in the very operation that
    carries the bytes. So after any failure the writer opens a new session, asks
    `last_event_number`, and resends what is above it (or everything: what is not above it is
    acknowledged and dropped).

    That holds only while events commit without a gap, so a session ends with its first refusal.
    Every later append fails with the same error, and the writer opens a new one. Cancelling an
    append gives up waiting for it, not the append.
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
        self._name = name
        self._key = writer_id.bytes
        self._append_bytes_max = append_bytes_max
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._keeps = keeps
        segment = container.find(name)
        self._segment_id = segment.segment_id
        self.writer_id = writer_id
        last = segment.attributes.get(self._key)
        self.last_event_number = -1 if last is None else last
        """The highest event number the segment has from this writer, or that this session has sent;
        -1 for none.
        """
        self._refusal: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

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
        if running_loop() is not self._loop:
            _check_loop(self._loop, self._birth)
        number = self.last_event_number + 1 if event_number is None else event_number
        checked_offset("event_number", number)
        payload = checked_data(data, self._append_bytes_max)
        try:
            _living(self._container, self._segment_id, self._name)
            if self._refusal is not None:
                return failed_future(self._refusal)
            future = self._container.append(
                self._segment_id, payload, None, None, (self._key, number)
            )
        except SegmentStoreError as error:
            future = failed_future(error)
        if future.done() and not future.cancelled():
            self._refusal = future.exception()
        if self._refusal is None:
            self.last_event_number = max(self.last_event_number, number)
        return future


class AttributeIterator:
    """An async iterator over the attributes of a segment, (id, value), by id.

    See `SegmentStore.iterate_attributes`. It holds one slice, and everybody else on the loop has a
    turn between two.
    """

    def __init__(
        self,
        container: SegmentContainer,
        name: str,
        from_id: uuid.UUID | None,
        to_id: uuid.UUID | None,
        keeps: object,
    ) -> None:
        self._container = container
        self._name = name
        self._segment_id = container.find(name).segment_id
        self._start = b"" if from_id is None else from_id.bytes
        self._last = _LAST_KEY if to_id is None else to_id.bytes
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._keeps = keeps
        self._slice: list[tuple[uuid.UUID, int]] = []
        self._place = 0
        """Of the next one in the slice."""

    def __aiter__(self) -> AttributeIterator:
        return self

    async def __anext__(self) -> tuple[uuid.UUID, int]:
        _check_loop(self._loop, self._birth)
        if self._slice and self._place == len(self._slice):
            await asyncio.sleep(0)
        # Two who ask at once get one attribute each.
        if self._place == len(self._slice):
            items = self.fetch(self._slice[-1][0] if self._slice else None)
            if not items:
                raise StopAsyncIteration
            self._slice, self._place = items, 0
        item = self._slice[self._place]
        self._place += 1
        return item

    def fetch(self, behind: uuid.UUID | None) -> list[tuple[uuid.UUID, int]]:
        """The slice behind an attribute, of None the first; empty at the end.

        Moves nothing. O(slice + log attributes). Raises SegmentNotFoundError,
        ContainerStoppedError.
        """
        _check_loop(self._loop, self._birth)
        self._container.check_running()
        segment = _living(self._container, self._segment_id, self._name)
        start = self._start if behind is None else behind.bytes
        items = segment.attributes.items(start, exclusive=behind is not None)
        return [
            (uuid.UUID(bytes=key), value)
            for key, value in islice(items, _SLICE)
            if key <= self._last
        ]


def _living(container: SegmentContainer, segment_id: int, name: str) -> SegmentMetadata:
    """The segment of an id. Raises SegmentNotFoundError once it is deleted or merged away."""
    segment = container.segments.get(segment_id)
    if segment is None or segment.merged_into is not None:
        detail = f"the segment of id {segment_id} is deleted or merged away"
        raise SegmentNotFoundError(name, detail)
    return segment


def _check_loop(loop: asyncio.AbstractEventLoop, birth: forks.Birth) -> None:
    if running_loop() is not loop:
        birth.check()
        raise WrongEventLoopError


def failed_future(error: BaseException) -> asyncio.Future[Any]:
    """A future that reports a refusal to the caller, as every other outcome is reported.

    Raises it where no loop runs.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    future: asyncio.Future[Any] = loop.create_future()
    future.set_exception(error)
    return future


def snapshot(data: Buffer) -> Buffer:
    """Data that its owner cannot change any more; what cannot be copied is left for `checked_data`
    to refuse.
    """
    if isinstance(data, bytearray | memoryview):
        try:
            return bytes(data)
        except ValueError:
            return data
    return data


def checked_data(data: object, length_max: int) -> bytes:
    """The bytes of one append as an object that cannot change.

    Raises InvalidArgumentError, AppendTooLargeError.
    """
    if type(data) is not bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                "data", type(data).__name__, "an append takes bytes, bytearray or memoryview"
            )
        try:
            data = bytes(data)
        except ValueError as error:
            raise InvalidArgumentError("data", type(data).__name__, str(error)) from None
    if len(data) > length_max:
        raise AppendTooLargeError(len(data), length_max)
    return data
