"""Stores over a real gateway and a real cluster, and ways to check what becomes of them."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway

ENDING_S = 60


def store_of(cluster: BookKeeperCluster, attach: str | None = None) -> GatewayLedgerStore:
    settings = GatewaySettings(metadata_uri=cluster.metadata_uri, password=b"secret", attach=attach)
    return GatewayLedgerStore(settings, Runtime())


@asynccontextmanager
async def opened(
    cluster: BookKeeperCluster, attach: str | None = None
) -> AsyncIterator[GatewayLedgerStore]:
    store = store_of(cluster, attach)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def run(
    cluster: BookKeeperCluster,
    scenario: Callable[[GatewayLedgerStore, OwnGateway], Coroutine[None, None, None]],
) -> None:
    async def with_store() -> None:
        with kept_gateway() as gateway:
            async with opened(cluster) as store:
                await asyncio.wait_for(scenario(store, gateway), 240)

    asyncio.run(with_store())


class Watched:
    """A process that need not be our child, and may be waited for. Checked while it is alive."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    def ends(self) -> bool:
        try:
            return bool(select.select([self._handle], [], [], ENDING_S)[0])
        finally:
            os.close(self._handle)


class ReportingExecutor(ThreadPoolExecutor):
    """Reports when a thread has begun with a control call of this name, and keeps such calls."""

    def __init__(self, name: str) -> None:
        super().__init__(8)
        self.begun = asyncio.Event()
        self.calls: list[Future[Any]] = []
        self._name = name
        self._loop = asyncio.get_running_loop()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if arguments[:1] != (self._name,):
            return super().submit(function, *arguments, **named)

        def told() -> Any:
            self._loop.call_soon_threadsafe(self.begun.set)
            return function(*arguments, **named)

        self.calls.append(super().submit(told))
        return self.calls[-1]
