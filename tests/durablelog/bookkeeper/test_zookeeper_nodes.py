"""ZookeeperNodes against a real ZooKeeper: the contract, and what only a real service does to its
clients.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.cluster.addresses import choose_addresses
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.contracts.metadata_node_contract import MetadataNodeContract, NodeWorld
from tests.contracts.node_coordination_contract import NodeCoordinationContract
from tests.durablelog.bookkeeper.zookeeper_world import (
    connect,
    expire,
    lose_session,
    run,
    running_zookeeper,
)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as cluster:
        yield cluster


@pytest.fixture
def root() -> str:
    return f"/test-{os.getpid()}-{next(_numbers)}"


class StoppedBehindADeletion(ZookeeperNodes):
    """Goes on behind its first deletion of a node when it may."""

    def __init__(self, settings: ZookeeperSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self.reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def _remove(self, path: str) -> None:
        await super()._remove(path)
        if not self.reached.is_set():
            self.reached.set()
            await self.may_go_on.wait()


class _World(NodeWorld):
    def __init__(self, cluster: BookKeeperCluster) -> None:
        self._cluster = cluster
        self.root = f"/contract-{os.getpid()}-{next(_numbers)}"

    async def connect(self) -> ZookeeperNodes:
        return await connect(self._cluster)

    async def lose_session(self, nodes: MetadataNodes) -> None:
        assert isinstance(nodes, ZookeeperNodes)
        await lose_session(self._cluster, nodes)


class TestContract(MetadataNodeContract, NodeCoordinationContract):
    @pytest.fixture(autouse=True)
    def _server(self, zookeeper: BookKeeperCluster) -> None:
        self.cluster = zookeeper

    @pytest.fixture(autouse=True)
    def _world(self, _server: None, tmp_path: Path) -> Any:
        self.world = self.make_world(tmp_path)
        return

    def make_world(self, tmp_path: Path) -> NodeWorld:
        return _World(self.cluster)


def test_an_expired_session_is_replaced_and_work_goes_on(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(root, b"0")
        client = nodes._client
        assert client is not None
        before = client.client_id
        lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        client.add_listener(
            lambda state: loop.call_soon_threadsafe(lost.set) if state == "LOST" else None
        )
        await loop.run_in_executor(None, expire, zookeeper, before)
        await lost.wait()
        assert await nodes.read(root) == NodeContent(b"0", 0)
        assert client.client_id[0] != before[0]
        assert await nodes.write(root, b"1", 0) == 1
        assert nodes.health() is None
        await nodes.close()

    run(scenario())


def test_a_write_that_gets_no_answer_is_unavailable_and_may_have_happened(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(root, b"0")
        patient_settings = nodes._settings
        zookeeper.pause_zookeeper()
        try:
            # For this call alone: a disk may be busy for longer.
            nodes._settings = dataclasses.replace(patient_settings, deadline_s=0.5)
            with pytest.raises(NodeUnavailableError) as caught:
                await nodes.write(root, b"1", 0)
            assert "did not answer" in caught.value.detail
        finally:
            nodes._settings = patient_settings
            zookeeper.resume_zookeeper()
        patient = await connect(zookeeper)
        # Sent before the pause was over, answered behind it: the same session asks in order.
        content = await nodes.read(root)
        assert content in (NodeContent(b"1", 1), NodeContent(b"0", 0))
        assert await patient.read(root) == content
        await nodes.close()
        await patient.close()

    run(scenario())


def test_a_server_killed_and_restarted_is_waited_for(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper, deadline_s=120)
        await nodes.create(root, b"0")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, zookeeper.kill_zookeeper)
        assert nodes._client is not None
        down = asyncio.ensure_future(nodes.read(root))
        while nodes._connected.is_set():  # noqa: ASYNC110 - kazoo notices when it does
            await asyncio.sleep(0.01)
        assert "connection is lost" in (nodes.health() or "")
        await loop.run_in_executor(None, zookeeper.start_zookeeper)
        assert await down == NodeContent(b"0", 0)
        assert await nodes.write(root, b"1", 0) == 1
        assert nodes.health() is None
        await nodes.close()

    run(scenario())


def test_changes_under_way_when_the_server_is_killed_end_in_doubt_or_in_order(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper, deadline_s=120)
        await nodes.create(root, b"0")
        loop = asyncio.get_running_loop()
        version, acknowledged, stop = 0, 0, False

        async def write() -> None:
            nonlocal version, acknowledged
            while not stop:
                try:
                    acknowledged = version = await nodes.write(root, b"%d" % (version + 1), version)
                except NodeUnavailableError:
                    content = await nodes.read(root)
                    assert content is not None
                    assert content.version in (version, version + 1)
                    assert content.data == b"%d" % content.version
                    version = content.version

        writing = asyncio.ensure_future(write())
        while version < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await loop.run_in_executor(None, zookeeper.kill_zookeeper)
        await loop.run_in_executor(None, zookeeper.start_zookeeper)
        reached = version
        while version < reached + 20:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stop = True
        await writing
        assert await nodes.read(root) == NodeContent(b"%d" % version, version)
        assert acknowledged <= version
        await nodes.close()

    run(scenario())


def test_an_acl_keeps_strangers_and_wrong_passwords_out(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        owner = await connect(zookeeper, credentials="store:secret", creator_only=True)
        await owner.create(f"{root}/deep/node", b"0")
        for credentials in (None, "store:wrong", "other:secret"):
            stranger = await connect(zookeeper, credentials=credentials)
            path = f"{root}/deep/node"
            for call in (
                stranger.read(path),
                stranger.write(path, b"1", 0),
                stranger.create(f"{path}/below", b""),
                stranger.children(f"{root}/deep"),
                stranger.delete(path, 0),
            ):
                with pytest.raises(NodeRefusedError) as caught:
                    await call
                assert "NoAuth" in caught.value.detail
                assert "secret" not in str(caught.value)
                assert "wrong" not in str(caught.value)
            await stranger.close()
        again = await connect(zookeeper, credentials="store:secret", creator_only=True)
        assert await again.read(f"{root}/deep/node") == NodeContent(b"0", 0)
        assert await again.write(f"{root}/deep/node", b"1", 0) == 1
        await owner.close()
        await again.close()

    run(scenario())


def test_a_missing_server_is_unavailable_after_the_deadline_and_reported_in_health(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        addresses = choose_addresses(tmp_path, 1, None)
        settings = ZookeeperSettings(hosts=[f"127.0.0.1:{addresses.zookeeper}"], deadline_s=0.2)
        nodes = ZookeeperNodes(settings, Runtime())
        await nodes.open()
        with pytest.raises(NodeUnavailableError) as caught:
            await nodes.read("/x")
        assert f"{addresses.zookeeper}" in caught.value.detail
        assert "no server has answered" in (nodes.health() or "")
        await nodes.close()
        await nodes.close()

    run(scenario())


def test_closing_ends_who_waits_for_a_connection_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        addresses = choose_addresses(tmp_path, 1, None)
        settings = ZookeeperSettings(hosts=[f"127.0.0.1:{addresses.zookeeper}"], deadline_s=1000)
        nodes = ZookeeperNodes(settings, Runtime())
        await nodes.open()
        waiting = asyncio.ensure_future(nodes.write("/x", b"", 0))
        reading = asyncio.ensure_future(nodes.read("/x"))
        await asyncio.sleep(0)
        await nodes.close()
        for call in (waiting, reading):
            with pytest.raises(NodeUnavailableError) as caught:
                await call
            assert "closed" in caught.value.detail

    run(scenario())


def test_a_client_whose_thread_died_is_replaced(zookeeper: BookKeeperCluster, root: str) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(root, b"0")
        dead = nodes._client
        assert dead is not None
        await asyncio.get_running_loop().run_in_executor(None, dead.stop)
        assert await nodes.read(root) == NodeContent(b"0", 0)
        assert nodes._client is not dead
        await nodes.close()

    run(scenario())


def test_calls_in_flight_end_when_the_session_is_closed(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(root, b"0")
        zookeeper.pause_zookeeper()
        try:
            calls = [asyncio.ensure_future(nodes.read(root)) for _ in range(3)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(nodes.close())
            await asyncio.sleep(0)
        finally:
            zookeeper.resume_zookeeper()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, NodeUnavailableError | NodeContent) for each in results)
        await closing
        with pytest.raises(NodeUnavailableError):
            await nodes.write(root, b"1", 0)

    run(scenario())


def test_credentials_are_in_no_representation() -> None:
    assert "secret" not in repr(ZookeeperSettings(hosts=["h:1"], credentials="user:secret"))


def test_conflicts_name_the_node(zookeeper: BookKeeperCluster, root: str) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(root, b"0")
        with pytest.raises(NodeConflictError) as caught:
            await nodes.write(root, b"1", 7)
        assert caught.value.path == root
        await nodes.close()

    run(scenario())


def test_what_is_held_is_held_again_in_the_next_session(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        holder = await connect(zookeeper, session_timeout_s=4)
        other = await connect(zookeeper)
        await holder.hold(f"{root}/owners/1", b"me")
        assert await holder.address() == "127.0.0.1"
        client = holder._client
        assert client is not None
        first = client.client_id
        await asyncio.get_running_loop().run_in_executor(None, expire, zookeeper, first)
        node, content = f"{root}/owners/1", None
        while client.client_id == first or content is None:
            await asyncio.sleep(0.01)
            content = await other.read(node)
        assert content == NodeContent(b"me", 0)
        await holder.close()
        assert await other.read(f"{root}/owners/1") is None
        await other.close()

    run(scenario())


def test_who_releases_while_the_node_is_created_for_a_new_session_leaves_none(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        path = f"{root}/owners/1"
        before = await connect(zookeeper)  # plays the session before, which has not ended yet
        # Not `hold`: a session that ended does not create its node again when it is connected.
        await before._ephemerals.hold(path, b"me")
        holder = StoppedBehindADeletion(ZookeeperSettings(hosts=[zookeeper.zookeeper]), Runtime())
        await holder.open()
        holding = asyncio.ensure_future(holder.hold(path, b"me"))
        await holder.reached.wait()  # of the node of the session before
        letting = asyncio.ensure_future(holder.release(path))
        await asyncio.sleep(0)
        # The session answers in order: whatever was asked for by now has been done.
        assert await holder.read(path) is None
        holder.may_go_on.set()
        await holding
        await letting
        assert await before.read(path) is None
        await holder.close()
        await before.close()

    run(scenario())
