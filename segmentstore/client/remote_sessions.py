"""Readers, exactly-once writers and iterators of a store in another process.

As those of an embedded store, they are bound to the id of their segment.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from segmentstore.arguments import check_loop, checked_data, checked_offset, failed_future
from segmentstore.client.client_connection import ClientConnection
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import next_key
from segmentstore.contracts.errors import (
    EndOfSegmentError,
    SegmentStoreError,
    WriterNotOpenError,
)
from segmentstore.wire.store_commands import (
    ANY_SEGMENT,
    CloseWriter,
    NumbersGiven,
    OpenWriter,
)

FOLLOW_WAIT_S: Final = 60.0
CHUNK_BYTES: Final = 1 << 20
_LAST_KEY: Final = b"\xff" * 16
SegmentIdOf = Callable[[str], Awaitable[int]]
ReadBytesOf = Callable[[str, int, int, int, float | None], Awaitable[bytes]]
"""Of a segment by name and id: offset, length, seconds to wait for some."""
AttributesOf = Callable[[str, int, bytes, bytes], Awaitable[list[tuple[uuid.UUID, int]]]]
"""Of a segment by name and id: from one attribute to another, a slice of these."""


class _Session:
    """What is bound to one segment of a remote store."""

    def __init__(self, name: str, id_of: SegmentIdOf, keeps: object) -> None:
        self._name = name
        self._id_of = id_of
        self._id = ANY_SEGMENT
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        # The store is closed when it is not used: a holder of a session uses it.
        self._keeps = keeps

    def _check_loop(self) -> None:
        check_loop(self._loop, self._birth)

    async def _segment_id(self) -> int:
        if self._id == ANY_SEGMENT:
            self._id = await self._id_of(self._name)
        return self._id


class RemoteReader(_Session):
    """An async iterator over a segment's bytes; see `segmentstore.SegmentReader`."""

    def __init__(
        self,
        read: ReadBytesOf,
        name: str,
        id_of: SegmentIdOf,
        keeps: object,
        offset: int,
        *,
        follow: bool,
    ) -> None:
        super().__init__(name, id_of, keeps)
        self._read = read
        self._follow = follow
        self.offset = offset
        self._turn = asyncio.Lock()
        """Two that ask at once get one chunk each, in order, and not the same one."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._check_loop()
        async with self._turn:
            data = await self.fetch(self.offset)
            if not data:
                raise StopAsyncIteration
            self.offset += len(data)
            return data

    async def fetch(self, offset: int) -> bytes:
        """The chunk that begins at an offset; b"" at the end. Moves nothing."""
        self._check_loop()
        segment_id = await self._segment_id()
        wait = FOLLOW_WAIT_S if self._follow else None
        while True:
            try:
                data = await self._read(self._name, segment_id, offset, CHUNK_BYTES, wait)
            except EndOfSegmentError:
                return b""
            if data or not self._follow:
                return data


class RemoteWriter:
    """Exactly-once appends of one writer id to one segment; see `segmentstore.SegmentWriter`.

    Enter it, or `await open()`: before that every append raises WriterNotOpenError.
    """

    def __init__(
        self, connection: ClientConnection, name: str, keeps: object, writer_id: uuid.UUID
    ) -> None:
        self._connection = connection
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._keeps = keeps
        self.writer_id = writer_id
        self._writer = 0
        """What the store knows the session by."""
        self._last: int | None = None
        self._refusal: BaseException | None = None

    async def open(self) -> Self:
        """Find the writer's last event. Idempotent. Raises SegmentNotFoundError, and as calls of
        the store do.
        """
        check_loop(self._loop, self._birth)
        if self._last is None:
            connection = self._connection
            request_id = connection.next_id()
            command = OpenWriter(request_id, self._name, self.writer_id.bytes)
            try:
                reply = await connection.ask(command, request_id, NumbersGiven)
            except asyncio.CancelledError:
                # The store opens it all the same, or has done so.
                connection.tell(CloseWriter(request_id))
                raise
            self._opened(request_id, *reply.numbers)
        return self

    def _opened(self, writer: int, last: int) -> None:
        if self._last is not None:
            # Another call has opened it meanwhile, and events may have been sent since.
            self._connection.forget_writer(writer)
            return
        self._last, self._writer = last, writer
        weakref.finalize(self, self._connection.forget_writer, writer).atexit = False

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

    def append(
        self, data: bytes | bytearray | memoryview, event_number: int | None = None
    ) -> asyncio.Future[int | None]:
        """Append one event, enqueued when called; see `segmentstore.SegmentWriter.append`."""
        check_loop(self._loop, self._birth)
        last = self.last_event_number
        number = last + 1 if event_number is None else event_number
        checked_offset("event_number", number)
        payload = checked_data(data, self._connection.append_bytes_max)
        if self._refusal is not None:
            return failed_future(self._refusal)
        try:
            future = self._connection.append_event(self._writer, number, payload)
        except SegmentStoreError as error:
            self._refusal = error
            return failed_future(error)
        self._last = max(last, number)
        return future


class RemoteAttributes(_Session):
    """An async iterator over the attributes of a segment, (id, value), by id."""

    def __init__(
        self,
        attributes: AttributesOf,
        name: str,
        id_of: SegmentIdOf,
        keeps: object,
        from_id: uuid.UUID | None,
        to_id: uuid.UUID | None,
    ) -> None:
        super().__init__(name, id_of, keeps)
        self._attributes = attributes
        self._start = bytes(16) if from_id is None else from_id.bytes
        self._last = _LAST_KEY if to_id is None else to_id.bytes
        self._slice: list[tuple[uuid.UUID, int]] = []
        self._place = 0
        """Of the next one in the slice."""
        self._turn = asyncio.Lock()
        """Of tasks that ask at once, one gets the next slice."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[uuid.UUID, int]:
        self._check_loop()
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
        items = await self.fetch(self._slice[-1][0] if self._slice else None)
        if not items:
            raise StopAsyncIteration
        self._slice, self._place = items, 0

    async def fetch(self, behind: uuid.UUID | None) -> list[tuple[uuid.UUID, int]]:
        """The slice behind an attribute, of None the first; empty at the end. Moves nothing."""
        self._check_loop()
        segment_id = await self._segment_id()
        start = self._start if behind is None else next_key(behind.bytes)
        if start is None or start > self._last:
            return []
        return await self._attributes(self._name, segment_id, start, self._last)
