"""StoreClient: exactly-once changes of a store that another process of this machine has open, over
its restarts.

Rules of this file:

- everything sent carries what makes a second sending harmless (an event number, or a name that is
  used once). After a lost connection, or an answer that says the store is away, all that is
  unanswered is sent again in its order, on a new connection (resend_rules.py decides);
- a waiting call gives up when nothing was answered for `timeout_s`; a refusal ends a pipeline at
  once, as later events of its writer were refused with it;
- what is on its way is bounded in bytes and number.

On one event loop, by one caller.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from segmentstore.client.connecting import connect
from segmentstore.client.merge_once import merge_event
from segmentstore.client.remote_sessions import RemoteWriter
from segmentstore.client.remote_store import RemoteStore
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    StoreDisconnectedError,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segments import SegmentInfo, check_segment_name
from tier2.spark.common.resend_rules import RetrySchedule, is_away

TIMEOUT_S: Final = 120.0
WINDOW_BYTES: Final = 8 << 20
WINDOW_EVENTS: Final = 512
WRITERS_MAX: Final = 1024
"""Writers that are kept open on a connection; more than events on their way."""

T = TypeVar("T")


class StoreNotServedError(SegmentStoreError):
    """No process serves the store at this folder, or it does not answer.

    The operator's move: `segmentstore serve FOLDER`.

    What was sent and not answered may have been done; sent again under the same numbers it is done
    once.
    """

    def __init__(self, folder: str, detail: str) -> None:
        super().__init__(f"the store at {folder} does not answer at its socket: {detail}")
        self.folder = folder


class _SentEvent:
    """An event that was sent, until it is known to be stored."""

    __slots__ = ("data", "future", "number", "segment", "writer_id")

    def __init__(self, segment: str, writer_id: uuid.UUID, number: int, data: bytes) -> None:
        self.segment = segment
        self.writer_id = writer_id
        self.number = number
        self.data = data
        self.future: asyncio.Future[int | None] | None = None
        """Of the last sending."""

    @property
    def is_stored(self) -> bool:
        future = self.future
        return future is not None and future.done() and future.exception() is None


class StoreClient:
    """Changes of a store that go on over its restarts: `async with StoreClient(folder) as client`.

    Raises StoreNotServedError, and the store's own errors for what it refuses.
    """

    def __init__(
        self, folder: str, *, timeout_s: float = TIMEOUT_S, runtime: Runtime | None = None
    ) -> None:
        self.folder = folder
        self.store_id = ""
        """Once open."""
        self.append_bytes_max = 0
        """The largest append the store takes; once open."""
        self._timeout_s = timeout_s
        rng = (runtime if runtime is not None else Runtime()).random
        self._schedule = RetrySchedule(rng, timeout_s)
        self._store: RemoteStore | None = None
        self._writers: dict[tuple[str, uuid.UUID], RemoteWriter] = {}
        """Opened on this connection."""
        self._sent: deque[_SentEvent] = deque()
        """In the order of the calls."""
        self._bytes = 0
        """Of those."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Connect. Raises StoreNotServedError after `timeout_s`."""
        try:
            await self._reach()
        except (SegmentStoreError, TimeoutError) as error:
            await self._connect_again(error)
        self._schedule.answered()

    def close(self) -> None:
        """Hang up; what was not answered is left to its fate."""
        self._hang_up()
        self._sent.clear()
        self._bytes = 0

    # --- events on their way together -------------------------------------------------------------

    async def send(
        self, segment: str, writer_id: uuid.UUID, event_number: int, data: bytes
    ) -> None:
        """Append one event of a writer, in the order of the calls; waits only while too much is on
        its way.

        A refusal of this or an earlier one is raised by this call, a later one, or `settle`.
        AppendTooLargeError is raised at once, and nothing was sent.
        """
        self._check(segment, data)
        while self._sent and (
            len(self._sent) >= WINDOW_EVENTS or self._bytes + len(data) > WINDOW_BYTES
        ):
            await self._settle_first()
        sent = _SentEvent(segment, writer_id, event_number, data)
        self._sent.append(sent)
        self._bytes += len(data)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._begin(sent)
                # The connection sends what is asked in one turn of the loop at its end.
                await asyncio.sleep(0)
        except (SegmentStoreError, TimeoutError) as error:
            await self._connect_again(error)

    async def settle(self) -> None:
        """Wait until all that was sent is durable."""
        while self._sent:
            await self._settle_first()

    # --- one thing after another ------------------------------------------------------------------

    async def append(
        self, segment: str, writer_id: uuid.UUID, event_number: int, data: bytes
    ) -> int | None:
        """Append one event and wait; its offset, or None if the segment had it."""
        self._check(segment, data)

        async def append(store: RemoteStore) -> int | None:
            writer = await store.writer(segment, writer_id).open()
            return await writer.append(data, event_number)

        return await self._ask(append)

    async def merge(
        self, target: str, source: str, writer_id: uuid.UUID, event_number: int
    ) -> int | None:
        """Merge as an event of a writer on the target; the source's offset, or None if the target
        had the event, durably.
        """
        return await self._ask(
            lambda store: merge_event(store, target, source, writer_id, event_number)
        )

    async def merge_once(self, target: str, source: str) -> int | None:
        """Merge a source that no other client merges or deletes; its offset, None if not known
        any more.

        It is not known if the store was lost while it answered; then the source is missing because
        it was merged.
        """
        was_sent = False

        async def merge(store: RemoteStore) -> int | None:
            nonlocal was_sent
            is_again, was_sent = was_sent, True
            try:
                return (await store.merge(target, source)).offset
            except SegmentNotFoundError:
                if not is_again:
                    raise
                await store.get_info(target)
            return None

        return await self._ask(merge)

    async def last_event(self, segment: str, writer_id: uuid.UUID) -> int | None:
        """The highest event number the segment has of this writer, -1 for none; None if there is no
        such segment.
        """

        async def last_event(store: RemoteStore) -> int | None:
            try:
                return (await store.writer(segment, writer_id).open()).last_event_number
            except SegmentNotFoundError:
                return None

        return await self._ask(last_event)

    async def create(self, segment: str) -> bool:
        """Make a segment; False if it was there."""

        async def create(store: RemoteStore) -> bool:
            try:
                await store.create_segment(segment)
            except SegmentExistsError:
                return False
            return True

        return await self._ask(create)

    async def delete(self, segment: str) -> bool:
        """Remove a segment; False if there was none."""

        async def delete(store: RemoteStore) -> bool:
            try:
                await store.delete(segment)
            except SegmentNotFoundError:
                return False
            return True

        return await self._ask(delete)

    async def describe(self, segment: str) -> SegmentInfo | None:
        """The segment's properties; None if there is none."""

        async def describe(store: RemoteStore) -> SegmentInfo | None:
            try:
                return await store.get_info(segment)
            except SegmentNotFoundError:
                return None

        return await self._ask(describe)

    async def names(self, prefix: str) -> list[str]:
        """Every name that begins with `prefix`, ascending.

        The store checks all its names for it.
        """

        async def names(store: RemoteStore) -> list[str]:
            return [info.name async for info in store.list_segments(prefix)]

        return await self._ask(names)

    def _check(self, segment: str, data: bytes) -> None:
        check_segment_name(segment)
        if len(data) > self.append_bytes_max:
            raise AppendTooLargeError(len(data), self.append_bytes_max)

    # --- sending again ----------------------------------------------------------------------------

    async def _ask(self, work: Callable[[RemoteStore], Awaitable[T]]) -> T:
        """Do one thing behind all that was sent; again if the store was away."""
        await self.settle()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    result = await work(self._connected())
            except (SegmentStoreError, TimeoutError) as error:
                if not isinstance(error, TimeoutError) and not is_away(error):
                    self._schedule.answered()
                    raise
                await self._connect_again(error)
            else:
                self._schedule.answered()
                return result

    async def _begin(self, sent: _SentEvent) -> None:
        """Send an event on this connection."""
        key = (sent.segment, sent.writer_id)
        writer = self._writers.get(key)
        if writer is None:
            writer = await self._connected().writer(*key).open()
            if len(self._writers) >= WRITERS_MAX:
                used = {(each.segment, each.writer_id) for each in self._sent}
                self._writers = {
                    each: opened for each, opened in self._writers.items() if each in used
                }
            self._writers[key] = writer
        sent.future = writer.append(sent.data, sent.number)
        sent.future.add_done_callback(_take_exception)

    async def _settle_first(self) -> None:
        """Wait until the oldest event is stored."""
        first = self._sent[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                if first.future is None:
                    # The call was cancelled before.
                    await self._begin(first)
                assert first.future is not None
                if not first.future.done():
                    await asyncio.wait((first.future,))
            first.future.result()
        except (SegmentStoreError, TimeoutError) as error:
            await self._connect_again(error)
        else:
            self._sent.popleft()
            self._bytes -= len(first.data)
            self._schedule.answered()

    async def _connect_again(self, cause: SegmentStoreError | TimeoutError) -> None:
        """A new connection, on which everything unanswered is sent again.

        Raises `cause` if it is a refusal. Then, and when it is given up, no caller waits for what
        was sent.
        """
        loop = asyncio.get_running_loop()
        while True:
            if isinstance(cause, TimeoutError):
                self.close()
                raise StoreNotServedError(
                    self.folder, f"nothing came for {self._timeout_s:g} s"
                ) from cause
            if not is_away(cause):
                self.close()
                raise cause
            self._hang_up()
            wait_s = self._schedule.wait_s(loop.time())
            if wait_s is None:
                self.close()
                raise StoreNotServedError(self.folder, str(cause)) from cause
            await asyncio.sleep(wait_s)
            try:
                await self._reach()
                async with asyncio.timeout(self._timeout_s):
                    for sent in self._sent:
                        if not sent.is_stored:
                            await self._begin(sent)
            except (SegmentStoreError, TimeoutError) as error:
                cause = error
            else:
                return

    async def _reach(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            store = await connect(Path(self.folder))
        if self.store_id not in {"", store.store_id}:
            store.abort()
            raise StoreNotServedError(self.folder, f"another store is there now: {store.store_id}")
        self._store = store
        self.store_id, self.append_bytes_max = store.store_id, store.append_bytes_max

    def _connected(self) -> RemoteStore:
        if self._store is None:
            raise StoreDisconnectedError("the client is not open")
        return self._store

    def _hang_up(self) -> None:
        self._writers.clear()
        if self._store is not None:
            self._store.abort()
            self._store = None


def _take_exception(future: asyncio.Future[int | None]) -> None:
    """An event that is sent again has another outcome, and no caller asks for this one."""
    if not future.cancelled():
        future.exception()
