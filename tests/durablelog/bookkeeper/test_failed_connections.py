"""What connections that fail leave in a gateway that others go on using: nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from durablelog.bookkeeper.client_settings import NONE, ClientSettings
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import LedgerError
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.gateway_world import opened
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import until

IMPATIENT = ClientSettings({"zkTimeout": "500"}, {})
NO_POLICY = ClientSettings({"ensemblePlacementPolicy": "no.such.Policy"}, {})
OF_A_CLIENT = ("connect-", "BookKeeperClien")


def threads_of_clients(process: int) -> int:
    """Of BookKeeper's clients in a gateway, and of their sessions with ZooKeeper."""
    names = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            names.append((thread / "comm").read_text())
    return sum(name.startswith(OF_A_CLIENT) for name in names)


@pytest.mark.parametrize("fault", ["no server", "no nodes of BookKeeper", "no such class"])
def test_connections_that_fail_leave_no_thread_and_no_session_in_the_gateway(
    shared_bookkeeper: BookKeeperCluster, fault: str
) -> None:
    shared_bookkeeper.start()
    uri = shared_bookkeeper.metadata_uri
    settings = {
        "no server": (f"zk+null://127.0.0.1:{free_port()}/ledgers", IMPATIENT),
        "no nodes of BookKeeper": (uri.rpartition("/")[0] + "/elsewhere", NONE),
        "no such class": (uri, NO_POLICY),
    }

    async def scenario() -> None:
        with kept_gateway() as gateway:
            async with opened(shared_bookkeeper):
                before = threads_of_clients(gateway.process.pid)
                assert before
                for _ in range(3):
                    where, given = settings[fault]
                    store = GatewayLedgerStore(
                        GatewaySettings(metadata_uri=where, given=given), Runtime()
                    )
                    with pytest.raises((LedgerError, ConfigError)):
                        await store.open()
                    await store.close()
                # They end beside the answer.
                await until(lambda: threads_of_clients(gateway.process.pid) <= before)

    asyncio.run(asyncio.wait_for(scenario(), 240))
