"""A store on BookKeeper, looked at without being opened: its identity, its containers' records, the frames in closed ledgers.

Rules: nothing is fenced and nothing is written, so the store may be running meanwhile; the clients live on an event loop of
their own, in a thread, so that commands can go through long logs as through files.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation, is_bookkeeper_url
from durablelog.bookkeeper.frame_reports import frame_reports
from durablelog.bookkeeper.log_record import LogRecord
from durablelog.bookkeeper.orphan_ledgers import OrphanSearch, find_orphans, read_record
from durablelog.bookkeeper.store_node import read_identity
from durablelog.durable_data_log import LogAddress
from durablelog.file.frame_reports import FrameReport
from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.stores import require_store
from segmentstore.config import StoreFile
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_files import read_store_file
from segmentstore.tier1 import BookKeeperClients, open_clients, open_nodes, translated

if TYPE_CHECKING:
    from durablelog.bookkeeper.metadata_node import MetadataNodes

T = TypeVar("T")


def on_bookkeeper(location: str) -> bool:
    """Whether the store in a folder has its log on BookKeeper. Raises NotAStoreError, ConfigError."""
    return is_bookkeeper_url(str(_store_file(location).settings["tier1"]))


class BookKeeperStore:
    """The store a folder belongs to; a context manager. ZooKeeper is asked at once, BookKeeper when frames are."""

    def __init__(self, location: str) -> None:
        self._file = _store_file(location)
        tier1 = str(self._file.settings["tier1"])
        if not is_bookkeeper_url(tier1):
            raise CommandError(f"the log of {location} is in {tier1}: it has no ledgers")
        self.location = BookKeeperLocation.parse(tier1)
        self._runtime = Runtime()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._nodes: MetadataNodes | None = None
        self._clients: BookKeeperClients | None = None
        self._readings: dict[int, AsyncGenerator[list[FrameReport], None]] = {}

    @property
    def container_ids(self) -> range:
        """All containers of the store."""
        return range(int(str(self._file.settings["containers"])))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bookkeeper", daemon=True)
        self._thread.start()
        try:
            self._nodes = self._wait(open_nodes(self.location, os.environ, self._runtime))
            self._wait(self._check_identity())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for number in list(self._readings):
                self._end_reading(number)
            if self._clients is not None:
                self._wait(self._clients.close())
            if self._nodes is not None:
                self._wait(self._nodes.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def record(self, container_id: int) -> LogRecord | None:
        """As it is now; None of a container that was never opened. Raises TierUnavailableError, DataCorruptionError."""
        return self._wait(self._record(container_id))

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        """Every frame from the truncation point or from `start`. Raises LedgerStillOpenError, TierUnavailableError."""
        record = self.record(container_id)
        if record is None:
            return
        batches = frame_reports(self._opened().ledgers, record, start=start)
        self._readings[id(batches)] = batches
        try:
            while (batch := self._wait(_next(batches))) is not None:
                yield from batch
        finally:
            self._end_reading(id(batches))

    def orphans(self) -> OrphanSearch:
        """Ledgers of the store that no log lists. Raises TierUnavailableError."""
        return self._wait(self._orphans(self._opened()))

    def _end_reading(self, number: int) -> None:
        """Once, here or at the end of the look: a reading that is left in the middle holds a connection."""
        batches = self._readings.pop(number, None)
        if batches is not None:
            self._wait(_let_go(batches))

    async def _record(self, container_id: int) -> LogRecord | None:
        assert self._nodes is not None
        async with translated():
            return await read_record(self._nodes, self.location.path, container_id)

    async def _orphans(self, clients: BookKeeperClients) -> OrphanSearch:
        async with translated():
            return await find_orphans(
                clients.ledgers, clients.nodes, self.location.path, self._file.store_id, self.container_ids
            )

    async def _check_identity(self) -> None:
        assert self._nodes is not None
        async with translated():
            identity = await read_identity(self._nodes, self.location.path)
        if identity is None or identity.store_id != self._file.store_id:
            other = f"store {identity.store_id}" if identity is not None else "no store"
            raise ConfigError(
                "tier1", f"the folder is of store {self._file.store_id}, and {self.location.url} holds {other}"
            )

    def _opened(self) -> BookKeeperClients:
        if self._clients is None:
            self._clients = self._wait(open_clients(self.location, os.environ, self._runtime))
        return self._clients

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _next(batches: AsyncGenerator[T, None]) -> T | None:
    return await anext(batches, None)


async def _let_go(batches: AsyncGenerator[list[FrameReport], None]) -> None:
    await batches.aclose()


def _store_file(location: str) -> StoreFile:
    require_store(location)
    file = read_store_file(location, Runtime())
    assert file is not None, location
    return file
