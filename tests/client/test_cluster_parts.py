"""What a client of a cluster is made of, alone: addresses, the map, retries, merged numbers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import segmentstore
from recovery.harness.services.server import free_port
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore import (
    ClusterStore,
    ContainerNotServedError,
    InvalidArgumentError,
    RemoteStore,
    SegmentNotFoundError,
    StoreDisconnectedError,
    StoreUnreachableError,
    TierUnavailableError,
)
from segmentstore.client.client_connection import UNANSWERED_BYTES_MAX
from segmentstore.client.connecting import connect
from segmentstore.client.merged_metrics import merged_metrics
from segmentstore.client.merged_stats import merged_stats
from segmentstore.client.owner_map import OwnerMap
from segmentstore.client.retry_rules import (
    START_SHARE,
    WAIT_MAX_S,
    WAIT_MIN_S,
    RetrySpan,
    was_not_taken,
)
from segmentstore.client.store_addresses import StoreAddress, parse_addresses
from segmentstore.client.unanswered_bytes import UnansweredBytes
from segmentstore.contracts.store_hosts import StoreHost
from segmentstore.wire.store_commands import HostsDescribed
from tests.client.cluster_world import ClusterWorld
from tests.server.wire_client import served
from tests.store.bookkeeper_world import name_in
from tests.store.harness import TINY, run

ONE, TWO = StoreAddress("one", 1), StoreAddress("::1", 2)


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("one:1,[::1]:2", (ONE, TWO)),
            ("one:1,", (ONE,)),
            ("one:1, one:1", (ONE,)),
            ("one:1", None),
            ("folder", None),
            ("a,b", None),
        ],
    )
    def test_of_a_cluster(self, text: str, found: tuple[StoreAddress, ...] | None) -> None:
        assert parse_addresses(text) == found

    @pytest.mark.parametrize(
        "text",
        [
            "one:1,two",
            "one:0,two:1",
            "one:1,,two:2",
            "one:70000,",
            "one:1,\ntwo:2",
            "o\tne:1,two:2",
        ],
    )
    def test_that_are_none(self, text: str) -> None:
        with pytest.raises(InvalidArgumentError):
            segmentstore.connect(text)

    @pytest.mark.parametrize(("place", "retry_s"), [("a:1,", -1), ("a:1,", "x"), ("a:1", 1)])
    def test_a_time_that_is_none(self, place: str, retry_s: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="retry_s"):
            segmentstore.connect(place, retry_s=retry_s)

    def test_are_written_as_they_are_read(self) -> None:
        assert parse_addresses(f"{ONE},{TWO}") == (ONE, TWO)


def test_a_map_has_owners_as_far_as_they_are_known() -> None:
    hosts = (StoreHost("one", 1, (0, 2)), StoreHost("::1", 2, ()), StoreHost("", 0, (3,)))
    asked = StoreAddress("asked", 9)
    found = OwnerMap.of(HostsDescribed(7, "id", 10, 5, 3, hosts), asked)
    assert found.owners == {0: ONE, 2: ONE, 3: asked}
    assert found.hosts == (ONE, TWO, asked)
    assert found.by_host({1, 2, 3}) == {ONE: {2}, asked: {3}}
    assert (found.store_id, found.append_bytes_max, found.containers, found.epoch) == (
        "id",
        10,
        5,
        3,
    )


def test_retries_have_a_back_off_and_an_end() -> None:
    span = RetrySpan(random.Random(1), 10.0)
    now_s, waits = 100.0, []
    while (wait_s := span.wait_s(now_s)) is not None:
        waits.append(wait_s)
        now_s += wait_s
    assert not span.is_first
    assert WAIT_MIN_S / 2 <= waits[0] <= WAIT_MIN_S
    assert max(waits) <= WAIT_MAX_S
    assert sum(waits) == pytest.approx(10.0)
    span.answered()
    assert span.wait_s(now_s) is not None
    assert RetrySpan(random.Random(1), 0.0).wait_s(1.0) is None


def test_a_start_is_waited_for_in_steps_that_grow_with_what_it_takes() -> None:
    span = RetrySpan(random.Random(1), 60.0)
    begun_s = now_s = 100.0
    while now_s < begun_s + 30.0:
        wait_s = span.wait_s(now_s, starts=True)
        assert wait_s is not None
        assert wait_s <= max(WAIT_MIN_S, (now_s - begun_s) * START_SHARE)
        now_s += wait_s
    later = span.wait_s(now_s)
    assert later is not None
    assert later >= WAIT_MAX_S / 2
    span.owner_changed(now_s)
    assert span.is_first
    again = span.wait_s(now_s, starts=True)
    assert again is not None
    assert again <= WAIT_MIN_S
    assert span.wait_s(160.0) is None, "the time counts from the first failure"


def test_what_was_not_taken() -> None:
    for error in (
        ContainerNotServedError(1, "x"),
        StoreDisconnectedError("x"),
        StoreUnreachableError("x", "y"),
    ):
        assert was_not_taken(error)
    for other in (TierUnavailableError("tier1", "x"), SegmentNotFoundError("x"), OSError()):
        assert not was_not_taken(other)


def test_bytes_without_an_answer_are_bounded() -> None:
    room = UnansweredBytes()
    room.take(UNANSWERED_BYTES_MAX + 5)
    with pytest.raises(TierUnavailableError):
        room.take(1)
    room.give_back(UNANSWERED_BYTES_MAX + 5)
    room.take(UNANSWERED_BYTES_MAX)


def test_numbers_of_hosts_are_added_up() -> None:
    one: Any = {
        "store_id": "id",
        "health": ["a", "b"],
        "cache": {"bytes_stored": 1, "healthy": True, "counts": (1, 2)},
        "catalog": None,
        "cluster": {"leads": False, "hosts": 2, "starts": 1},
        "longest_turn_s": {"commit": 0.5},
        "containers": {2: {"state": "running", "n": 1}},
        "container_states": {0: {"state": "stopped"}, 2: {"state": "running"}},
    }
    two: Any = {
        "store_id": "id",
        "health": ["b"],
        "cache": {"bytes_stored": 2, "healthy": False, "counts": (3, 4)},
        "catalog": {"exports": 1, "last_export_ms": 7},
        "cluster": {"leads": True, "hosts": 1, "starts": 2},
        "longest_turn_s": {"commit": 0.25, "other": 1.0},
        "containers": {0: {"state": "running", "n": 2}, 2: {"state": "failed", "n": 3}},
        "container_states": {0: {"state": "running"}, 2: {"state": "failed"}},
    }
    assert merged_stats([one]) == one
    assert merged_stats([one, two]) == {
        "store_id": "id",
        "health": ["a", "b"],
        "cache": {"bytes_stored": 3, "healthy": False, "counts": (4, 6)},
        "catalog": {"exports": 1, "last_export_ms": 7},
        "cluster": {"leads": True, "hosts": 2, "starts": 3},
        "longest_turn_s": {"commit": 0.5, "other": 1.0},
        "containers": {0: {"state": "running", "n": 2}, 2: {"state": "running", "n": 1}},
        "container_states": {0: {"state": "running"}, 2: {"state": "running"}},
    }


def test_metrics_of_hosts_have_their_addresses() -> None:
    text = b'# HELP a x\n# TYPE a gauge\na 1.0\na{b="c"} 2.0\n# HELP d y\n# TYPE d counter\nd 3\n'
    assert merged_metrics([("h:1", text), ("h:2", text)]).decode().splitlines() == [
        "# HELP a x",
        "# TYPE a gauge",
        'a{host="h:1"} 1.0',
        'a{host="h:1",b="c"} 2.0',
        'a{host="h:2"} 1.0',
        'a{host="h:2",b="c"} 2.0',
        "# HELP d y",
        "# TYPE d counter",
        'd{host="h:1"} 3',
        'd{host="h:2"} 3',
    ]


class TestOneProcess:
    """A process that is no member of a cluster is one by itself."""

    def test_is_used_as_a_cluster(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path, containers=3) as (embedded, server):
                place = f"127.0.0.1:{server.port},"
                async with segmentstore.connect(place) as store:
                    assert isinstance(store, ClusterStore)
                    assert store.store_id == embedded.store_id
                    for number in range(6):
                        await store.create_segment(f"s{number}")
                    assert len([each async for each in store.list_segments()]) == 6
                async with segmentstore.connect(place[:-1]) as single:
                    assert isinstance(single, RemoteStore)

        run(main())

    def test_a_dropped_client_warns_and_closes(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path) as (_, server):
                store = await connect(f"127.0.0.1:{server.port},")
                await store.create_segment("x")
                references = [store]
                del store
                with pytest.warns(ResourceWarning, match="dropped without close"):
                    references.clear()
                await server.no_connections()

        run(main())

    def test_without_await(self, tmp_path: Path) -> None:
        port = free_port()
        with segmentstore.blocking.open(tmp_path / "s", wire_port=port, **TINY):
            place = f"127.0.0.1:{port},"
            with segmentstore.blocking.connect(place, retry_s=5.0) as store:
                store.create_segment("x")
                assert store.append("x", b"hello") == 0
                with store.writer("x", UUID(int=1)) as writer:
                    assert writer.append(b"!") == 5
                assert b"".join(store.reader("x")) == b"hello!"
                assert [info.name for info in store.list_segments()] == ["x"]
            references = [segmentstore.blocking.connect(place)]
            thread = references[0]._thread
            with pytest.warns(ResourceWarning, match="dropped without close"):
                references.clear()
            thread.end()


class TestLookup:
    """Which answers of hosts are taken."""

    def test_an_older_map_is_not(self, tmp_path: Path) -> None:
        async def main() -> None:
            world = ClusterWorld(tmp_path)
            await world.start("one", "two")
            await world.until_served(shared=True)
            async with world.client() as store:
                name = name_in(0, world.containers)
                await store.create_segment(name)
                cut_off, other = world.owner(0), "two" if world.owner(0) == "one" else "one"
                host = world.hosts[cut_off]
                before = await host.store.fetch_hosts()

                async def stale() -> Any:
                    return before

                await world.move(0, other)
                await store.get_info(name)
                # Its view of ZooKeeper stands still, and it is asked first.
                host.store._parts.cluster_hosts = stale
                seen = store._lookup.map
                await store._lookup.renew(store._lookup.generation, host.address)
                assert store._lookup.map.epoch >= seen.epoch > before.epoch
                assert (await store.get_info(name)).length == 0
            await world.close()

        run_virtual(main())

    def test_another_store_is_passed_over(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                served(tmp_path.joinpath("1")) as (_, one),
                served(tmp_path.joinpath("2")) as (_, two),
            ):
                places = f"127.0.0.1:{one.port},127.0.0.1:{two.port}"
                async with segmentstore.connect(places) as store:
                    assert isinstance(store, ClusterStore)
                    store_id = store.store_id
                    for _ in range(2):
                        await store._lookup.renew(store._lookup.generation)
                        await asyncio.sleep(0)
                        assert store.store_id == store_id

        run(main())
