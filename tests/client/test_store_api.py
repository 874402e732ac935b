"""One API: an embedded store, one over the Unix socket in its folder, one over a port, with and
without TLS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import segmentstore
from segmentstore import ClusterStore, SegmentStore, StoreApi
from tests.client.cluster_world import ClusterWorld
from tests.contracts.store_api_contract import StoreApiContract
from tests.contracts.store_api_listings_contract import StoreListingsContract
from tests.contracts.store_api_reads_contract import StoreReadsContract
from tests.contracts.store_api_world import StoreApiWorld
from tests.server.test_tls import files_of, trusting
from tests.server.wire_client import served
from tests.store.certificates import make_certificates
from tests.store.harness import TINY, open_tiny


class Embedded(StoreApiWorld):
    @asynccontextmanager
    async def open_api(
        self, folder: Path, **options: Any
    ) -> AsyncIterator[tuple[StoreApi, SegmentStore]]:
        async with open_tiny(folder, local_server=False, **options) as store:
            yield store, store


class UnixSocket(StoreApiWorld):
    @asynccontextmanager
    async def open_api(
        self, folder: Path, **options: Any
    ) -> AsyncIterator[tuple[StoreApi, SegmentStore]]:
        async with open_tiny(folder, **options) as embedded, segmentstore.connect(folder) as store:
            yield store, embedded


class Port(StoreApiWorld):
    @asynccontextmanager
    async def open_api(
        self, folder: Path, **options: Any
    ) -> AsyncIterator[tuple[StoreApi, SegmentStore]]:
        async with (
            served(folder.parent, **options) as (embedded, server),
            segmentstore.connect(f"127.0.0.1:{server.port}") as store,
        ):
            yield store, embedded


class TlsPort(StoreApiWorld):
    @asynccontextmanager
    async def open_api(
        self, folder: Path, **options: Any
    ) -> AsyncIterator[tuple[StoreApi, SegmentStore]]:
        keys = folder.parent / "keys"
        make_certificates(keys)
        async with (
            served(folder.parent, certificates=files_of(keys), **options) as (embedded, server),
            segmentstore.connect(f"127.0.0.1:{server.port}", tls=trusting(keys)) as store,
        ):
            yield store, embedded


class Cluster(StoreApiWorld):
    """Two hosts, if there are containers for both; the owner of the first one is the embedded
    store.
    """

    @asynccontextmanager
    async def open_api(
        self, folder: Path, **options: Any
    ) -> AsyncIterator[tuple[StoreApi, SegmentStore]]:
        containers = options.get("containers", 1)
        world = ClusterWorld(folder, links=False, **{**TINY, "containers": containers, **options})
        try:
            names = ("one", "two")[:containers]
            await world.assign(*names)
            await world.start(*names)
            await world.until_served(shared=True)
            async with self.client(world) as store:
                yield store, world.hosts[world.owner(0)].store
        finally:
            await world.close()

    def client(self, world: ClusterWorld) -> AbstractAsyncContextManager[ClusterStore]:
        """Of a cluster in which each container is served."""
        return world.client()


class ByZookeeper(Cluster):
    """The hosts are found by ZooKeeper."""

    def client(self, world: ClusterWorld) -> AbstractAsyncContextManager[ClusterStore]:
        return world.client_by_zookeeper()


class TestCluster(Cluster, StoreApiContract, StoreReadsContract): ...


class TestClusterListings(Cluster, StoreListingsContract):
    def place_in(self, address: int) -> str:
        return f"entry {address & 0xFFFFFFFF}"


class TestByZookeeper(ByZookeeper, StoreApiContract): ...


class TestEmbedded(Embedded, StoreApiContract, StoreReadsContract): ...


class TestUnixSocket(UnixSocket, StoreApiContract, StoreReadsContract): ...


class TestPort(Port, StoreReadsContract): ...


class TestTlsPort(TlsPort, StoreApiContract, StoreReadsContract): ...


class TestEmbeddedListings(Embedded, StoreListingsContract): ...


class TestUnixSocketListings(UnixSocket, StoreListingsContract): ...


class TestTlsPortListings(TlsPort, StoreListingsContract): ...
