"""Clients of a cluster whose containers move and whose hosts die, in virtual time: nothing that was
acknowledged is lost or doubled, and what may be asked again raises nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segmentstore import (
    AppendOutcomeUnknownError,
    BadOffsetError,
    ClusterStore,
    ContainerMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    StoreClosedError,
    StoreUnreachableError,
)
from segmentstore.client.connecting import CONNECT_S
from segmentstore.client.host_connections import SILENT_S
from segmentstore.server import store_requests
from tests.client.cluster_world import ClusterWorld, run_cluster
from tests.contracts.store_api_world import A, put
from tests.store.bookkeeper_world import name_in
from tests.store.harness import read_all
from tests.support.suites import size, sized

WRITER = UUID(int=1)


def check(
    folder: Path,
    body: Callable[[ClusterWorld, ClusterStore], Awaitable[None]],
    *names: str,
    retry_s: float = 60.0,
    **options: Any,
) -> None:
    """A test with a client, on two hosts unless they are named."""

    async def main(world: ClusterWorld) -> None:
        async with world.client(retry_s) as store:
            await body(world, store)

    run_cluster(folder, main, *(names or ("one", "two")), **options)


async def keep_moving(world: ClusterWorld, count: int, seed: int) -> None:
    """Move containers between the hosts, one at a time."""
    rng = random.Random(seed)
    for _ in range(count):
        container = rng.randrange(world.containers)
        others = [name for name in world.hosts if name != world.owner(container)]
        await world.move(container, rng.choice(others))
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        await world.until_served()


async def while_it_runs(work: Coroutine[Any, Any, None], step: Callable[[int], Any]) -> int:
    """Do a step again and again until the work has ended; how often."""
    task = asyncio.ensure_future(work)
    count = 0
    while not task.done():
        await step(count)
        count += 1
    await task
    return count


@sized(40)
def test_writers_readers_and_plain_appends_over_many_moves(tmp_path: Path) -> None:
    moves = size("CLUSTER_MOVES", 4, 80)

    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        names = [name_in(number, world.containers) for number in range(world.containers)]
        expected: dict[str, list[bytes]] = {}
        done = asyncio.Event()

        async def write(name: str, number: int) -> None:
            writer = await store.writer(name, UUID(int=number + 1)).open()
            sent: list[asyncio.Future[int | None]] = []
            mine = expected[f"{name}-w"] = []
            while not done.is_set():
                for _ in range(3):
                    mine.append(b"<w%d:%d>" % (number, len(mine)))
                    sent.append(writer.append(mine[-1]))
                await asyncio.sleep(0.003)
            await asyncio.gather(*sent)
            assert writer.last_event_number == len(mine) - 1

        async def append(name: str, number: int) -> None:
            mine = expected[f"{name}-p"] = []
            sent: list[asyncio.Future[int]] = []
            while not done.is_set():
                for _ in range(2):
                    mine.append(b"<p%d:%d>" % (number, len(mine)))
                    sent.append(store.append(name, mine[-1]))
                await asyncio.sleep(0.003)
            offsets = await asyncio.gather(*sent)
            assert offsets == sorted(set(offsets))

        async def follow(name: str) -> bytes:
            return b"".join([chunk async for chunk in store.reader(name, follow=True)])

        for name in names:
            await store.create_segment(name)
        followers = [asyncio.ensure_future(follow(name)) for name in names]
        works = [
            asyncio.ensure_future(work(name, number))
            for number, name in enumerate(names)
            for work in (write, append)
        ]
        await keep_moving(world, moves, seed=1)
        done.set()
        await asyncio.gather(*works)
        for number, (name, follower) in enumerate(zip(names, followers, strict=True)):
            await store.seal(name)
            data = await read_all(store, name)
            assert await follower == data
            found = [part + b">" for part in data.split(b">")[:-1]]
            assert [each for each in found if each.startswith(b"<w%d" % number)] == expected[
                f"{name}-w"
            ]
            assert [each for each in found if each.startswith(b"<p%d" % number)] == expected[
                f"{name}-p"
            ]
            assert len(found) == sum(len(expected[f"{name}-{kind}"]) for kind in "wp")

    check(tmp_path, body, "one", "two", "three")


def test_every_kind_of_call_follows_a_move(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        name, container = name_in(2, world.containers), 2
        merged = f"{name}#transaction.{'0' * 32}"
        await store.create_segment(name, [put(A, 1)])

        async def calls(number: int) -> None:
            assert await store.get_attributes(name) == {A: number + 1}
            assert await store.get_attributes(name, [A]) == {A: number + 1}
            await store.update_attributes(name, [put(A, number + 2)])
            assert [info.name async for info in store.list_segments()] == [name]
            length = (await store.get_info(name)).length
            assert await store.append(name, b"ab") == length
            assert await store.read(name, length, 10, 5.0) == b"ab"
            await store.create_segment(merged)
            await store.append(merged, b"c")
            assert (await store.merge(name, merged)).offset == length + 2
            await store.truncate(name, length + 1)
            await store.create_segment(merged)
            await store.delete(merged)
            await store.flush(name)
            await store.flush()
            assert await store.process_mailbox() == 0
            assert (await store.fetch_stats())["containers"].keys() <= set(range(4))

        async def moves() -> None:
            for host in ("one", "two") * 3:
                await world.move(container, host)
                await asyncio.sleep(0.05)

        assert await while_it_runs(moves(), calls) > 3

    check(tmp_path, body)


def test_a_listing_in_many_parts_is_complete_over_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "LIST_BYTES", 500)
    names = [f"n/{number:03}" for number in range(60)]

    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        await asyncio.gather(*(store.create_segment(name) for name in [*names, "o"]))

        async def listed(_number: int) -> None:
            found = []
            async for info in store.list_segments("n/"):
                found.append(info.name)
                await asyncio.sleep(0.002)
            assert found == names

        assert await while_it_runs(keep_moving(world, 6, seed=2), listed) > 2

    check(tmp_path, body)


def test_a_host_joins_and_another_leaves(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        names = [name_in(number, world.containers) for number in range(world.containers)]
        for name in names:
            await store.create_segment(name)

        async def change() -> None:
            await world.start("three")
            await world.until_served(shared=True)
            await asyncio.sleep(1.0)
            await world.stop("one")
            await world.until_served(shared=True)
            await asyncio.sleep(1.0)
            # None of the addresses that the client was given is left.
            await world.stop("two")
            await world.until_served()

        async def calls(_number: int) -> None:
            await asyncio.gather(*(store.append(name, b"x") for name in names))
            await asyncio.sleep(0.02)

        count = await while_it_runs(change(), calls)
        assert count > 5
        for name in names:
            assert await read_all(store, name) == b"x" * count

    check(tmp_path, body)


def test_a_killed_host_is_followed_by_writers_and_readers(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        names = [name_in(number, world.containers) for number in range(world.containers)]
        for name in names:
            await store.create_segment(name)
        writers = [await store.writer(name, WRITER).open() for name in names]
        sent = [writer.append(b"<%d>" % number) for number in range(50) for writer in writers]
        reading = [asyncio.ensure_future(store.read(name, 0, 10, 60.0)) for name in names]
        plain = [store.append(name, b"plain") for name in names]
        await asyncio.sleep(0.002)
        world.kill(world.owner(0))
        later = [store.append(name, b"later") for name in names]
        outcomes = await asyncio.gather(*plain, return_exceptions=True)
        # Only what was on its way is in doubt.
        assert all(isinstance(each, int | AppendOutcomeUnknownError) for each in outcomes), outcomes
        await asyncio.gather(*sent)
        await asyncio.gather(*later)
        assert all(await asyncio.gather(*reading))
        for name, outcome in zip(names, outcomes, strict=True):
            data = await read_all(store, name)
            assert data.count(b"later") == 1
            assert data.count(b"plain") == 1 or not isinstance(outcome, int)
            events = data.replace(b"later", b"").replace(b"plain", b"")
            assert events == b"".join(b"<%d>" % number for number in range(50))

    check(tmp_path, body, "one", "two", "three")


def test_a_late_answer_of_the_old_owner_ends_no_search_for_the_next(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        name = name_in(0, world.containers)
        await store.create_segment(name)
        writer = await store.writer(name, WRITER).open()
        old = world.hosts[world.owner(0)]
        old.ledger_process.sleep()
        late = writer.append(b"a")
        await asyncio.sleep(0.01)
        name_of_new, new = next(each for each in world.hosts.items() if each[1] is not old)
        new.ledger_process.sleep()
        moving = asyncio.ensure_future(world.move(0, name_of_new))
        await world.until(lambda: 0 not in old.store.served)
        refused = writer.append(b"b")
        await asyncio.sleep(2.0)
        assert not late.done()
        old.ledger_process.wake()
        assert await late == 0
        await asyncio.sleep(5.0)  # tries that fail
        new.ledger_process.wake()
        async with asyncio.timeout(60.0):
            assert await refused == 1
        await moving

    check(tmp_path, body)


def test_a_silent_host_is_given_up(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        loop = asyncio.get_running_loop()
        name = name_in(0, world.containers)
        await store.create_segment(name)
        writer = await store.writer(name, WRITER).open()
        await writer.append(b"a")
        silent = world.hosts.pop(world.owner(0))
        silent.process.sleep()
        for link in silent.links:
            link._to_server.is_paused = True
        event, reading = writer.append(b"b"), asyncio.ensure_future(store.read(name, 1, 1, 60.0))
        begun_s = loop.time()
        assert await event is not None
        assert await reading == b"b"
        assert SILENT_S * 0.75 < loop.time() - begun_s < SILENT_S * 1.5
        # What else the old connection was asked, ended with it.
        assert (await store.get_info(name)).length == 2

    check(tmp_path, body)


def test_what_comes_behind_a_silent_host_goes_to_the_next_owner_at_once(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        loop = asyncio.get_running_loop()
        name = name_in(0, world.containers)
        await store.create_segment(name)
        assert await store.append(name, b"a") == 0
        name_of_silent = world.owner(0)
        silent = world.hosts[name_of_silent]
        silent.process.sleep()
        for link in silent.links:
            link._to_server.is_paused = True
        with pytest.raises(AppendOutcomeUnknownError):
            await store.append(name, b"b")
        given_up_s = loop.time()
        assert await store.append(name, b"c") == 1
        assert loop.time() - given_up_s < CONNECT_S / 2, "it is not connected to once more"
        world.kill(name_of_silent)

    check(tmp_path, body)


def test_all_hosts_down_is_an_error_in_time(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        loop = asyncio.get_running_loop()
        name = name_in(1, world.containers)
        await store.create_segment(name)
        writer = await store.writer(name, WRITER).open()
        for host in list(world.hosts):
            world.kill(host)
        begun_s = loop.time()
        calls: list[Awaitable[object]] = [
            asyncio.ensure_future(store.get_info(name)),
            asyncio.ensure_future(store.create_segment("x")),
            asyncio.ensure_future(store.flush()),
            asyncio.ensure_future(store.fetch_stats()),
            asyncio.ensure_future(anext(store.list_segments())),
            asyncio.ensure_future(anext(store.reader(name, follow=True))),
            store.append(name, b"a"),
            writer.append(b"b"),
        ]
        for call in calls:
            with pytest.raises(StoreUnreachableError, match="no store answers at 127"):
                await call
        assert 19.0 < loop.time() - begun_s < 23.0
        with pytest.raises(StoreUnreachableError):
            await writer.append(b"c")

    check(tmp_path, body, retry_s=20.0)


def test_no_host_to_connect_to(tmp_path: Path) -> None:
    async def body(world: ClusterWorld) -> None:
        async with world.client():
            pass
        addresses = dict(world.hosts)
        for host in world.hosts.values():
            host.is_down = True
        with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:1"):
            async with world.client():
                pass
        for host in addresses.values():
            host.is_down = False

    run_cluster(tmp_path, body, "one", "two")


def test_a_close_ends_calls_that_are_being_tried(tmp_path: Path) -> None:
    async def body(world: ClusterWorld, store: ClusterStore) -> None:
        name = name_in(1, world.containers)
        await store.create_segment(name)
        writer = await store.writer(name, WRITER).open()
        for host in list(world.hosts):
            world.kill(host)
        calls: list[Awaitable[object]] = [
            asyncio.ensure_future(store.get_info(name)),
            store.append(name, b"a"),
            writer.append(b"b"),
        ]
        await asyncio.sleep(3.0)
        await store.close()
        for call in calls:
            with pytest.raises(StoreClosedError):
                await call

    check(tmp_path, body)


class TestDoubts:
    """Changes whose answer was lost with the connection."""

    @pytest.mark.parametrize("happens", [True, False])
    def test_are_settled_by_asking_again_where_that_is_certain(
        self, tmp_path: Path, *, happens: bool
    ) -> None:
        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            name = name_in(1, world.containers)
            host = world.hosts[world.owner(1)]
            await store.create_segment(name)
            await store.append(name, b"0123456789")

            async def lost(call: Awaitable[Any]) -> Any:
                """The connection is cut once the request is there, or before."""
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0.0008 if happens else 0.0002)
                host.cut()
                return await task

            await lost(store.truncate(name, 4))
            # Each call but the first makes a connection before, which takes longer.
            assert (await store.get_info(name)).start_offset == 4
            await lost(store.flush(name))
            conditional = store.append(name, b"abc", expected_offset=10)
            if happens:
                with pytest.raises(AppendOutcomeUnknownError):
                    await lost(conditional)
            else:
                assert await lost(conditional) == 10
            assert await lost(store.seal(name)) == 13
            if happens:
                await lost(store.delete(name))
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(name)
                with pytest.raises(AppendOutcomeUnknownError):
                    await lost(store.create_segment(name))
            else:
                with pytest.raises(AppendOutcomeUnknownError):
                    await lost(store.delete(name))
                await store.delete(name)
                assert (await lost(store.create_segment(name))).length == 0
            for call in (
                lambda: store.append(name, b"", 0, [put(A, 1)]),
                lambda: store.append(name, b"x"),
                lambda: store.update_attributes(name, [put(A, 2)]),
                lambda: store.merge_batch(name, []),
            ):
                # The connection is made before.
                await store.get_info(name)
                with pytest.raises(AppendOutcomeUnknownError):
                    await lost(call())

        check(tmp_path, body)

    def test_a_condition_that_cannot_have_held_is_reported_as_such(self, tmp_path: Path) -> None:
        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            name = name_in(1, world.containers)
            await store.create_segment(name)
            await store.append(name, b"ab")
            call = store.append(name, b"cdef", expected_offset=0)
            await asyncio.sleep(0.0008)
            world.hosts[world.owner(1)].cut()
            with pytest.raises(BadOffsetError):
                await call

        check(tmp_path, body)


class TestRefusals:
    """What the store refuses is no reason to ask again."""

    def test_come_as_with_one_host(self, tmp_path: Path) -> None:
        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            here, there = name_in(0, world.containers), name_in(1, world.containers)
            for name in (here, there):
                await store.create_segment(name)
            for call in (store.merge(here, there), store.merge_batch(here, [there])):
                with pytest.raises(ContainerMismatchError):
                    await call
            with pytest.raises(SegmentNotFoundError):
                await store.merge(here, name_in(1, world.containers, "gone"))
            writer = await store.writer(here, WRITER).open()
            await store.seal(here)
            for _ in range(2):
                with pytest.raises(SegmentSealedError):
                    await writer.append(b"a")
            with pytest.raises(SegmentStoreError):
                await store.append(here, b"a")

        check(tmp_path, body)

    def test_a_writer_stays_with_its_segment_over_a_move(self, tmp_path: Path) -> None:
        async def body(world: ClusterWorld, store: ClusterStore) -> None:
            name = name_in(1, world.containers)
            await store.create_segment(name)
            writer = await store.writer(name, WRITER).open()
            assert await writer.append(b"a") == 0
            await store.delete(name)
            await store.create_segment(name)
            others = [host for host in world.hosts if host != world.owner(1)]
            await world.move(1, others[0])
            with pytest.raises(SegmentNotFoundError):
                await writer.append(b"b")
            assert (await store.get_info(name)).length == 0

        check(tmp_path, body)
