"""One API: an embedded store, one over the Unix socket in its folder, one over a port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import segmentstore
from segmentstore import SegmentStore, StoreApi
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.wire_server import WireServer
from segmentstore.tables.table_service import TableService
from tests.contracts.store_api_contract import StoreApiContract
from tests.contracts.store_api_listings_contract import StoreListingsContract
from tests.contracts.store_api_reads_contract import StoreReadsContract
from tests.contracts.store_api_world import StoreApiWorld
from tests.store.harness import open_tiny


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
        async with open_tiny(folder, **options) as embedded:
            tables = TableService(embedded)
            server = await WireServer.open(embedded, tables, "127.0.0.1", 0, Runtime())
            try:
                async with segmentstore.connect(f"127.0.0.1:{server.port}") as store:
                    yield store, embedded
            finally:
                await server.close()
                await tables.close()


class TestEmbedded(Embedded, StoreApiContract, StoreReadsContract): ...


class TestUnixSocket(UnixSocket, StoreApiContract, StoreReadsContract): ...


class TestPort(Port, StoreApiContract, StoreReadsContract): ...


class TestEmbeddedListings(Embedded, StoreListingsContract): ...


class TestUnixSocketListings(UnixSocket, StoreListingsContract): ...
