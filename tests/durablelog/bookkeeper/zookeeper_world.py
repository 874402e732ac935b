"""A real ZooKeeper without bookies, its clients, and what is done to their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from durablelog.bookkeeper.cluster.addresses import choose_addresses
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings, end_session
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[BookKeeperCluster]:
    """ZooKeeper alone: no bookie is needed for nodes."""
    choose_addresses(folder, 1, None)
    cluster = BookKeeperCluster(folder, bookies=1)
    cluster.start_zookeeper()
    try:
        yield cluster
    finally:
        cluster.stop()


async def connect(cluster: BookKeeperCluster, **settings: Any) -> ZookeeperNodes:
    nodes = ZookeeperNodes(ZookeeperSettings(hosts=[cluster.zookeeper], **settings), Runtime())
    await nodes.open()
    return nodes


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 240))


def expire(cluster: BookKeeperCluster, client_id: Any) -> None:
    """End a session from outside: a second client takes it over and closes it."""
    thief = KazooClient(cluster.zookeeper, client_id=client_id)
    try:
        thief.start(60)
    finally:
        end_session(thief)


async def lose_session(cluster: BookKeeperCluster, nodes: ZookeeperNodes) -> None:
    """Return when it has ended, whether its client knows or not."""
    await nodes.read("/")  # it has one
    assert nodes._client is not None
    session = nodes._client.client_id
    assert session is not None
    await asyncio.get_running_loop().run_in_executor(None, expire, cluster, session)
