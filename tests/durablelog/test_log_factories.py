"""The factories of logs against their contract: files, memory, BookKeeper in memory."""

from __future__ import annotations

from pathlib import Path

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_log_factory import BookKeeperLogFactory
from durablelog.bookkeeper.ledger_calls import custom_metadata
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.durable_data_log_factory import DurableDataLogFactory
from durablelog.file.file_log_factory import FileLogFactory
from durablelog.memory_data_log import MemoryLogStore
from durablelog.memory_log_factory import MemoryLogFactory
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_factory_contract import (
    DurableDataLogFactoryContract,
    FactoryWorld,
)
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore


class _FolderWorld(FactoryWorld):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_factory(self) -> DurableDataLogFactory:
        return FileLogFactory(str(self._folder / "log"), Runtime())


class _MemoryWorld(FactoryWorld):
    def __init__(self) -> None:
        self._store = MemoryLogStore()

    def make_factory(self) -> DurableDataLogFactory:
        return MemoryLogFactory(self._store)


class _BookKeeperWorld(FactoryWorld):
    def __init__(self) -> None:
        self._cluster = MemoryCluster()
        self._tree = NodeTree()

    async def _connect(self, *_: object) -> BookKeeperClients:
        return BookKeeperClients(MemoryLedgerStore(self._cluster), MemoryNodes(self._tree))

    def make_factory(self) -> DurableDataLogFactory:
        url = "bookkeeper://zoo:2181/stores/one"
        return BookKeeperLogFactory(url, {}, Runtime(), connect=self._connect)

    async def leave_orphan(self, store_id: str) -> int:
        self._cluster.make(Replication(), custom_metadata(store_id, 0, 1))
        return 1


class TestFileLogFactory(DurableDataLogFactoryContract):
    def make_world(self, tmp_path: Path) -> FactoryWorld:
        return _FolderWorld(tmp_path)


class TestMemoryLogFactory(DurableDataLogFactoryContract):
    def make_world(self, tmp_path: Path) -> FactoryWorld:
        return _MemoryWorld()


class TestBookKeeperLogFactory(DurableDataLogFactoryContract):
    def make_world(self, tmp_path: Path) -> FactoryWorld:
        return _BookKeeperWorld()
