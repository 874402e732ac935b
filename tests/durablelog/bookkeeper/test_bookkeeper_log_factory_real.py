"""The factory on a real cluster: BookKeeper, ZooKeeper and the gateway keep its contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_log_factory import BookKeeperLogFactory
from durablelog.bookkeeper.ledger_calls import custom_metadata
from durablelog.durable_data_log_factory import DurableDataLogFactory
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_factory_contract import (
    DurableDataLogFactoryContract,
    FactoryWorld,
)
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway

_numbers = itertools.count()


class _ClusterWorld(FactoryWorld):
    def __init__(self, url: str) -> None:
        self._url = url

    def make_factory(self) -> DurableDataLogFactory:
        return BookKeeperLogFactory(self._url, {}, Runtime())

    async def leave_orphan(self, store_id: str) -> int:
        location = BookKeeperLocation.parse(self._url)
        clients = await open_clients(location, {}, Runtime())
        try:
            custom = custom_metadata(store_id, 0, 1)
            await clients.ledgers.create(location.replication, custom)
        finally:
            await clients.close()
        return 1


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


class TestOnARealCluster(DurableDataLogFactoryContract):
    @pytest.fixture(autouse=True)
    def _world(self, cluster: BookKeeperCluster) -> None:
        self.world = _ClusterWorld(cluster.url(f"/factories/{next(_numbers)}"))

    def make_world(self, tmp_path: Path) -> FactoryWorld:
        return self.world
