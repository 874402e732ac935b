"""The gateway keeps the contract of a LedgerStore, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import LedgerStore
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_store_contract import LedgerStoreContract, LedgerWorld
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway


class RealWorld(LedgerWorld):
    def __init__(self, cluster: BookKeeperCluster) -> None:
        self.settings = GatewaySettings(metadata_uri=cluster.metadata_uri, password=b"secret")

    async def connect(self) -> LedgerStore:
        store = GatewayLedgerStore(self.settings, Runtime())
        await store.open()
        return store


@pytest.fixture(scope="module")
def real_world(shared_bookkeeper: BookKeeperCluster) -> Iterator[RealWorld]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield RealWorld(shared_bookkeeper)


class TestGateway(LedgerStoreContract):
    @pytest.fixture(autouse=True)
    def _world(self, real_world: RealWorld) -> None:
        self.world = real_world

    def make_world(self, tmp_path: Path) -> LedgerWorld:
        return self.world
