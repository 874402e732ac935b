"""The first connection of a store: what may pass is tried again, as long as an opening is
patient.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from durablelog.bookkeeper.ledger_store import Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.gateway_world import ENDING_S

ROOT = Path(__file__).resolve().parents[3]


def test_a_gateway_that_comes_up_while_a_store_is_opened_is_waited_for(
    shared_bookkeeper: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_bookkeeper.start()
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    port = free_port()
    command = [sys.executable, "-m", "durablelog.bookkeeper.gateway", str(port)]

    async def scenario() -> None:
        location = BookKeeperLocation.parse(f"{shared_bookkeeper.url()}?gateway=127.0.0.1:{port}")
        clients = await open_clients(location, {}, Runtime())
        await (await clients.ledgers.create(Replication(), {})).close()
        await clients.close()

    # Java takes a second to listen: the first try finds no listener.
    gateway = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(asyncio.wait_for(scenario(), 240))
    finally:
        gateway.terminate()
        gateway.wait(ENDING_S)


def test_who_is_not_there_in_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    monkeypatch.setattr(bookkeeper_clients, "OPEN_TIMEOUT_S", 0.2)
    location = BookKeeperLocation.parse(
        f"bookkeeper://127.0.0.1:1/x?gateway=127.0.0.1:{free_port()}"
    )
    with pytest.raises(TierUnavailableError, match="gateway"):
        asyncio.run(open_clients(location, {}, Runtime()))
