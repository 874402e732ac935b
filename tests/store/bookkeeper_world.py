"""Stores whose Tier 1 is BookKeeper in memory: one cluster and one tree of nodes, many folders and
processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.open_steps import open_store
from segmentstore.store_adapters import DefaultAdapters
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore
from tests.store.harness import LAZY

ROOT = "/stores/one"
URL = f"bookkeeper://zoo:2181{ROOT}?ledger_bytes=4KiB"


class ClosedOnce(MemoryLedgerStore):
    """Remembers that it was closed."""

    closed_times = 0

    async def close(self) -> None:
        self.closed_times += 1
        await super().close()


class BookKeeperWorld(DefaultAdapters):
    """The services, and the adapters of every store on them."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = MemoryCluster()
        self.tree = NodeTree()
        self.clients: list[BookKeeperClients] = []

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        assert location.path
        self.clients.append(BookKeeperClients(ClosedOnce(self.cluster), MemoryNodes(self.tree)))
        return self.clients[-1]

    async def open(
        self, folder: Path, *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> SegmentStore:
        # Owners in one process take over from one another, on purpose; tests of manners say
        # otherwise.
        chosen = {**LAZY, "tier1": URL, "take_over": True, **options}
        return SegmentStore(
            await open_store(str(folder), chosen, environment or {}, Runtime(), self)
        )

    def all_closed(self) -> bool:
        return all(
            isinstance(each.ledgers, ClosedOnce) and each.ledgers.closed_times == 1
            for each in self.clients
        )


def name_in(container_id: int, containers: int, tag: str = "s") -> str:
    """A segment's name that is alive in this container."""
    return next(
        name
        for number in range(10_000)
        if container_of(name := f"{tag}{number}", containers) == container_id
    )
