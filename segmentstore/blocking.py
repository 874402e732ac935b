"""The same store without `await`, usable from many threads: an event loop of its own in one
background thread.

    with segmentstore.blocking.open("var/store") as store:
        store.create_segment("logs/web-1")
        store.append("logs/web-1", b"hello")               # waits until durable
        future = store.append_nowait("logs/web-1", b"...")   # a concurrent.futures.Future

Appends of one thread to a segment are applied in the order of its calls. A call costs a hop to the
loop's thread and back (about 50 us). For throughput use `append_nowait` or batches.

An exception may interrupt a call while it waits (KeyboardInterrupt, a signal handler that raises).
The call then stops waiting, as a cancelled one of the asyncio API does. A change continues and may
take effect; everything else ends. `close` and the clean-up of `open` continue by themselves; called
again, `close` waits for the same end. Done-callbacks of `append_nowait` run on the store's own
thread: a call that would wait there raises WrongThreadError.
"""

from __future__ import annotations

import concurrent.futures
import os
import ssl
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack, cast

from segmentstore.arguments import snapshot
from segmentstore.client.cluster_store import ClusterStore
from segmentstore.client.remote_store import RemoteStore
from segmentstore.connecting import connect as connect_async
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DeprecatedSettingWarning
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.health_tree import StoreHealth
from segmentstore.contracts.reports import (
    ArchivedEntry,
    BlockEntry,
    CatalogExport,
    FrameEntry,
    GarbageItem,
    GarbageReport,
    OffloadReport,
    OperationEntry,
    RemovedParts,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segments import Merged, SegmentInfo
from segmentstore.deprecated_settings import deprecation_notes, with_current_names
from segmentstore.open_stores import registered
from segmentstore.opening import open as open_async
from segmentstore.options import StoreOptions
from segmentstore.service import SegmentStore as AsyncSegmentStore
from segmentstore.stats_types import StoreStats
from segmentstore.store_api import StoreApi, StoreAttributes, StoreReader, StoreWriter
from segmentstore.store_thread import StoreThread

T = TypeVar("T")


class SegmentReader:
    """A plain iterator over a segment's bytes; `offset` is where the next chunk begins.

    For one thread at a time.

    The offset moves with the delivery of a chunk: a `next` that is interrupted while it waits skips
    nothing.
    """

    def __init__(self, thread: StoreThread, reader: StoreReader, keeps: object) -> None:
        self._thread = thread
        self._keeps = keeps
        self._reader = reader
        self._offset = reader.offset

    @property
    def offset(self) -> int:
        """Where the next chunk begins."""
        return self._offset

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            offset = self._offset
            # Used within this round.
            data = self._thread.run(lambda: self._reader.fetch(offset))  # noqa: B023
            end = offset + len(data)
            # From here on nothing is called: no signal handler runs between the move and the
            # delivery.
            if self._offset != offset:
                continue  # one has read on while this waited
            if end == offset:
                raise StopIteration
            self._offset = end
            return data


class AttributeIterator:
    """A plain iterator over a segment's attributes, (id, value), by id. For one thread at a time.

    A `next` that is interrupted while it waits skips nothing.
    """

    def __init__(self, thread: StoreThread, iterator: StoreAttributes, keeps: object) -> None:
        self._thread = thread
        self._keeps = keeps
        self._iterator = iterator
        self._slice: list[tuple[uuid.UUID, int]] = []
        self._place = 0

    def __iter__(self) -> Iterator[tuple[uuid.UUID, int]]:
        return self

    def __next__(self) -> tuple[uuid.UUID, int]:
        items, place = self._slice, self._place
        if place == len(items):
            behind = items[-1][0] if items else None

            items, place = self._thread.run(partial(self._iterator.fetch, behind)), 0
            if not items:
                raise StopIteration
        item = items[place]
        # From here on nothing is called: no signal handler runs before the delivery.
        self._slice, self._place = items, place + 1
        return item


class SegmentWriter:
    """An exactly-once writer session; see `segmentstore.SegmentWriter`."""

    def __init__(self, thread: StoreThread, writer: StoreWriter, keeps: object) -> None:
        self._thread = thread
        self._keeps = keeps
        self._writer = writer

    @property
    def last_event_number(self) -> int:
        """The highest event number stored or sent; -1 for none."""
        return self._writer.last_event_number

    def append(self, data: Buffer, event_number: int | None = None) -> int | None:
        """Append one event and wait until it is durable."""
        return self._thread.run(lambda: self._writer.append(data, event_number), change=True)

    def append_nowait(
        self, data: Buffer, event_number: int | None = None
    ) -> concurrent.futures.Future[int | None]:
        """Append one event; the future gives its offset, None if it was there already."""
        data = snapshot(data)
        return self._thread.submit_bounded(lambda: self._writer.append(data, event_number), data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to release."""


class SegmentStore:
    """An open store; every method means what `segmentstore.SegmentStore`'s of the same name means,
    and waits.
    """

    def __init__(self, thread: StoreThread, store: StoreApi) -> None:
        self._thread = thread
        self._store = store
        # The thread has the store as well: it is this object that a program drops.
        if isinstance(store, AsyncSegmentStore):
            parts = store._parts  # noqa: SLF001 - the other half of this class
            registered(parts).watch(self, thread.begin_end)
        elif isinstance(store, RemoteStore | ClusterStore):
            store.watch(self, thread.begin_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and end its thread.

        Idempotent; interrupted, it goes on, and another call waits for its end.

        In a forked child there is nothing to release.
        """
        self._thread.end()

    def append(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> int:
        """Append and wait until durable; gives the offset."""
        return self._thread.run(
            lambda: self._store.append(name, data, expected_offset, attributes), change=True
        )

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> concurrent.futures.Future[int]:
        """Append without waiting for it; the future gives the offset once durable.

        `data` may be changed after the call. The caller waits, for 5 s at most, while the store's
        thread has yet to begin 4,096 calls or 64 MiB. In a done-callback it never does.

        The future's `cancel` succeeds only while the append is not begun, and then it has no
        effect.
        """
        data = snapshot(data)
        return self._thread.submit_bounded(
            lambda: self._store.append(name, data, expected_offset, attributes), data
        )

    def append_batch(
        self,
        name: str,
        items: Iterable[Buffer],
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> int:
        """Append several byte strings as one and wait; gives the offset of the first."""
        items = [snapshot(item) for item in items]
        return self._thread.run(
            lambda: self._store.append_batch(name, items, expected_offset, attributes), change=True
        )

    def writer(self, name: str, writer_id: uuid.UUID) -> SegmentWriter:
        """An exactly-once writer session, opened."""

        async def opened() -> StoreWriter:
            return await self._store.writer(name, writer_id).open()

        return SegmentWriter(self._thread, self._thread.run(opened), self)

    def read(self, name: str, offset: int, max_length: int, wait: float | None = None) -> bytes:
        """Read from an offset; waits up to `wait` seconds at the tail."""
        return self._thread.run(lambda: self._store.read(name, offset, max_length, wait))

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> SegmentReader:
        """A plain iterator of chunks."""
        return SegmentReader(
            self._thread, self._call(lambda: self._store.reader(name, offset, follow=follow)), self
        )

    def create_segment(self, name: str, attributes: Sequence[AttributeUpdate] = ()) -> SegmentInfo:
        """Make an empty segment."""
        return self._thread.run(lambda: self._store.create_segment(name, attributes), change=True)

    def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties."""
        return self._thread.run(lambda: self._store.get_info(name))

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        """Segments by prefix, as of now."""
        return self._collected(lambda: self._store.list_segments(prefix))

    def seal(self, name: str) -> int:
        """Seal; gives the final length."""
        return self._thread.run(lambda: self._store.seal(name), change=True)

    def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`."""
        self._thread.run(lambda: self._store.truncate(name, offset), change=True)

    def merge(self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()) -> Merged:
        """Append the whole source to the target and delete the source."""
        return self._thread.run(lambda: self._store.merge(target, source, attributes), change=True)

    def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several segments into one, in their order; gives the target's length behind
        each.
        """
        return self._thread.run(lambda: self._store.merge_batch(target, sources), change=True)

    def delete(self, name: str) -> None:
        """Remove the segment."""
        self._thread.run(lambda: self._store.delete(name), change=True)

    def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none."""
        self._thread.run(lambda: self._store.update_attributes(name, updates), change=True)

    def get_attributes(
        self, name: str, ids: Iterable[uuid.UUID] | None = None
    ) -> dict[uuid.UUID, int]:
        """Attribute values."""
        return self._thread.run(lambda: self._store.get_attributes(name, ids))

    def iterate_attributes(
        self, name: str, from_id: uuid.UUID | None = None, to_id: uuid.UUID | None = None
    ) -> AttributeIterator:
        """A plain iterator over attributes by id; one hop to the loop for each slice of some
        hundred.
        """
        return AttributeIterator(
            self._thread,
            self._call(lambda: self._store.iterate_attributes(name, from_id, to_id)),
            self,
        )

    def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far to Tier 2."""
        self._thread.run(lambda: self._store.flush(name))

    def checkpoint(self) -> None:
        """Write a metadata checkpoint, truncate the log."""
        self._thread.run(self._store.checkpoint)

    def collect_garbage(self) -> GarbageReport:
        """Search all of Tier 2 for orphans and garbage, and delete what is due."""
        return self._thread.run(self._store.collect_garbage)

    def list_frames(self) -> Iterator[FrameEntry]:
        """The frames of the logs, as of now."""
        return self._collected(self._store.list_frames)

    def list_operations(self) -> Iterator[OperationEntry]:
        """The operations in the logs, as of now."""
        return self._collected(self._store.list_operations)

    def list_blocks(self, segment: str | None = None) -> Iterator[BlockEntry]:
        """What is in Tier 2 of a segment, or of all, as of now."""
        return self._collected(lambda: self._store.list_blocks(segment))

    def find_garbage(self) -> Iterator[GarbageItem | Finding]:
        """What `collect_garbage` would find now, in no order; changes nothing."""
        return self._collected(self._store.find_garbage)

    def _collected(self, listing: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        async def collect() -> list[T]:
            return [each async for each in listing()]

        return iter(self._thread.run(collect))

    def offload_prefix(
        self, before: int | None = None, container: int | None = None
    ) -> list[OffloadReport]:
        """Archive sealed parts of the logs now."""
        return self._thread.run(lambda: self._store.offload_prefix(before, container))

    def list_archived_parts(self) -> Iterator[ArchivedEntry]:
        """The parts in the archive, as of now."""
        return self._collected(self._store.list_archived_parts)

    def remove_archived_parts(self, before: int, container: int) -> RemovedParts:
        """Take parts of a container's log out of the archive."""
        return self._thread.run(lambda: self._store.remove_archived_parts(before, container))

    def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container served here into Tier 2."""
        return self._thread.run(self._store.export_catalog)

    def process_mailbox(self) -> int:
        """Answer what jobs ask of the containers served here, now; give the number of answers."""
        return self._thread.run(self._store.process_mailbox)

    def stats(self) -> StoreStats:
        """Numbers by container and part."""
        return self._thread.run(self._store.fetch_stats)

    def health(self) -> StoreHealth:
        """How host, containers and parts are, and whether all that is assigned is served."""
        return self._thread.run(self._store.fetch_health)

    def metrics_text(self) -> bytes:
        """The same as Prometheus reads it."""
        return self._thread.run(self._store.fetch_metrics_text)

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._thread.run(call)


def open(  # noqa: A001 - the public name, as in `segmentstore.open`
    location: str | os.PathLike[str],
    *,
    runtime: Runtime | None = None,
    **options: Unpack[StoreOptions],
) -> SegmentStore:
    """Open a store as `segmentstore.open` does, and wait until it serves.

    Interrupted, it waits until everything is released again; interrupted in that too, the thread
    does it alone.
    """
    for note in deprecation_notes(options):
        # Here, and not by the opening's thread: a warning names the line of the caller.
        warnings.warn(note, DeprecatedSettingWarning, stacklevel=2)
    current = cast("StoreOptions", with_current_names(options))
    return _opened(StoreThread(lambda: open_async(location, runtime=runtime, **current)))


def connect(
    location: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    retry_s: float | None = None,
) -> SegmentStore:
    """Connect to a store that another process has open, or to a cluster, as
    `segmentstore.connect` does.
    """
    return _opened(StoreThread(lambda: connect_async(location, tls=tls, retry_s=retry_s)))


def _opened(thread: StoreThread) -> SegmentStore:
    try:
        return SegmentStore(thread, thread.open())
    except BaseException:
        with suppress(Exception):
            thread.end()
        raise
