"""The cluster the BookKeeper benches measure against: ZooKeeper and three bookies on this machine,
with real journals.

Each case has one of its own, run as `segmentstore bookkeeper start` would run it,
`journalFlushWhenQueueEmpty=true`. With the default a single entry waits 2 ms for company, and the
cost of our path would hide behind that. All sides of a case share the cluster, and the cluster
shares the machine's cores with them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.workspace import BenchError
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.bookkeeper_log import PAYLOAD_BYTES_MAX, BookKeeperLog
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore, GatewaySettings
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.store_node import container_path
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import ServerFailedError
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.runtime import Runtime

NOTE = "three bookies and ZooKeeper on the same cores and disk, replication 3/3/2, journals synced"


@contextmanager
def bookkeeper_service(folder: Path) -> Iterator[BookKeeperCluster]:
    """A cluster in `folder`, and its end.

    Raises BenchError if it does not come up, or BookKeeper is not installed.
    """
    try:
        with BookKeeperCluster(folder / "cluster", full_speed=True) as cluster:
            yield cluster
    except (ServerFailedError, SegmentStoreError) as error:
        raise BenchError(str(error)) from error


class LogMaker:
    """Logs of a store that is nothing but its logs, over one gateway and one session with
    ZooKeeper.
    """

    def __init__(
        self, ledgers: GatewayLedgerStore, nodes: ZookeeperNodes, path: str, runtime: Runtime
    ) -> None:
        self.ledgers = ledgers
        self._nodes = nodes
        self._path = path
        self._runtime = runtime
        self._created = 0

    @asynccontextmanager
    async def log(self) -> AsyncIterator[BookKeeperLog]:
        """A new log; its ledgers are deleted at the end."""
        path = container_path(self._path, self._created)
        log = BookKeeperLog(
            self._created,
            self._runtime,
            self.ledgers,
            self._nodes,
            path,
            store_id="bench",
            options=BookKeeperLogOptions(),
            payload_bytes_max=PAYLOAD_BYTES_MAX,
        )
        self._created += 1
        await log.open()
        try:
            yield log
        finally:
            await log.close()
            for ledger_id in await self.ledgers.list_ids():
                await self.ledgers.delete(ledger_id)


@asynccontextmanager
async def log_maker(url: str) -> AsyncIterator[LogMaker]:
    """The clients of the cluster at `url`, which no other process uses: all its ledgers go with
    each log.
    """
    location = BookKeeperLocation.parse(url)
    runtime = Runtime()
    nodes = ZookeeperNodes(ZookeeperSettings(hosts=location.hosts), runtime)
    ledgers = GatewayLedgerStore(GatewaySettings(metadata_uri=location.metadata_uri), runtime)
    try:
        await nodes.open()
        await ledgers.open()
        yield LogMaker(ledgers, nodes, location.path, runtime)
    finally:
        await ledgers.close()
        await nodes.close()
