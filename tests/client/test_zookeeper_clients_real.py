"""Clients that find hosts by a real ZooKeeper, where these are registered by the test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import segmentstore
from durablelog.bookkeeper.bookkeeper_clients import open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.metadata_node import MetadataNodes
from durablelog.bookkeeper.store_node import encode_identity
from durablelog.durable_data_log_factory import StoreIdentity
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import free_port
from segmentstore import NotAStoreError, SegmentStore, StoreUnreachableError, blocking
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.cluster.host_record import HostRecord
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import open_tiny, run

LIMIT_S = 240


@pytest.fixture
def location(shared_bookkeeper: BookKeeperCluster, tmp_path: Path) -> BookKeeperLocation:
    """A path of the shared cluster that is the test's alone."""
    shared_bookkeeper.start()
    url = f"zookeeper://{shared_bookkeeper.zookeeper}/{tmp_path.name}?session_timeout_s=4"
    return BookKeeperLocation.parse_zookeeper(url)


async def register(nodes: MetadataNodes, root: str, started_ms: int, port: int) -> None:
    """One host for both containers, as a host does it when it has started."""
    there = ClusterNodes(nodes, root)
    stored = await there.read_map()
    owners = {0: f"host-{started_ms}", 1: f"host-{started_ms}"}
    epoch = 1 if stored is None else stored.map.epoch + 1
    await there.write_map(AssignmentMap(epoch=epoch, owners=owners), stored)
    for node in await there.host_nodes():
        await there.withdraw(node)
    record = HostRecord(owners[0], "127.0.0.1", port, "", started_ms)
    await there.register(HostNode(owners[0], started_ms, "0" * 16), record)


def test_hosts_that_come_and_go(tmp_path: Path, location: BookKeeperLocation) -> None:
    """The store is opened at another port each time, and the client goes on."""

    @asynccontextmanager
    async def opened_host() -> AsyncIterator[tuple[SegmentStore, int]]:
        port = free_port()
        async with open_tiny(tmp_path / "s", containers=2, wire_port=port) as host:
            yield host, port

    async def main() -> None:
        nodes = await open_nodes(location, os.environ, Runtime())
        try:
            with pytest.raises(NotAStoreError):
                await segmentstore.connect(location.zookeeper_url)
            async with opened_host() as (host, port):
                identity = StoreIdentity(host.store_id, 2, "file:x")
                await nodes.create(location.path, encode_identity(identity))
                with pytest.raises(StoreUnreachableError, match="no host of it is registered"):
                    await segmentstore.connect(location.zookeeper_url)
                await register(nodes, location.path, 1, port)
                store = await segmentstore.connect(location.zookeeper_url)
                await store.create_segment("x")
            async with store:
                for started_ms in (2, 3):
                    async with opened_host() as (_, port):
                        await register(nodes, location.path, started_ms, port)
                        await store.append("x", b"1")
                        assert await store.read("x", 0, 10) == b"1" * (started_ms - 1)
        finally:
            await nodes.close()

    run(main(), limit_s=LIMIT_S)


def test_without_await(tmp_path: Path, location: BookKeeperLocation) -> None:
    port = free_port()
    with blocking.open(tmp_path / "s", containers=2, wire_port=port) as host:
        identity = StoreIdentity(host.stats()["store_id"], 2, "file:x")

        async def main() -> None:
            nodes = await open_nodes(location, os.environ, Runtime())
            try:
                await nodes.create(location.path, encode_identity(identity))
                await register(nodes, location.path, 1, port)
                await blocking_use()
            finally:
                await nodes.close()

        async def blocking_use() -> None:
            # Its thread has a loop of its own, so this one may wait for it.
            with blocking.connect(location.zookeeper_url) as store:
                store.create_segment("x")
                assert store.append("x", b"1") == 0

        run(main(), limit_s=LIMIT_S)
