"""What the gateway asks for ahead of a reader that takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import OK, AddResult, LedgerWriter, Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway

SMALL = 60
LARGE = 150
LARGE_BYTES = 256 * 1024
"""More than a socket takes of a few."""
AHEAD = 32
"""Entries, whatever their size."""


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


async def written(writer: LedgerWriter, entries: Sequence[bytes]) -> None:
    """Returns when all are acknowledged."""
    left = len(entries)
    done = asyncio.Event()

    def take(results: Sequence[AddResult]) -> None:
        nonlocal left
        for result in results:
            assert result.code == OK
            left -= result.entries
        if not left:
            done.set()

    writer.on_results = take
    for entry in entries:
        writer.append([entry])
    await done.wait()


def test_behind_small_entries_few_large_ones_are_asked_for(cluster: BookKeeperCluster) -> None:
    """A log whose writers were idle and then had much to write. All that is asked for is in the
    memory of the gateway, and bookies that send it are late with everything else.
    """

    async def scenario() -> None:
        settings = GatewaySettings(metadata_uri=cluster.metadata_uri, password=b"secret")
        store = GatewayLedgerStore(settings, Runtime())
        await store.open()
        try:
            writer = await store.create(Replication(3, 3, 2), {})
            entries = [bytes(10)] * SMALL + [bytes(LARGE_BYTES)] * LARGE
            await written(writer, entries)
            await writer.close()
            found: list[int] = []
            async for batch in store.read(writer.ledger_id, 0, len(entries) - 1):
                found += map(len, batch)
                held = (await store.gateway_usage())[2]
                assert held <= AHEAD, f"{held} are asked for beyond {len(found)}"
            assert found == [len(entry) for entry in entries]
            while (await store.gateway_usage())[2]:
                # The last ones leave the count a moment after they were sent.
                pass
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))
