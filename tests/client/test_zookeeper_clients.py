"""Clients that find the hosts of a cluster by ZooKeeper: when they ask there, and what they say if
that does not help.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import segmentstore
from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.metadata_node import NodeContent, NodeRefusedError
from durablelog.bookkeeper.store_node import encode_identity
from durablelog.durable_data_log_factory import StoreIdentity
from recovery.harness.services.server import free_port
from segmentstore import (
    AccessRefusedError,
    ClusterStore,
    InvalidArgumentError,
    MissingExtraError,
    NotAStoreError,
    SegmentStoreError,
    StoreClosedError,
    StoreUnreachableError,
    blocking,
)
from segmentstore.client.owner_lookup import SEARCH_S
from segmentstore.client.search_pace import (
    SEARCH_AFTER_S,
    SEARCH_MAX_S,
    SEARCH_MIN_S,
    SearchPace,
)
from segmentstore.contracts import extras
from segmentstore.contracts.store_hosts import StoreHosts
from tests.client.cluster_world import ROOT, ZOOKEEPER_URL, ClusterWorld, run_cluster
from tests.store.bookkeeper_world import name_in
from tests.store.harness import run

STORE_ID = "6f0e3d1c-3f5c-4f4e-9a53-2c1b7e0d4a11"


def check(
    folder: Path, body: Callable[[ClusterWorld, ClusterStore], Awaitable[None]], *names: str
) -> None:
    """A test with a client, in virtual time."""

    async def main(world: ClusterWorld) -> None:
        async with world.client_by_zookeeper() as store:
            await body(world, store)

    run_cluster(folder, main, *names)


async def use_each(world: ClusterWorld, store: ClusterStore, data: bytes) -> None:
    """Append to a segment of each container, at once."""
    names = [name_in(number, world.containers) for number in range(world.containers)]
    await asyncio.gather(*(store.append(name, data) for name in names))


async def make_each(world: ClusterWorld, store: ClusterStore) -> None:
    for number in range(world.containers):
        await store.create_segment(name_in(number, world.containers))


async def replace_hosts(world: ClusterWorld) -> None:
    """The hosts leave, and others come at other addresses."""
    for name in list(world.hosts):
        await world.stop(name)
    await world.start("three", "four")
    await world.until_served()


class TestHostsThatMove:
    def test_are_found_again(self, tmp_path: Path) -> None:
        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            await make_each(world, store)
            assert len(world.searches) == 1
            await replace_hosts(world)
            await use_each(world, store, b"1")
            assert len(world.searches) == 2, "one search tells of all"
            info = await store.get_info(name_in(0, world.containers))
            assert info.length == 1

        check(tmp_path, body, "one", "two")

    def test_are_not_found_by_a_client_that_knows_addresses_alone(self, tmp_path: Path) -> None:
        async def main(world: ClusterWorld) -> None:
            async with world.client(retry_s=5) as store:
                await make_each(world, store)
                await replace_hosts(world)
                with pytest.raises(StoreUnreachableError):
                    await store.get_info(name_in(0, world.containers))

        run_cluster(tmp_path, main, "one", "two")

    def test_while_calls_wait(self, tmp_path: Path) -> None:
        """There is no host for a while, and ZooKeeper is asked ever more seldom."""

        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            await make_each(world, store)
            for name in list(world.hosts):
                await world.stop(name)
            calls = asyncio.ensure_future(use_each(world, store, b"1"))
            await asyncio.sleep(40)
            assert not calls.done()
            gaps = [b - a for a, b in zip(world.searches[1:], world.searches[2:], strict=False)]
            assert SEARCH_MIN_S / 2 <= min(gaps) <= max(gaps) <= SEARCH_MAX_S + 1
            assert len(world.searches) <= 12
            await world.start("three")
            await calls

        check(tmp_path, body, "one", "two")

    def test_behind_hosts_that_have_an_old_map(self, tmp_path: Path) -> None:
        """They answer, and know nothing new: their views of ZooKeeper stand still."""

        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            await make_each(world, store)
            before = await world.hosts["one"].store.fetch_hosts()

            async def stale() -> StoreHosts:
                return before

            world.hosts["one"].store._parts.cluster_hosts = stale
            await world.start("three")
            world.hosts["three"].store._parts.cluster_hosts = stale
            await world.drain("two")
            await world.drain("one")
            await world.stop("two")
            await use_each(world, store, b"2")
            assert 2 <= len(world.searches) <= 3
            assert world.owner(0) == "three"

        check(tmp_path, body, "one", "two")


def test_zookeeper_is_left_alone_while_hosts_answer(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        await make_each(world, store)
        for number in range(8):
            await world.move(number % world.containers, ("one", "two")[number % 2])
            await use_each(world, store, b"1")
        await asyncio.sleep(3600)
        await use_each(world, store, b"2")
        assert len(world.searches) == 1

    check(tmp_path, body, "one", "two")


def test_a_close_ends_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait for it are not cancelled: they get what every call behind a close gets."""

    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        await make_each(world, store)
        began, is_over = asyncio.Event(), asyncio.Event()

        async def read(self: MemoryNodes, path: str) -> NodeContent | None:
            began.set()
            await is_over.wait()
            return None

        for name in list(world.hosts):
            await world.stop(name)
        monkeypatch.setattr(MemoryNodes, "read", read)
        call = asyncio.ensure_future(store.get_info(name_in(0, world.containers)))
        await began.wait()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await store.close()
        with pytest.raises(StoreClosedError):
            await call
        assert loop.time() - began_s < SEARCH_S / 2, "it would have ended by itself"

    check(tmp_path, body, "one")


def test_the_pace_of_searches() -> None:
    pace = SearchPace(random.Random(1), 0.0)
    assert not pace.is_due(0.1, was_answered=False, is_news=False), "it has just been found"
    assert pace.is_due(1.0, was_answered=False, is_news=False)
    pace.searched(1.0)
    assert not pace.is_due(1.1, was_answered=True, is_news=True)
    assert not pace.is_due(5.0, was_answered=True, is_news=False)
    assert not pace.is_due(5.0 + SEARCH_AFTER_S / 2, was_answered=True, is_news=False)
    assert pace.is_due(5.0 + SEARCH_AFTER_S, was_answered=True, is_news=False)
    assert not pace.is_due(5000.0, was_answered=True, is_news=False), "that was another failure"


# --- what is refused ------------------------------------------------------------------------------


def refused(url: str = ZOOKEEPER_URL) -> SegmentStoreError:
    """What `connect` raises, and the blocking one as well."""

    async def main() -> None:
        async with segmentstore.connect(url):
            pass

    with pytest.raises(SegmentStoreError) as caught:
        run(main())
    with pytest.raises(type(caught.value)):
        blocking.connect(url).close()
    return caught.value


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> NodeTree:
    """ZooKeeper in memory."""
    tree = NodeTree()

    async def open_nodes(location: BookKeeperLocation, *_: object) -> MemoryNodes:
        return MemoryNodes(tree)

    monkeypatch.setattr(bookkeeper_clients, "open_nodes", open_nodes)
    return tree


def test_a_path_without_a_store(tree: NodeTree) -> None:
    error = refused()
    assert isinstance(error, NotAStoreError)
    assert f"zookeeper://zoo:2181{ROOT} is not a segment store" in str(error)
    assert "correct the path" in str(error)


def test_a_store_without_hosts(tree: NodeTree) -> None:
    identity = encode_identity(StoreIdentity(STORE_ID, 4, "memory://x"))
    run(MemoryNodes(tree).create(ROOT, identity))
    error = refused()
    assert isinstance(error, StoreUnreachableError)
    assert "start one with `segmentstore serve --host`" in str(error)


def test_credentials_that_are_refused(tree: NodeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(self: MemoryNodes, path: str) -> None:
        raise NodeRefusedError(path, "authentication failed")

    monkeypatch.setattr(MemoryNodes, "read", read)
    error = refused()
    assert isinstance(error, AccessRefusedError)
    assert "SEGMENTSTORE_ZOOKEEPER_AUTH" in str(error)


def test_a_zookeeper_that_is_away() -> None:
    error = refused(f"zookeeper://127.0.0.1:{free_port()}/x?session_timeout_s=1")
    assert isinstance(error, StoreUnreachableError)
    assert "ZooKeeper does not answer" in str(error)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zookeeper://zoo:2181", "the path is missing"),
        ("zookeeper://zoo:0/x", "is not ZooKeeper's host or host:port, in zookeeper://"),
        ("zookeeper://zoo/x?ensemble=1", "a zookeeper:// URL has no key 'ensemble'"),
        ("zookeeper://user:secret@zoo/x", "holds no credentials"),
        ("bookkeeper://zoo:2181/x?ensemble=1", "write zookeeper:// for it, and no keys"),
        ("s3://bucket/x", "it is a folder of this machine"),
    ],
)
def test_a_url_that_is_none(url: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match="location=") as caught:
        segmentstore.connect(url)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_keys_say_how_zookeeper_is_reached() -> None:
    location = BookKeeperLocation.parse_zookeeper(
        "zookeeper://a,b:1/x/y?session_timeout_s=3&zookeeper_auth_file=/f&zookeeper_scheme=sasl"
        "&client_settings=/p"
    )
    assert location.zookeeper_url == "zookeeper://a:2181,b:1/x/y"
    assert (location.session_timeout_s, location.zookeeper_auth_file) == (3, "/f")
    assert (location.zookeeper_scheme, location.client_settings) == ("sasl", "/p")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "missing_modules", lambda _extra: ["kazoo"])
    with pytest.raises(MissingExtraError, match="a cluster found by ZooKeeper needs kazoo"):
        segmentstore.connect(ZOOKEEPER_URL)
