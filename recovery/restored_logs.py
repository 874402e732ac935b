"""Where the logs of a store that is restored are made: in its folder, or on BookKeeper
(docs/restore.md).

Rules of this file:

- on BookKeeper the root node is taken first: one that is a store's or has logs is refused, and ours
  nobody else can take, or open;
- it becomes the store's when all logs are whole. From then on the store is there, whatever becomes
  of the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Protocol

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.frame_reports import frame_reports
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.orphan_ledgers import read_record
from durablelog.bookkeeper.store_node import (
    StoreIdentity,
    check_free,
    container_path,
    make,
    take,
)
from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import FrameReport
from recovery.store_check import LogElsewhere
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import log_directory


class RestoredLogs(Protocol):
    """Tier 1 of a store that does not exist yet."""

    @property
    def tier1(self) -> str:
        """The setting."""

    async def check(self) -> None:
        """Raise ConfigError or NotAStoreError unless a new store can be made there; also
        TierUnavailableError.
        """

    async def begin(self, store_id: str) -> None:
        """Take the place for this store, whose id nobody else has. Raises as `check` does."""

    def log(
        self, container_id: int, store_id: str, epoch: int, config: StoreConfig
    ) -> DurableDataLog:
        """A container's log, not opened yet, whose first owner is of this epoch."""

    async def finish(self, identity: StoreIdentity) -> None:
        """All logs are written and closed: the store may be. Raises as `check` does."""

    async def written(self, containers: int) -> Mapping[int, str] | Mapping[int, LogElsewhere]:
        """The logs as they lie there, for `check_store`. Raises TierUnavailableError."""


class LogsInFolder:
    """File logs in the store's folder, which is looked at by who makes it."""

    tier1 = "file"

    def __init__(self, location: str, runtime: Runtime) -> None:
        self._location = location
        self._runtime = runtime

    async def check(self) -> None:
        """The folder is all there is."""

    async def begin(self, store_id: str) -> None:
        """The folder is locked by who makes it."""

    def log(
        self, container_id: int, store_id: str, epoch: int, config: StoreConfig
    ) -> DurableDataLog:
        assert store_id
        return FileLog(
            log_directory(self._location, container_id),
            container_id,
            self._runtime,
            file_bytes=config.log_file_bytes,
            payload_bytes_max=config.frame_bytes_max,
            epoch_min=epoch,
        )

    async def finish(self, identity: StoreIdentity) -> None:
        """What makes the folder a store is all there is."""

    async def written(self, containers: int) -> Mapping[int, str]:
        return {number: log_directory(self._location, number) for number in range(containers)}


class LogsOnBookKeeper:
    """Logs below the root node that the URL `tier1` names.

    `ledgers` and `nodes` are the caller's to close.
    """

    def __init__(
        self, tier1: str, ledgers: LedgerStore, nodes: MetadataNodes, runtime: Runtime
    ) -> None:
        self.tier1 = tier1
        self._location = BookKeeperLocation.parse(tier1)
        self._ledgers = ledgers
        self._nodes = nodes
        self._runtime = runtime

    async def check(self) -> None:
        with _translated():
            await check_free(self._nodes, self._location.path)

    async def begin(self, store_id: str) -> None:
        with _translated():
            await take(self._nodes, self._location.path, store_id)

    def log(
        self, container_id: int, store_id: str, epoch: int, config: StoreConfig
    ) -> DurableDataLog:
        return BookKeeperLog(
            container_id,
            self._runtime,
            self._ledgers,
            self._nodes,
            container_path(self._location.path, container_id),
            store_id=store_id,
            options=BookKeeperLogOptions.at(self._location),
            payload_bytes_max=config.frame_bytes_max,
            epoch_min=epoch,
        )

    async def finish(self, identity: StoreIdentity) -> None:
        with _translated():
            await make(self._nodes, self._location.path, identity)

    async def written(self, containers: int) -> Mapping[int, LogElsewhere]:
        return {
            number: LogElsewhere(_Frames(await self._frames(number)), "entry")
            for number in range(containers)
        }

    async def _frames(self, container_id: int) -> list[FrameReport]:
        """All of them: one checkpoint, no more than the metadata it was made of."""
        with _translated():
            record = await read_record(self._nodes, self._location.path, container_id)
        if record is None:
            return []
        async with aclosing(frame_reports(self._ledgers, record)) as batches:
            return [report async for batch in batches for report in batch]


class _Frames:
    """Frames that were read already."""

    def __init__(self, reports: list[FrameReport]) -> None:
        self._reports = reports

    def __call__(self) -> Iterator[FrameReport]:
        return iter(self._reports)


@contextmanager
def _translated() -> Iterator[None]:
    """The errors of nodes and ledgers as callers know them."""
    try:
        yield
    except (NodeUnavailableError, NodeConflictError, LedgerError) as error:
        raise TierUnavailableError("tier1", str(error)) from error
    except NodeRefusedError as error:
        raise ConfigError("tier1", str(error)) from error
