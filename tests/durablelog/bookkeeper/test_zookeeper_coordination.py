"""Watches, elections and held nodes on a real ZooKeeper: what only a real service does to them, and
what it costs.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from durablelog.bookkeeper.metadata_node import (
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.zookeeper_nodes import end_session
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.contracts.node_coordination_contract import Calls, candidates
from tests.durablelog.bookkeeper.zookeeper_world import (
    connect,
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


async def outside(call: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


def test_a_refresh_of_a_held_node_is_one_change_and_a_repetition_none(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        path = f"{root}/hosts/one"

        async def place() -> tuple[int, int, int]:
            """When the node was created, was written, and its version."""
            stat = await nodes._ask(path, lambda client: client.exists_async(path))
            return stat.czxid, stat.mzxid, stat.version

        await nodes.hold(path, b"0")
        created, written, _ = await place()
        for number in range(1, 4):
            await nodes.hold(path, b"%d" % number)
            assert await place() == (created, written + number, number)
        await nodes.hold(path, b"3")
        nodes._holder.connected()  # as behind a new connection of the same session
        await nodes.hold(path, b"3")
        await nodes.create(f"{root}/next", b"")
        assert await place() == (created, written + 3, 3)
        stat = await nodes._ask(root, lambda client: client.exists_async(f"{root}/next"))
        assert stat.czxid == written + 4, "nothing came to the service in between"
        await nodes.close()

    run(scenario())


def test_watches_survive_a_restart_of_the_service(zookeeper: BookKeeperCluster, root: str) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper, deadline_s=30)
        other = await connect(zookeeper, deadline_s=30)
        await other.create(f"{root}/n", b"")
        content, names = Calls(), Calls()
        nodes.watch(f"{root}/n", content)
        nodes.watch(root, names)
        read = functools.partial(nodes.read, f"{root}/n")
        await content.until(read, NodeContent(b"", 0))
        await outside(zookeeper.kill_zookeeper)
        await outside(zookeeper.start_zookeeper)
        # The other is connected first at times, and the watches are not set yet.
        await other.write(f"{root}/n", b"", 0)
        await other.create(f"{root}/z", b"")
        await names.until(lambda: nodes.children(root), ["n", "z"])
        await content.until(read, NodeContent(b"", 1))
        await nodes.close()
        await other.close()

    run(scenario())


def test_a_leader_leads_on_after_a_restart_of_the_service_that_its_session_survived(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        one = await connect(zookeeper, deadline_s=30, session_timeout_s=20)
        two = await connect(zookeeper, deadline_s=30, session_timeout_s=20)
        ended = asyncio.Event()
        await one.lead(root, "one", ended.set)
        waiting = asyncio.ensure_future(two.lead(root, "two"))
        await candidates(one, root, [b"one", b"two"])
        await outside(zookeeper.kill_zookeeper)
        await ended.wait()
        assert not one.leads(root), "whether the session lives cannot be known"
        await outside(zookeeper.start_zookeeper)
        await one.lead(root, "one")
        assert not waiting.done()
        await candidates(two, root, [b"one", b"two"])
        await one.resign(root)
        await waiting
        await one.close()
        await two.close()

    run(scenario())


def test_leadership_passes_on_from_session_to_session(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        clients = [await connect(zookeeper) for _ in range(3)]
        lost = [asyncio.Event() for _ in clients]
        leading = []
        for place, nodes in enumerate(clients):
            leading.append(asyncio.ensure_future(nodes.lead(root, f"{place}", lost[place].set)))
            await candidates(clients[0], root, [b"%d" % each for each in range(place + 1)])
        for turn in range(6):
            place = turn % 3
            nodes = clients[place]
            await leading[place]
            assert [each.leads(root) for each in clients] == [each is nodes for each in clients]
            lost[place].clear()
            await lose_session(zookeeper, nodes)
            await lost[place].wait()
            leading[place] = asyncio.ensure_future(nodes.lead(root, f"{place}", lost[place].set))
            order = [b"%d" % ((turn + step) % 3) for step in (1, 2, 3)]
            await candidates(nodes, root, order)
        await leading[0]
        # The leader's last: a candidate behind it may be elected before its own close.
        for nodes in reversed(clients):
            await nodes.close()
        outcomes = await asyncio.gather(*leading, return_exceptions=True)
        assert sum(isinstance(each, NodeUnavailableError) for each in outcomes) == 2

    run(scenario())


def test_kazoos_lock_waits_behind_our_leader_and_we_behind_it(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        client = KazooClient(zookeeper.zookeeper)
        await outside(client.start, 60)
        try:
            await nodes.lead(root, "ours")
            lock = client.Lock(root, "kazoo's")
            waiting = asyncio.ensure_future(outside(lock.acquire))
            await candidates(nodes, root, [b"ours", b"kazoo's"])
            assert await outside(lock.contenders) == ["ours", "kazoo's"]
            assert not waiting.done()
            await nodes.resign(root)
            assert await waiting
            leading = asyncio.ensure_future(nodes.lead(root, "ours"))
            await candidates(nodes, root, [b"kazoo's", b"ours"])
            assert not leading.done()
            await outside(lock.release)
            await leading
        finally:
            await outside(end_session, client)
            await nodes.close()

    run(scenario())


def test_a_candidate_without_rights_is_refused(zookeeper: BookKeeperCluster, root: str) -> None:
    async def scenario() -> None:
        owner = await connect(zookeeper, credentials="store:secret", creator_only=True)
        await owner.create(root, b"")
        stranger = await connect(zookeeper)
        with pytest.raises(NodeRefusedError):
            await stranger.lead(root, "stranger")
        assert not stranger.leads(root)
        assert list(await owner.children(root)) == []
        await owner.close()
        await stranger.close()

    run(scenario())


def test_watches_and_elections_end_while_no_server_answers(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes = await connect(zookeeper)
        await nodes.create(f"{root}/n", b"")
        calls = Calls()
        zookeeper.pause_zookeeper()
        try:
            nodes.watch(f"{root}/n", calls)
            leading = asyncio.ensure_future(nodes.lead(root, "me"))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(nodes.close())
            with pytest.raises(NodeUnavailableError):
                await leading
        finally:
            zookeeper.resume_zookeeper()
        await closing
        assert calls.count == 0

    run(scenario())


def test_a_client_whose_thread_died_reports_and_leads_again(
    zookeeper: BookKeeperCluster, root: str
) -> None:
    async def scenario() -> None:
        nodes, other = await connect(zookeeper), await connect(zookeeper)
        calls, ended = Calls(), asyncio.Event()
        await nodes.lead(f"{root}/leader", "me", ended.set)
        nodes.watch(f"{root}/n", calls)
        dead = nodes._client
        assert dead is not None
        await outside(dead.stop)
        await other.create(f"{root}/n", b"")
        await calls.until(lambda: nodes.read(f"{root}/n"), NodeContent(b"", 0))
        await ended.wait()
        await nodes.lead(f"{root}/leader", "me")
        await candidates(other, f"{root}/leader", [b"me"])
        await nodes.close()
        await other.close()

    run(scenario())
