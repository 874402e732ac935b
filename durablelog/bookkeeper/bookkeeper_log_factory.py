"""BookKeeperLogFactory: Tier 1 of a store on BookKeeper: one client of each service for all
containers, and the store's identity in its root node.

Rules of this file:

- what was fixed when the store was made stands in the root node, and there alone is right;
- a store's folder is one process's working place. That it is new says nothing about the store: only
  who made the root node has made the store;
- a store that is restored takes its root node first: one that is a store's or has logs is refused.
  No other process can take or open it from then on. It becomes the store's when all logs are whole.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import ClassVar

from durablelog.bookkeeper.bookkeeper_clients import (
    BookKeeperClients,
    OpenClients,
    open_clients,
    translated,
)
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.bookkeeper_log_view import BookKeeperLogView
from durablelog.bookkeeper.frame_reports import frame_reports
from durablelog.bookkeeper.log_options import OPEN_TIMEOUT_S, BookKeeperLogOptions
from durablelog.bookkeeper.log_owner import folder_name
from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from durablelog.bookkeeper.orphan_ledgers import delete_orphans, find_orphans, read_record
from durablelog.bookkeeper.owner_presence import OwnerPresence
from durablelog.bookkeeper.store_node import (
    check_free,
    container_path,
    containers_path,
    found_or_join,
    make,
    owners_path,
    pin,
    read_identity,
    take,
    unmake,
)
from durablelog.bookkeeper.waiting import Waiting
from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import (
    Coordination,
    DurableDataLogFactory,
    LogOptions,
    OrphanDeletion,
    OrphanSearch,
    RemoteLog,
    StoreIdentity,
)
from durablelog.file.frame_reports import FrameReport
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.runtime import Runtime


class BookKeeperLogFactory(DurableDataLogFactory):
    """The logs below the root node that the URL `tier1` names.

    `environment` may hold secrets of the services, which `connect` connects to.
    """

    is_shared: ClassVar[bool] = True
    place: ClassVar[str] = "on BookKeeper"

    def __init__(
        self,
        tier1: str,
        environment: Mapping[str, str],
        runtime: Runtime,
        *,
        connect: OpenClients = open_clients,
    ) -> None:
        """Raises ConfigError: the URL is wrong."""
        self._tier1 = tier1
        self._location = BookKeeperLocation.parse(tier1)
        self._environment = environment
        self._runtime = runtime
        self._connect = connect
        self._opened: BookKeeperClients | None = None
        self._presence: OwnerPresence | None = None

    @property
    def tier1(self) -> str:
        return self._tier1

    @property
    def url(self) -> str:
        return self._location.url

    async def open(self) -> None:
        self._opened = await self._connect(self._location, self._environment, self._runtime)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    def abandon(self) -> None:
        if self._opened is not None:
            # Others ask whether its session lasts. A bare thread: to begin it takes no lock.
            _thread.start_new_thread(self._opened.abandon, ())

    def health(self) -> list[str]:
        findings = (self._clients.nodes.health(), self._clients.ledgers.health())
        return [finding for finding in findings if finding is not None]

    # --- the logs ---------------------------------------------------------------------------------

    async def has_logs(self) -> bool:
        async with translated():
            return bool(await self._clients.nodes.children(containers_path(self._root)))

    async def check_owners(
        self,
        containers: Collection[int],
        location: str,
        folder: tuple[int, int],
        *,
        take_over: bool,
    ) -> None:
        nodes = self._clients.nodes
        presence = self._presence = OwnerPresence(
            nodes,
            owners_path(self._root),
            self._runtime,
            location=self.url,
            folder=folder_name(location, *folder),
            session_timeout_s=self._location.session_timeout_s,
            take_over=take_over,
        )
        if take_over:
            return
        waiting = Waiting(
            self._runtime.random,
            HealthNotes(),
            "opening",
            deadline=asyncio.get_running_loop().time() + OPEN_TIMEOUT_S,
        )
        async with translated():
            for container_id in containers:
                record = await waiting.for_node(
                    partial(read_record, nodes, self._root, container_id)
                )
                if record is not None:
                    await waiting.for_node(partial(presence.ask, record))

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        return BookKeeperLog(
            container_id,
            self._runtime,
            self._clients.ledgers,
            self._clients.nodes,
            container_path(self._root, container_id),
            store_id=store_id,
            options=BookKeeperLogOptions.at(self._location),
            payload_bytes_max=options.payload_bytes_max,
            epoch_min=options.epoch_min,
            presence=self._presence,
        )

    def make_view(self, container_id: int, store_id: str) -> DurableDataLog:
        return BookKeeperLogView(
            container_id,
            self._runtime,
            self._clients.ledgers,
            self._clients.nodes,
            container_path(self._root, container_id),
            store_id=store_id,
            options=BookKeeperLogOptions.at(self._location),
        )

    async def stored_logs(self, containers: int) -> dict[int, RemoteLog]:
        """Read whole into memory: for logs of one checkpoint, no more than the metadata it was
        made of.
        """
        return {
            number: RemoteLog(partial(iter, await self._frames(number)), "entry")
            for number in range(containers)
        }

    async def find_orphans(self, store_id: str, containers: Collection[int]) -> OrphanSearch:
        clients = self._clients
        async with translated():
            return await find_orphans(
                clients.ledgers, clients.nodes, self._root, store_id, containers
            )

    async def delete_orphans(self, store_id: str, containers: Collection[int]) -> OrphanDeletion:
        found = await self.find_orphans(store_id, containers)
        return await delete_orphans(self._clients.ledgers, found)

    def coordination(self) -> Coordination:
        return Coordination(self._clients.nodes, self._root)

    # --- the store's identity ---------------------------------------------------------------------

    async def read_identity(self) -> StoreIdentity | None:
        async with translated():
            return await read_identity(self._clients.nodes, self._root)

    async def make_or_join_store(self, wished: StoreIdentity) -> tuple[StoreIdentity, bool]:
        async with translated():
            return await found_or_join(self._clients.nodes, self._root, wished)

    async def confirm_store(self, identity: StoreIdentity) -> bool:
        async with translated():
            return await pin(self._clients.nodes, self._root, identity)

    async def withdraw_store(self, identity: StoreIdentity) -> bool:
        try:
            return await unmake(self._clients.nodes, self._root, identity)
        except (NodeUnavailableError, NodeRefusedError):
            # It stays, and is joined by the next who opens: no harm, for it has no containers.
            return False

    # --- a store that is restored -----------------------------------------------------------------

    async def check_unused(self) -> None:
        async with translated():
            await check_free(self._clients.nodes, self._root)

    async def reserve_store(self, store_id: str) -> None:
        async with translated():
            await take(self._clients.nodes, self._root, store_id)

    async def publish_store(self, identity: StoreIdentity) -> None:
        async with translated():
            await make(self._clients.nodes, self._root, identity)

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def _clients(self) -> BookKeeperClients:
        assert self._opened is not None, "open() comes first"
        return self._opened

    @property
    def _root(self) -> str:
        return self._location.path

    async def _frames(self, container_id: int) -> list[FrameReport]:
        async with translated():
            record = await read_record(self._clients.nodes, self._root, container_id)
        if record is None:
            return []
        async with aclosing(frame_reports(self._clients.ledgers, record)) as batches:
            return [report async for batch in batches for report in batch]
