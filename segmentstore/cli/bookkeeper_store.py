"""A store on BookKeeper, checked without being opened: its identity, its containers' records, the
frames in closed ledgers.

Rules: nothing is fenced and nothing is written, so the store may be running meanwhile. A caller
that draws conclusions from frames asks afterwards whether the log was opened while they were read
(`check_undisturbed`), and a bad frame is reported only if it was not. The clients live on an event
loop of their own, in a thread, so that commands can go through long logs as through files, in any
thread. Leaving ends whatever is still running there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from durablelog.bookkeeper.bookkeeper_clients import (
    BookKeeperClients,
    OpenClients,
    open_clients,
    open_nodes,
    translated,
)
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_url import is_bookkeeper_url
from durablelog.bookkeeper.frame_reports import frame_reports
from durablelog.bookkeeper.ledger_store import LedgerDescription, LedgerError
from durablelog.bookkeeper.log_metadata import LogMetadata
from durablelog.bookkeeper.orphan_ledgers import find_orphans, read_record
from durablelog.bookkeeper.store_node import read_identity
from durablelog.durable_data_log import LogAddress
from durablelog.durable_data_log_factory import OrphanSearch, RemoteLog
from durablelog.file.frame_reports import FrameReport
from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.stores import require_store
from segmentstore.contracts.errors import ConfigError, StoreInUseError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.store_file import StoreFile
from segmentstore.store_folder import read_store_file

if TYPE_CHECKING:
    from durablelog.bookkeeper.metadata_node import MetadataNodes

T = TypeVar("T")
OpenNodes = Callable[
    [BookKeeperLocation, Mapping[str, str], Runtime], Coroutine[Any, Any, "MetadataNodes"]
]


class BookKeeperStore:
    """The store a folder belongs to; a context manager.

    ZooKeeper is asked at once, BookKeeper when frames are.

    `nodes` and `clients` open the way to them: production's, unless a test has others.
    """

    def __init__(
        self, location: str, *, nodes: OpenNodes = open_nodes, clients: OpenClients = open_clients
    ) -> None:
        self._file = _store_file(location)
        tier1 = str(self._file.settings["tier1"])
        if not is_bookkeeper_url(tier1):
            raise CommandError(f"the log of {location} is in {redacted(tier1)}: it has no ledgers")
        self.location = BookKeeperLocation.parse(tier1)
        self._folder = location
        self._open_nodes, self._open_clients = nodes, clients
        self._runtime = Runtime()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._nodes: MetadataNodes | None = None
        self._clients: BookKeeperClients | None = None
        self._readings: dict[int, AsyncGenerator[list[FrameReport], None]] = {}
        self._read: dict[int, LogMetadata | None] = {}
        """By container: the record its frames were read by first."""
        self._under_way: dict[asyncio.Task[Any], None] = {}
        self._asking = threading.Lock()
        self._left = False

    position_unit = "entry"
    """What the position of a frame's report counts."""

    @property
    def container_ids(self) -> range:
        """All containers of the store."""
        return range(int(str(self._file.settings["containers"])))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bookkeeper", daemon=True
        )
        self._thread.start()
        try:
            self._nodes = self._wait(self._open_nodes(self.location, os.environ, self._runtime))
            self._wait(self._check_identity())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._asking:
            self._left = True
        try:
            self._submit(self._close()).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def record(self, container_id: int) -> LogMetadata | None:
        """As it is now; None of a container that was never opened.

        Raises TierUnavailableError, DataCorruptionError.
        """
        return self._wait(self._record(container_id))

    def last_epoch(self, container_id: int) -> int | None:
        """Of the container's last owner; None if it never had one. Raises as `record`."""
        record = self.record(container_id)
        return record.epoch if record is not None else None

    def stored_logs(self) -> dict[int, RemoteLog]:
        """The logs as `check_store` takes them."""
        return {
            each: RemoteLog(partial(self.frames, each), self.position_unit)
            for each in self.container_ids
        }

    def describe(self, ledger_id: int) -> LedgerDescription:
        """What BookKeeper's metadata say of a ledger now.

        Starts a gateway. Raises TierUnavailableError, ConfigError.
        """
        ledgers = self._opened().ledgers
        try:
            return self._wait(ledgers.describe(ledger_id))
        except LedgerError as error:
            raise TierUnavailableError("tier1", f"ledger {ledger_id}: {error}") from error

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        """Every frame from the truncation point or from `start`.

        Raises LedgerStillOpenError, TierUnavailableError, StoreInUseError (what checks bad was
        truncated meanwhile).
        """
        record = self.record(container_id)
        self._read.setdefault(container_id, record)
        if record is None:
            return
        batches = frame_reports(self._opened().ledgers, record, start=start)
        self._readings[id(batches)] = batches
        try:
            while (batch := self._wait(_next(batches))) is not None:
                if batch and batch[-1].status == "corrupt":
                    self._check_undisturbed(container_id, record)
                yield from batch
        finally:
            self._end_reading(id(batches))

    def check_undisturbed(self) -> None:
        """Raise StoreInUseError if a log was opened, or went on, since its frames were read first
        here.
        """
        for container_id, record in self._read.items():
            self._check_undisturbed(container_id, record)

    def _check_undisturbed(self, container_id: int, record: LogMetadata | None) -> None:
        if self.record(container_id) != record:
            raise StoreInUseError(
                self._folder,
                f"the log of container {container_id} was opened or truncated while it "
                "was inspected: try again"
                " when no process has it open",
            )

    def orphans(self) -> OrphanSearch:
        """Ledgers of the store that no log lists. Raises TierUnavailableError."""
        return self._wait(self._orphans(self._opened()))

    def _end_reading(self, number: int) -> None:
        """Once, here or at the end of the check: a reading that is left in the middle holds a
        connection.
        """
        batches = self._readings.pop(number, None) if not self._left else None
        if batches is not None:
            self._wait(_close_batches(batches))

    async def _close(self) -> None:
        """Nothing is asked for any more; what still goes on ends first."""
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        try:
            for batches in self._readings.values():
                await _close_batches(batches)
        finally:
            self._readings.clear()
            try:
                if self._clients is not None:
                    await self._clients.close()
            finally:
                if self._nodes is not None:
                    await self._nodes.close()

    async def _record(self, container_id: int) -> LogMetadata | None:
        assert self._nodes is not None
        async with translated():
            return await read_record(self._nodes, self.location.path, container_id)

    async def _orphans(self, clients: BookKeeperClients) -> OrphanSearch:
        async with translated():
            return await find_orphans(
                clients.ledgers,
                clients.nodes,
                self.location.path,
                self._file.store_id,
                self.container_ids,
            )

    async def _check_identity(self) -> None:
        assert self._nodes is not None
        async with translated():
            identity = await read_identity(self._nodes, self.location.path)
        if identity is None or identity.store_id != self._file.store_id:
            other = f"store {identity.store_id}" if identity is not None else "no store"
            raise ConfigError(
                "tier1",
                f"the folder is of store {self._file.store_id}, and {self.location.url} "
                f"holds {other}",
            )

    def _opened(self) -> BookKeeperClients:
        if self._clients is None:
            self._clients = self._wait(self._open_clients(self.location, os.environ, self._runtime))
        return self._clients

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises CancelledError once this was left: a call of another thread came too late."""
        with self._asking:
            if self._left:
                work.close()
                raise CancelledError
            asked = self._submit(self._tracked(work))
        return asked.result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = None
        try:
            return await work
        finally:
            del self._under_way[task]


async def _next(batches: AsyncGenerator[T, None]) -> T | None:
    return await anext(batches, None)


async def _close_batches(batches: AsyncGenerator[list[FrameReport], None]) -> None:
    await batches.aclose()


def _store_file(location: str) -> StoreFile:
    require_store(location)
    file = read_store_file(location, Runtime())
    assert file is not None, location
    return file
