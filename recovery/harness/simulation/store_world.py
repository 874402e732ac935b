"""StoreWorld: a world with everything a store needs outside: a disk, an object storage, a Tier-1
service.

`open_store` opens the production store in one of the world's processes. With `tier1="file"` its log
is the file log on the simulated disk, with `"ledger"` the simulated service. With `"bookkeeper"` it
is the log on the simulated cluster (the settings have its URL then). With `tier2="file"` its
objects are files on the simulated disk; with `"object"` they are in the simulated object storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.cache_storage import CacheStorage
from recovery.harness.simulation.bookkeeper_bookies import BookKeeperServers
from recovery.harness.simulation.bookkeeper_ledgers import SimulatedLedgers
from recovery.harness.simulation.bookkeeper_nodes import SimulatedNodes
from recovery.harness.simulation.cache import SimulatedCache
from recovery.harness.simulation.ledger import SimulatedLedgerStore
from recovery.harness.simulation.ledger_factory import SimulatedLedgerFactory
from recovery.harness.simulation.object_storage import SimulatedBucket, SimulatedObjectStorage
from recovery.harness.simulation.world import SimulatedProcess, World
from recovery.stopped_catalogs import StoppedCatalogs
from segmentstore.cluster.membership import join_cluster
from segmentstore.config import CLUSTER, StoreConfig
from segmentstore.contracts.runtime import Runtime
from segmentstore.locked_folder import on_disk
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from segmentstore.store_folder import catalog_directory, read_store_file
from segmentstore.tier1 import make_log_factory
from tier2.file_object_storage import FileObjectStorage
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import store_tag

LOCATION = "/store"
NEIGHBOUR = "/neighbour"
"""Another store, whose own folder of objects is a link to that of the first one."""
TIER2 = "/store/tier2"
SHARED_TIER2 = "memory://simulated"
"""Where hosts of a cluster have their objects: in the simulated object storage."""
ARCHIVE = "memory://archive"
"""Where a store's archive is: in a simulated object storage of its own."""
NO_STORE = "00000000-0000-0000-0000-000000000000"
"""Of a folder in which no store was made yet."""
BOOKKEEPER = "bookkeeper://simulated/store"
"""A store's URL in the simulated cluster; a query may follow."""


class StoreWorld(World):
    """A world for one store. `settings` are options of `segmentstore.open`."""

    def __init__(
        self,
        seed: str,
        *,
        settings: Mapping[str, Any] | None = None,
        rates: Mapping[str, float] | None = None,
        tier1: str = "file",
        tier2: str = "object",
        kernel_syncs: bool = False,
        keep_trace: bool = False,
    ) -> None:
        super().__init__(seed, rates=rates, kernel_syncs=kernel_syncs, keep_trace=keep_trace)
        self.settings = dict(settings or {})
        self.tier1 = tier1
        self.tier2 = tier2
        self.bucket = SimulatedBucket()
        self.archive = SimulatedBucket()
        """Where parts of logs go, if the settings say so."""
        self.ledgers = SimulatedLedgerStore()
        self.bookkeeper = BookKeeperServers()
        self.nodes: dict[str, SimulatedNodes] = {}
        """What each process has of ZooKeeper, by its name; of one that opened twice the last."""
        self.neighbour_tag: bytes | None = None
        """Of the other store's objects; None as long as it was never made."""

    async def open_store(self, process: SimulatedProcess) -> SegmentStore:
        """Open the store in a process; runs on the process's loop.

        Raises what `segmentstore.open` raises.
        """
        settings = {name: value for name, value in self.settings.items() if name != "tier1"}
        if self.tier1 == "bookkeeper":
            settings["tier1"] = self.settings.get("tier1", BOOKKEEPER)
        parts = await open_store(
            LOCATION, settings, {}, process.runtime, ProcessAdapters(self, process)
        )
        return SegmentStore(parts)

    async def open_host(
        self, process: SimulatedProcess, host_id: str, folder: str = ""
    ) -> SegmentStore:
        """Open the store as a host of its cluster, in a process and a folder of its own: that of
        its name unless another one is given.

        The log is on BookKeeper. Raises as `open_store`.
        """
        settings = {
            "tier1": BOOKKEEPER,
            "tier2": SHARED_TIER2,
            "wire_port": 1,
            **self.settings,
            "serve": CLUSTER,
            "host_id": host_id,
        }
        parts = await open_store(
            folder or f"/{host_id}",
            settings,
            {},
            process.runtime,
            ProcessAdapters(self, process),
        )
        try:
            await join_cluster(parts, process.runtime)
        except BaseException:
            await parts.close()
            raise
        return SegmentStore(parts)

    async def open_neighbour(self, process: SimulatedProcess) -> SegmentStore:
        """Open the other store, with its log in files. Raises as `open_store`."""
        settings = {name: value for name, value in self.settings.items() if name != "tier1"}
        # Else it would be refused: the first store knows nothing of it, and has its marker there.
        settings["shared_tier2"] = True
        parts = await open_store(
            NEIGHBOUR, settings, {}, process.runtime, NeighbourAdapters(self, process)
        )
        self.neighbour_tag = store_tag(parts.store_id)
        return SegmentStore(parts)

    def object_storage(self, process: SimulatedProcess) -> ObjectStorage:
        """Tier 2 as a process sees it."""
        return ProcessAdapters(self, process).storage("", process.runtime)

    def archive_storage(self, process: SimulatedProcess) -> ObjectStorage:
        """The archive as a process sees it."""
        return ProcessAdapters(self, process).storage(ARCHIVE, process.runtime)


async def stopped_catalogs(process: SimulatedProcess) -> StoppedCatalogs:
    """The catalogs in the store's folder, as a process reads them that has not opened it."""
    runtime = process.runtime
    file = await on_disk(runtime, LOCATION, read_store_file, LOCATION, runtime)
    store_id = file.store_id if file is not None else NO_STORE
    return StoppedCatalogs(
        lambda number: catalog_directory(LOCATION, number), store_id, runtime, MemoryKeyStore
    )


class ProcessAdapters:
    """`StoreAdapters` of one process in a world."""

    def __init__(self, world: StoreWorld, process: SimulatedProcess) -> None:
        self._world = world
        self._process = process

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        if self._world.tier1 == "ledger":
            return SimulatedLedgerFactory(self._world.ledgers, self._process)
        return make_log_factory(tier1, location, environment, runtime, connect=self._connect)

    async def _connect(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        servers = self._world.bookkeeper
        nodes = self._world.nodes[self._process.name] = SimulatedNodes(servers, self._process)
        return BookKeeperClients(SimulatedLedgers(servers, self._process), nodes)

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        if url == ARCHIVE:
            return SimulatedObjectStorage(self._world.archive, self._process, page_objects=10)
        if self._world.tier2 == "file":
            return FileObjectStorage(TIER2, runtime, page_objects=10)
        return SimulatedObjectStorage(self._world.bucket, self._process, page_objects=10)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        return SimulatedCache(self._process, config.read_index.cache_bytes_max)

    def key_store(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> KeyStore:
        return MemoryKeyStore(directory, identity, runtime)


class NeighbourAdapters(ProcessAdapters):
    """Of the other store: a log of its own, and the same objects."""

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        return make_log_factory(tier1, location, environment, runtime)
