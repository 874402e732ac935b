"""A cluster in one process: hosts whose logs, nodes and objects are in memory and shared, and a
client of them.

With `links` the hosts are reached by connections in memory, in virtual time; else by ports.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import segmentstore
from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.memory_cache import MemoryCache
from recovery.harness.services.server import free_port
from recovery.harness.simulation.memory_links import MemoryLink
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import ClusterStore, RemoteStore, SegmentStore, StoreUnreachableError
from segmentstore.client.client_connection import ClientConnection
from segmentstore.client.cluster_store import cluster_store
from segmentstore.client.connecting import CONNECT_S, store_behind
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.cluster.administration import edit_map
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_search import find_hosts
from segmentstore.cluster.map_edits import drain, pin
from segmentstore.cluster.membership import join_cluster
from segmentstore.config import StoreConfig
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.cluster_controller import open_seat
from segmentstore.controller.controller_seat import ControllerSeat
from segmentstore.network_ports import make_server, open_ports
from segmentstore.open_steps import open_store
from segmentstore.server.wire_server import WireServer
from segmentstore.tier1 import make_log_factory
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore
from tests.store.harness import LAZY, bury
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage

T = TypeVar("T")

ROOT = "/stores/one"
URL = f"bookkeeper://zoo:2181{ROOT}?ledger_bytes=64KiB"
ZOOKEEPER_URL = f"zookeeper://zoo:2181{ROOT}"
_POLL_S = 0.005


class ClusterHostProcess:
    """One host. Its `address` is a port of this machine, or stands for the host."""

    def __init__(self, store: SegmentStore, server: WireServer, address: StoreAddress) -> None:
        self.store = store
        self.server = server
        self.address = address
        self.process = MemoryProcess()
        self.ledger_process = MemoryProcess()
        """Of its ledgers alone: they may sleep, and its session in ZooKeeper goes on."""
        self.links: list[MemoryLink] = []
        self.seat: ControllerSeat | None = None
        """What answers calls of the Controller's service, if it is reached by links."""
        self.is_down = False

    def cut(self) -> None:
        """End all connections to it."""
        for link in self.links:
            link.cut()
        self.links.clear()


class ClusterWorld:
    """The services, and the hosts by name."""

    def __init__(
        self,
        folder: Path,
        *,
        links: bool = True,
        controllers: bool = False,
        serve: str = "cluster",
        ports: int = 0,
        **options: Any,
    ) -> None:
        """Hosts that are reached by links have the ports behind `ports`. Stores of one test have
        ports of their own: their ids come from these.
        """
        self.folder = folder
        self.links = links
        self.controllers = controllers
        self.serve = serve
        self.options = {**LAZY, "containers": 4, **options}
        self.containers: int = self.options["containers"]
        self.ledgers = MemoryCluster()
        self.tree = NodeTree()
        self.bucket = MemoryBucket()
        self.hosts: dict[str, ClusterHostProcess] = {}
        self.nodes = ClusterNodes(MemoryNodes(self.tree), ROOT)
        self._ports = ports
        self.searches: list[float] = []

    def runtime(self) -> Runtime:
        if not self.links:
            return Runtime()
        rng = random.Random(self._ports)
        return Runtime(clock=LoopClock(), random=rng, executor=inline_executor)

    async def assign(self, *names: str) -> None:
        """Before any host has started: have the containers shared by these. The leader waits for no
        other hosts then.
        """
        owners = {number: names[number % len(names)] for number in range(self.containers)}
        await self.nodes.write_map(AssignmentMap(epoch=1, owners=owners), None)

    async def start(self, *names: str) -> None:
        """Start these hosts, one after another."""
        for name in names:
            await self._start(name)

    async def _start(self, name: str) -> None:
        self._ports += 1
        process, ledger_process, runtime = MemoryProcess(), MemoryProcess(), self.runtime()
        port = self._ports if self.links else free_port()
        settings = {
            "tier1": URL,
            "tier2": "memory://cluster",
            "wire_port": port,
            "local_server": False,
            "controller_port": 0 if not self.controllers else 1 if self.links else free_port(),
            **self.options,
            "serve": self.serve,
            # Where Pravega's Controller assigns, hosts have the ids of their addresses.
            "host_id": name if self.serve == "cluster" else "",
        }
        adapters = _Adapters(self, process, ledger_process)
        folder = str(self.folder / f"{name}-{self._ports}")  # a killed host has its own locked
        parts = await open_store(folder, settings, {}, runtime, adapters)
        store = SegmentStore(parts)
        make = make_server if self.links else None
        server = make(store, parts, runtime) if make else await open_ports(store, parts, runtime)
        if self.links:
            parts.registry.watch(server.clean_up, lambda _: None)  # as behind a port
        host = self.hosts[name] = ClusterHostProcess(store, server, StoreAddress("127.0.0.1", port))
        host.process, host.ledger_process = process, ledger_process
        if self.links and self.controllers:
            host.seat = open_seat(store, server.context.tables, parts, None, None, runtime)
        await join_cluster(parts, runtime)

    async def stop(self, name: str) -> None:
        """Close a host in order: others take over before."""
        host = self.hosts.pop(name)
        await host.store.close()
        host.is_down = True
        host.cut()

    def kill(self, name: str) -> ClusterHostProcess:
        """End a host at once: its connections are cut, its session ends later."""
        host = self.hosts.pop(name)
        host.process.die()
        host.ledger_process.die()
        host.is_down = True
        host.cut()
        return host

    # --- containers -------------------------------------------------------------------------------

    def served(self) -> dict[str, list[int]]:
        """By host."""
        return {name: host.store.served for name, host in self.hosts.items()}

    def owner(self, container: int) -> str:
        return next(name for name, served in self.served().items() if container in served)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - hosts are stores, which have no event for it
            await asyncio.sleep(_POLL_S)

    async def until_served(self, *, shared: bool = False) -> None:
        """Until each container is served by one host exactly; `shared`: and each has some."""

        def served() -> bool:
            lists = list(self.served().values())
            numbers = sorted(number for served in lists for number in served)
            return numbers == [*range(self.containers)] and (not shared or all(lists))

        await self.until(served)

    async def move(self, container: int, name: str) -> None:
        """Pin a container to a host, and wait until it serves it."""
        await edit_map(self.nodes, lambda before: pin(before, self.containers, container, name))
        await self.until(lambda: container in self.hosts[name].store.served)

    async def drain(self, name: str) -> None:
        """Have all containers of a host moved away, and wait for that."""
        await edit_map(self.nodes, lambda before: drain(before, name))
        await self.until(lambda: not self.hosts[name].store.served)

    # --- clients ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def client_by_zookeeper(self, retry_s: float = 60.0) -> AsyncIterator[ClusterStore]:
        """A client that finds the hosts by ZooKeeper; `searches` has the times when it did."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bookkeeper_clients, "open_nodes", self._open_nodes)
            if self.links:
                location = BookKeeperLocation.parse_zookeeper(ZOOKEEPER_URL)
                search = partial(find_hosts, location, {}, self.runtime())
                found = await search()
                addresses = [StoreAddress(each.host, each.port) for each in found.hosts.hosts]
                rng = random.Random(7)
                store = await cluster_store(
                    ZOOKEEPER_URL, addresses, self.reach, rng, retry_s, search, found.store_id
                )
            else:
                connected = await segmentstore.connect(ZOOKEEPER_URL, retry_s=retry_s)
                assert isinstance(connected, ClusterStore)
                store = connected
            async with store:
                yield store

    async def _open_nodes(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> MemoryNodes:
        assert location.path == ROOT
        self.searches.append(asyncio.get_running_loop().time())
        return MemoryNodes(self.tree)

    @asynccontextmanager
    async def client(self, retry_s: float = 60.0) -> AsyncIterator[ClusterStore]:
        """A client that knows the addresses of all hosts."""
        addresses = [host.address for host in self.hosts.values()]
        location = ",".join(map(str, addresses)) + ","
        if self.links:
            rng = random.Random(7)
            store = await cluster_store(location, addresses, self.reach, rng, retry_s)
        else:
            connected = await segmentstore.connect(location, retry_s=retry_s)
            assert isinstance(connected, ClusterStore)
            store = connected
        async with store:
            yield store

    async def reach(self, address: StoreAddress) -> RemoteStore:
        """By a connection in memory."""
        host = next((host for host in self.hosts.values() if host.address == address), None)
        if host is None or host.is_down:
            raise StoreUnreachableError(address, "no server listens there")
        if host.process.stopped:
            # Its system takes the connection, and nothing comes.
            await asyncio.sleep(CONNECT_S)
            raise StoreUnreachableError(address, f"there was no answer for {CONNECT_S:g} s")
        connection = ClientConnection(str(address))
        host.links.append(MemoryLink(connection, host.server.accept(), delay_s=0.0005))
        return await store_behind(connection)

    async def close(self) -> None:
        """Stop all hosts; the last one takes its containers along."""
        for name in list(self.hosts):
            await self.stop(name)


class _Adapters:
    """`StoreAdapters` of one host."""

    def __init__(
        self, world: ClusterWorld, process: MemoryProcess, ledger_process: MemoryProcess
    ) -> None:
        self._world = world
        self._process = process
        self._ledger_process = ledger_process

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        return make_log_factory(tier1, location, environment, runtime, connect=self._connect)

    async def _connect(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        ledgers = MemoryLedgerStore(self._world.ledgers, self._ledger_process)
        return BookKeeperClients(ledgers, MemoryNodes(self._world.tree, self._process))

    def storage(self, url: str, runtime: Runtime) -> MemoryObjectStorage:
        return MemoryObjectStorage(runtime, self._world.bucket)

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> MemoryCache:
        return MemoryCache(config.read_index.cache_bytes_max)

    def key_store(
        self, directory: str, identity: KeyStoreIdentity, runtime: Runtime
    ) -> MemoryKeyStore:
        return MemoryKeyStore(directory, identity, runtime)


def run_cluster(
    folder: Path,
    body: Callable[[ClusterWorld], Coroutine[Any, Any, T]],
    *names: str,
    shared: bool = True,
    **options: Any,
) -> T:
    """Run a test on these hosts, in virtual time. They share the containers, or one has them."""

    async def main() -> T:
        world = ClusterWorld(folder, **options)
        await world.start(*names)
        await world.until_served(shared=shared)
        try:
            result = await body(world)
            await world.close()
        finally:
            await bury()  # hosts that were killed cannot close
        return result

    return run_virtual(main())
