"""The same store without `await`, usable from many threads: an event loop of its own in one background thread.

    with segmentstore.blocking.open("var/store") as store:
        store.create_segment("logs/web-1")
        store.append("logs/web-1", b"hello")               # waits until durable
        future = store.append_nowait("logs/web-1", b"...")   # a concurrent.futures.Future

Appends of one thread land in the order of its calls. A call costs a hop to the loop's thread and back
(about 50 us): who needs throughput pipelines with `append_nowait` or batches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from segmentstore.catalog_export import CatalogExport
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.errors import StoreClosedError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.garbage import GarbageReport
from segmentstore.opening import open as open_async
from segmentstore.service import SegmentStore as AsyncSegmentStore
from segmentstore.sessions import SegmentReader as AsyncSegmentReader
from segmentstore.sessions import SegmentWriter as AsyncSegmentWriter

T = TypeVar("T")


class _LoopThread:
    """One event loop in one daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        """What callers wait for; whatever is left when the loop ends is resolved then."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="segmentstore", daemon=True)
        self._thread.start()

    def submit(self, make: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Call `make` on the loop, in the order of submission, and follow what it returns."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def start() -> None:
            try:
                waiting = make()
                future = asyncio.ensure_future(waiting, loop=self.loop)
            except BaseException as error:  # noqa: BLE001 - the caller's thread gets whatever it was
                result.set_exception(error)
                return
            future.add_done_callback(lambda done: _pass_on(done, result))

        with self._lock:
            if self._stopped:
                result.set_exception(StoreClosedError())
                return result
            self._waiting.add(result)
            result.add_done_callback(self._waiting.discard)
            self.loop.call_soon_threadsafe(start)
        return result

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it."""
        try:
            return self.submit(lambda: coroutine).result()
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED and self._stopped:
                # The loop had ended: nobody else will begin or close it.
                coroutine.close()

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """End the loop and its thread."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        for result in list(self._waiting):
            if not result.done():
                result.set_exception(StoreClosedError())


def _pass_on(done: asyncio.Future[T], result: concurrent.futures.Future[T]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    if done.cancelled():
        result.set_exception(StoreClosedError())
        return
    error = done.exception()
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


class SegmentReader:
    """A plain iterator over a segment's bytes; `offset` is where the next chunk begins."""

    def __init__(self, thread: _LoopThread, reader: AsyncSegmentReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def offset(self) -> int:
        """Where the next chunk begins."""
        return self._reader.offset

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        data = self._thread.run(self._next())
        if data is None:
            raise StopIteration
        return data

    async def _next(self) -> bytes | None:
        try:
            return await self._reader.__anext__()
        except StopAsyncIteration:
            return None


class SegmentWriter:
    """An exactly-once writer session; see `segmentstore.SegmentWriter`."""

    def __init__(self, thread: _LoopThread, writer: AsyncSegmentWriter) -> None:
        self._thread = thread
        self._writer = writer

    @property
    def last_event_number(self) -> int:
        """The highest event number stored or sent; -1 for none."""
        return self._writer.last_event_number

    def append(self, data: bytes, event_number: int | None = None) -> int | None:
        """Append one event and wait until it is durable."""
        return self.append_nowait(data, event_number).result()

    def append_nowait(self, data: bytes, event_number: int | None = None) -> concurrent.futures.Future[int | None]:
        """Append one event; the future gives its offset, None if it was there already."""
        return self._thread.submit(lambda: self._writer.append(data, event_number))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to release."""


class SegmentStore:
    """An open store; every method means what `segmentstore.SegmentStore`'s of the same name means, and waits."""

    def __init__(self, thread: _LoopThread, store: AsyncSegmentStore) -> None:
        self._thread = thread
        self._store = store
        self._closing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and end its thread. Idempotent."""
        with self._closing:
            if self._thread.stopped:
                return
            try:
                self._thread.run(self._store.close())
            finally:
                self._thread.stop()

    def append(
        self,
        name: str,
        data: bytes,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> int:
        """Append and wait until durable; gives the offset."""
        return self.append_nowait(name, data, expected_offset, attributes).result()

    def append_nowait(
        self,
        name: str,
        data: bytes,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> concurrent.futures.Future[int]:
        """Append without waiting; the future gives the offset once durable."""
        return self._thread.submit(lambda: self._store.append(name, data, expected_offset, attributes))

    def append_batch(
        self,
        name: str,
        items: Iterable[bytes],
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> int:
        """Append several byte strings as one and wait; gives the offset of the first."""
        items = list(items)
        return self._thread.submit(lambda: self._store.append_batch(name, items, expected_offset, attributes)).result()

    def writer(self, name: str, writer_id: uuid.UUID) -> SegmentWriter:
        """An exactly-once writer session."""
        return SegmentWriter(self._thread, self._call(lambda: self._store.writer(name, writer_id)))

    def read(self, name: str, offset: int, max_length: int, wait: float | None = None) -> bytes:
        """Read from an offset; waits up to `wait` seconds at the tail."""
        return self._thread.run(self._store.read(name, offset, max_length, wait))

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> SegmentReader:
        """A plain iterator of chunks."""
        return SegmentReader(self._thread, self._call(lambda: self._store.reader(name, offset, follow=follow)))

    def create_segment(self, name: str, attributes: Sequence[AttributeUpdate] = ()) -> SegmentInfo:
        """Make an empty segment."""
        return self._thread.run(self._store.create_segment(name, attributes))

    def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties."""
        return self._thread.run(self._store.get_info(name))

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """Segments by prefix, as of now."""

        async def collect() -> list[SegmentInfo]:
            return [info async for info in self._store.list_segments(prefix)]

        return iter(self._thread.run(collect()))

    def seal(self, name: str) -> int:
        """Seal; gives the final length."""
        return self._thread.run(self._store.seal(name))

    def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`."""
        self._thread.run(self._store.truncate(name, offset))

    def merge(self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()) -> int:
        """Append the whole source to the target and delete the source."""
        return self._thread.run(self._store.merge(target, source, attributes))

    def delete(self, name: str) -> None:
        """Remove the segment."""
        self._thread.run(self._store.delete(name))

    def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none."""
        self._thread.run(self._store.update_attributes(name, updates))

    def get_attributes(self, name: str, ids: Iterable[uuid.UUID] | None = None) -> dict[uuid.UUID, int]:
        """Attribute values."""
        return self._thread.run(self._store.get_attributes(name, ids))

    def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far to Tier 2."""
        self._thread.run(self._store.flush(name))

    def checkpoint(self) -> None:
        """Write a metadata checkpoint, truncate the log."""
        self._thread.run(self._store.checkpoint())

    def collect_garbage(self) -> GarbageReport:
        """Look through all of Tier 2 for what nobody needs, and delete what is due."""
        return self._thread.run(self._store.collect_garbage())

    def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container served here into Tier 2."""
        return self._thread.run(self._store.export_catalog())

    def process_mailbox(self) -> int:
        """Answer what jobs ask of the containers served here, now; give the number of answers."""
        return self._thread.run(self._store.process_mailbox())

    def stats(self) -> dict[str, object]:
        """Numbers by container and part."""
        return self._call(self._store.stats)

    def metrics_text(self) -> bytes:
        """The same as Prometheus reads it."""
        return self._call(self._store.metrics_text)

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._thread.run(call())


def open(  # noqa: A001 - the public name, as in `segmentstore.open`
    location: str | os.PathLike[str], *, runtime: Runtime | None = None, **options: object
) -> SegmentStore:
    """Open a store as `segmentstore.open` does, and wait until it serves."""
    thread = _LoopThread()

    async def opened() -> AsyncSegmentStore:
        return await open_async(location, runtime=runtime, **options)

    try:
        return SegmentStore(thread, thread.run(opened()))
    except BaseException:
        thread.stop()
        raise
