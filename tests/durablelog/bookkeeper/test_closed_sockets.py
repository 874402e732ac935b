"""No socket outlives what opened it, whenever and however that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients, open_clients, open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.addresses import choose_addresses
from durablelog.bookkeeper.gateway.gateway_control import GatewayControl
from durablelog.bookkeeper.gateway.gateway_ledger_store import (
    GatewayLedgerStore,
    GatewaySettings,
    _Link,
)
from durablelog.bookkeeper.gateway.gateway_process import HOST, GatewayProcess
from durablelog.bookkeeper.ledger_store import LedgerError
from durablelog.bookkeeper.metadata_node import NodeContent
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings, end_session
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.pausing import pause_process
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.support.open_sockets import open_sockets
from tests.support.suites import share


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


class ReportedWhenAsked:
    """A gateway's control, whose idle connections can be waited for."""

    def __init__(self, gateway: GatewayProcess, token: str) -> None:
        self.control = GatewayControl(HOST, gateway.port, token)
        self._idle: Any = self.control._java._gateway_client.deque

    def await_idle(self, count: int) -> None:
        pause = threading.Event()
        while len(self._idle) != count:
            pause.wait(0.001)


def test_a_control_call_that_ends_after_the_close_closes_its_connection() -> None:
    with kept_gateway() as gateway, ThreadPoolExecutor(1) as executor:
        before = open_sockets()
        asked = ReportedWhenAsked(gateway.process, gateway.token)
        asked.control.call("dataSocket")
        asked.await_idle(1)
        pause_process(gateway.process.pid)
        try:
            calling = executor.submit(asked.control.call, "dataSocket")
            asked.await_idle(0)
            asked.control.close()
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        assert calling.result() == [gateway.data_socket]
        assert open_sockets() <= before
        with pytest.raises(LedgerError, match="does not answer"):
            asked.control.call("dataSocket")
        assert open_sockets() <= before


def test_a_control_call_that_fails_closes_its_connection() -> None:
    before = open_sockets()
    gateway = GatewayProcess("token")
    asked = ReportedWhenAsked(gateway, "token")
    try:
        asked.control.call("dataSocket")
        gateway.kill()
        gateway.wait()
        with pytest.raises(LedgerError):
            asked.control.call("dataSocket")
    finally:
        asked.control.close()
        gateway.stop()
    assert open_sockets() <= before


class EndedByItsSuccess(GatewayLedgerStore):
    """Something happens in the turn in which an attempt to connect has succeeded, before its caller
    is notified of it.
    """

    def __init__(self, settings: GatewaySettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self.meanwhile: Any = None

    async def _connect(self) -> _Link:
        link = await super()._connect()
        self.meanwhile()
        return link


@pytest.mark.parametrize("end", share(["cancelled", "closed"], 2, 3))
def test_an_abandoned_attempt_to_connect_that_succeeds_is_undone(
    cluster: BookKeeperCluster, end: str
) -> None:
    async def scenario(users: int) -> None:
        before, loop = open_sockets(), asyncio.get_running_loop()
        store = EndedByItsSuccess(GatewaySettings(metadata_uri=cluster.metadata_uri), Runtime())
        opening = asyncio.ensure_future(store.open())
        closings: list[asyncio.Future[None]] = []
        if end == "cancelled":
            store.meanwhile = lambda: loop.call_soon(opening.cancel)
        else:
            store.meanwhile = lambda: closings.append(asyncio.ensure_future(store.close()))
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else LedgerError):
            await opening
        await asyncio.gather(*closings)
        await store.close()
        assert open_sockets() <= before
        assert gateway.users == users

    with kept_gateway() as gateway:
        gateway.control.call(
            "dataSocket"
        )  # so that one more connection to it is none of the scenario's
        asyncio.run(asyncio.wait_for(scenario(gateway.users), 240))


class Ending(KazooClient):  # type: ignore[misc] # it brings no types
    """Its thread ends when it may; reports when its sockets were to be closed before that."""

    def __init__(self, hosts: str) -> None:
        super().__init__(hosts)
        self.ending, self.may_end, self.was_asked = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.add_listener(self._lost)

    def _lost(self, state: str) -> None:
        if state == KazooState.LOST:
            self.ending.set()
            assert self.may_end.wait(60)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.was_asked.set()


def test_a_session_whose_thread_is_on_its_way_out_is_waited_for(cluster: BookKeeperCluster) -> None:
    before = open_sockets()
    client = Ending(cluster.zookeeper)
    client.start(60)
    with ThreadPoolExecutor(2) as executor:
        stopping = executor.submit(client.stop)
        assert client.ending.wait(60)
        closing = executor.submit(end_session, client)
        try:
            assert client.was_asked.wait(60)
        finally:
            client.may_end.set()
        stopping.result(60)
        closing.result(60)
    assert open_sockets() <= before


def test_clients_whose_event_loop_is_closed_are_ended_from_any_thread(
    cluster: BookKeeperCluster,
) -> None:
    async def opened() -> BookKeeperClients:
        location = BookKeeperLocation.parse(cluster.url())
        clients = await open_clients(location, {}, Runtime())
        await clients.nodes.hold("/held", b"me")
        return clients

    async def held() -> NodeContent | None:
        nodes = ZookeeperNodes(ZookeeperSettings(hosts=[cluster.zookeeper]), Runtime())
        await nodes.open()
        try:
            return await nodes.read("/held")
        finally:
            await nodes.close()

    with kept_gateway() as gateway:
        gateway.control.call("dataSocket")
        before, users = open_sockets(), gateway.users
        loop = asyncio.new_event_loop()
        clients = loop.run_until_complete(opened())
        loop.close()
        with ThreadPoolExecutor(1) as executor:
            for _ in range(2):
                executor.submit(clients.abandon).result(60)
        assert open_sockets() <= before
        assert gateway.users == users
        assert asyncio.run(held()) is None


def unused_address(folder: Path) -> str:
    """An address at which no ZooKeeper is."""
    return f"127.0.0.1:{choose_addresses(folder, 1, None).zookeeper}"


def test_an_opening_that_is_cancelled_leaves_no_session(tmp_path: Path) -> None:
    made: list[Executor] = []

    def executor(_name: str, threads: int) -> Executor:
        made.append(ThreadPoolExecutor(threads))
        return made[-1]

    async def scenario() -> None:
        before = open_sockets()
        location = BookKeeperLocation.parse(f"bookkeeper://{unused_address(tmp_path)}/store")
        opening = asyncio.ensure_future(open_nodes(location, {}, Runtime(executor=executor)))
        while not made:  # noqa: ASYNC110
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        made[0].shutdown(wait=True)  # as for a caller that ended it without waiting
        assert open_sockets() <= before

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_close_that_is_cancelled_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = open_sockets()
        nodes = ZookeeperNodes(ZookeeperSettings(hosts=[unused_address(tmp_path)]), Runtime())
        await nodes.open()
        holding = asyncio.gather(nodes.hold("/x", b""), return_exceptions=True)
        letting = asyncio.gather(nodes.release("/x"), return_exceptions=True)
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(nodes.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await nodes.close()
        assert open_sockets() <= before
        await asyncio.gather(holding, letting)

    asyncio.run(asyncio.wait_for(scenario(), 240))
