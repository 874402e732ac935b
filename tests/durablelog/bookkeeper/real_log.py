"""A log on a real cluster, with clients of its own, and appends that fail as planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import AddResult, LedgerWriter, Replication
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tests.contracts.log_world import PAYLOAD_BYTES_MAX
from tests.durablelog.bookkeeper.bookkeeper_world import options


def never() -> int:
    """As `left` of a log none of whose appends is made to fail."""
    return 1


class _Failing(LedgerWriter):
    """A writer whose append number `left` fails with a code no log knows, and all later ones."""

    def __init__(self, inner: LedgerWriter, left: Callable[[], int]) -> None:
        self._inner = inner
        self._left = left
        self._dead = False

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    def append(self, parts: Sequence[Buffer]) -> None:
        self._inner.on_results = self.on_results
        if not self._dead and self._left() > 0:
            self._inner.append(parts)
        else:
            self._dead = True
            asyncio.get_running_loop().call_soon(lambda: self.on_results([AddResult(-999, -1)]))

    async def close(self) -> None:
        await self._inner.close()


class _FailingStore(GatewayLedgerStore):
    def __init__(self, settings: GatewaySettings, left: Callable[[], int]) -> None:
        super().__init__(settings, Runtime())
        self._left = left

    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        return _Failing(await super().create(replication, custom), self._left)


class RealLog(BookKeeperLog):
    """With clients of its own, as a process has them."""

    def __init__(
        self,
        cluster: BookKeeperCluster,
        path: str,
        left: Callable[[], int] = never,
        log_options: BookKeeperLogOptions | None = None,
    ) -> None:
        settings = GatewaySettings(metadata_uri=cluster.metadata_uri, password=b"secret")
        self.ledger_client = _FailingStore(settings, left)
        self.node_client = ZookeeperNodes(ZookeeperSettings(hosts=[cluster.zookeeper]), Runtime())
        super().__init__(
            3,
            Runtime(),
            self.ledger_client,
            self.node_client,
            path,
            store_id="5d0c",
            options=log_options or options(),
            payload_bytes_max=PAYLOAD_BYTES_MAX,
        )

    async def open(self) -> None:
        if not self._closed:
            await self.ledger_client.open()
            await self.node_client.open()
        await super().open()

    async def close(self) -> None:
        await super().close()
        await self.ledger_client.close()
        await self.node_client.close()
