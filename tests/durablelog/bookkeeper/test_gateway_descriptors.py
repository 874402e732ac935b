"""A process without descriptors, or without the gateway's socket, and the gateway it has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED
from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway
from durablelog.bookkeeper.ledger_store import LedgerError, Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.contracts.ledger_store_contract import Results, append_all, entry, read_all
from tests.durablelog.bookkeeper.gateway_world import run, store_of


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The process may open no file and no socket."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors are given lowest first: with all below the limit in use there is none.
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_the_way_to_the_gateway_is_lost_for_that_call_alone(
    cluster: BookKeeperCluster,
) -> None:
    """An OSError, which no code of the log expects, would stop a container for good."""

    async def scenario(store: GatewayLedgerStore, gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        results = Results(writer)
        await append_all(writer, results, [[entry(0)]])
        other = store_of(cluster)
        with no_descriptor_left():
            with pytest.raises(LedgerError, match="Too many open files") as reading:
                await read_all(store, writer.ledger_id, 0, 0)
            with pytest.raises(LedgerError, match="Too many open files") as opening:
                await other.open()
        assert (reading.value.code, opening.value.code) == (GATEWAY_CLOSED, GATEWAY_CLOSED)
        await append_all(writer, results, [[entry(1)]])
        assert await read_all(store, writer.ledger_id, 0, 1) == [entry(0), entry(1)]
        await other.open()
        await other.close()
        assert gateway.alive

    run(cluster, scenario)


def test_a_gateway_whose_socket_was_removed_is_followed_by_another(
    cluster: BookKeeperCluster,
) -> None:
    """By a tool that cleans the temporary folder: no container could be opened any more."""

    async def scenario(store: GatewayLedgerStore, gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        results = Results(writer)
        await append_all(writer, results, [[entry(0)]])
        os.unlink(gateway.data_socket)
        with pytest.raises(LedgerError, match="No such file") as reading:
            await read_all(store, writer.ledger_id, 0, 0)
        assert reading.value.code == GATEWAY_CLOSED
        assert await read_all(store, writer.ledger_id, 0, 0) == [entry(0)]
        assert not gateway.alive

    run(cluster, scenario)
