"""Containers start and stop in an open store, each by itself (Pravega's scenario 136: get, stop,
fails at start, fails while running, start while still stopping).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from segmentstore import (
    ContainerMismatchError,
    ContainerNotServedError,
    ContainerStoppedError,
    InvalidArgumentError,
    NotPrimaryError,
    StoreClosedError,
    TierUnavailableError,
)
from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from tests.store.harness import UNFLUSHED, attribute, read_all
from tests.store.registry_world import (
    COUNT,
    NAMES,
    World,
    begin,
    error_of,
    name_in,
    opened,
    scenario,
    settle,
    state,
)

# --- one after the other --------------------------------------------------------------------------


@scenario
async def test_a_container_is_stopped_and_started_again_and_its_neighbours_go_on(
    world: World,
) -> None:
    async with await opened(world) as store:
        before = store.stats()["containers"][1]["log"]["epoch"]
        await store.stop_container(1)
        assert store.served == [0, 2, 3]
        assert sorted(store.stats()["containers"]) == [0, 2, 3]
        assert state(store, 1) == "stopped"
        assert store.stats()["health"] == []
        for number in (0, 2, 3):
            assert await store.append(NAMES[number], b"+") == 5
        listed = [info.name async for info in store.list_segments()]
        assert listed == sorted(NAMES[number] for number in (0, 2, 3))
        await store.flush()
        await store.checkpoint()
        await store.start_container(1)
        assert store.served == [0, 1, 2, 3]
        assert await store.append(NAMES[1], b"+") == 5
        assert [await read_all(store, name) for name in NAMES] == [b"begin+"] * COUNT
        assert store.stats()["containers"][1]["log"]["epoch"] == before + 1
        assert store.stats()["container_states"][1]["cause"] is None


@scenario
async def test_every_call_for_a_stopped_container_says_whose_move_is_next(world: World) -> None:
    async with await opened(world) as store:
        here, there = NAMES[0], NAMES[1]
        await store.stop_container(1)
        calls: list[Awaitable[object]] = [
            store.append(there, b"x"),
            store.append_batch(there, [b"x"]),
            store.create_segment(there),
            store.get_info(there),
            store.read(there, 0, 1),
            store.seal(there),
            store.truncate(there, 0),
            store.delete(there),
            store.merge(here, there),
            store.merge(there, here),
            store.merge_batch(there, [here]),
            store.flush(there),
            store.get_attributes(there),
            store.update_attributes(there, []),
        ]
        for call in calls:
            error = await error_of(call)
            assert isinstance(error, ContainerNotServedError)
            assert isinstance(error, NotPrimaryError)
            assert error.container_id == 1
            assert "stopped on request" in str(error)
            assert "ask the process that serves it" in str(error)


@scenario
async def test_a_start_of_a_started_one_and_a_stop_of_a_stopped_one_do_nothing(
    world: World,
) -> None:
    async with await opened(world, serve="0-1") as store:
        since = store.stats()["container_states"][0]["since_ms"]
        epoch = store.stats()["containers"][0]["log"]["epoch"]
        await settle()
        await store.start_container(0)
        assert store.stats()["containers"][0]["log"]["epoch"] == epoch
        assert store.stats()["container_states"][0]["since_ms"] == since
        # One that was never here, and one that was.
        await store.stop_container(2)
        assert 2 not in store.stats()["container_states"]
        await store.stop_container(1)
        since = store.stats()["container_states"][1]["since_ms"]
        await settle()
        await store.stop_container(1)
        assert store.stats()["container_states"][1]["since_ms"] == since


@scenario
async def test_one_that_serve_leaves_out_can_be_started_too(world: World) -> None:
    async with await opened(world, serve="0") as store:
        assert isinstance(await error_of(store.get_info(NAMES[3])), ContainerNotServedError)
        await store.start_container(3)
        await store.create_segment(NAMES[3])
        assert store.served == [0, 3]
        await store.stop_container(0)
        await store.stop_container(3)
        # A store without any is open all the same.
        assert [info async for info in store.list_segments()] == []
        assert (await store.collect_garbage()).items == ()
        assert [item async for item in store.find_garbage()] == []
        await store.flush()
        await store.start_container(3)
        assert (await store.get_info(NAMES[3])).length == 0
    assert isinstance(await error_of(store.start_container(0)), StoreClosedError)
    assert isinstance(await error_of(store.stop_container(3)), StoreClosedError)
    assert isinstance(await error_of(store.get_info(NAMES[0])), StoreClosedError)
    with pytest.raises(ContainerStoppedError):
        await anext(store.list_segments())


@pytest.mark.parametrize("number", [-1, COUNT, "0", 0.0, True, None])
def test_what_is_no_number_of_a_container_is_refused(tmp_path: Any, number: Any) -> None:
    @scenario
    async def refused(world: World) -> None:
        async with await opened(world) as store:
            for call in (store.start_container, store.stop_container):
                with pytest.raises(InvalidArgumentError) as caught:
                    await call(number)
                assert caught.value.argument == "number"

    refused(tmp_path)


# --- what is on its way ---------------------------------------------------------------------------


@scenario
async def test_a_stop_makes_durable_what_was_taken_and_ends_what_comes_later(
    world: World,
) -> None:
    store = await opened(world)
    name = NAMES[1]
    async with store, store.writer(name, attribute(7)) as writer:
        tail = begin(store.read(name, 5, 10, wait=3600))
        await settle()
        world.frames[1].shut()
        taken = [store.append(name, b"%02d" % number) for number in range(50)]
        events = [writer.append(b"e") for _ in range(3)]
        in_flight: list[asyncio.Future[Any]] = [*taken, *events]
        stopping = begin(store.stop_container(1))
        await settle()
        assert not any(append.done() for append in in_flight)
        assert state(store, 1) == "stopping"
        late = await error_of(store.append(name, b"late"))
        assert isinstance(late, ContainerNotServedError)
        session = await error_of(writer.append(b"late"))
        assert isinstance(session, ContainerNotServedError)
        # Neighbours are not held up, nor does the stop end before it is true.
        assert await store.append(NAMES[2], b"+") == 5
        await asyncio.sleep(1)
        assert not stopping.done()
        world.frames[1].open()
        await stopping
        assert [await append for append in taken] == [5 + 2 * each for each in range(50)]
        assert [await event for event in events] == [105, 106, 107]
        assert (await tail).startswith(b"00")
        await store.start_container(1)
        data = b"begin" + b"".join(b"%02d" % each for each in range(50)) + b"eee"
        assert await read_all(store, name) == data
        # A session of before stays ended; a new one goes on where it was.
        assert isinstance(await error_of(writer.append(b"x")), ContainerNotServedError)
        async with store.writer(name, attribute(7)) as again:
            assert again.last_event_number == 2
            await again.append(b"e")


@scenario
async def test_reads_that_wait_at_a_tail_end_with_the_reason(world: World) -> None:
    async with await opened(world) as store:
        reading = begin(store.read(NAMES[1], 5, 10, wait=3600))
        following = store.reader(NAMES[1], 5, follow=True)
        chunk = begin(anext(following))
        other = begin(store.read(NAMES[2], 5, 10, wait=3600))
        await settle()
        await store.stop_container(1)
        for ended in (reading, chunk):
            error = await error_of(ended)
            assert isinstance(error, ContainerNotServedError)
            assert error.container_id == 1
        assert not other.done()
        await store.append(NAMES[2], b"+")
        assert await other == b"+"


@scenario
async def test_a_stop_lets_uploads_on_their_way_end(world: World) -> None:
    async with await opened(world, **{**UNFLUSHED, "tier1": "memory"}) as store:
        world.uploads.shut()
        flushing = begin(store.flush(NAMES[1]))
        await settle()
        assert world.uploads.waiting == 1
        stopping = begin(store.stop_container(1))
        await settle()
        assert not stopping.done()
        world.uploads.open()
        await stopping
        outcome = (await asyncio.gather(flushing, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, ContainerStoppedError)
        await store.start_container(1)
        assert (await store.get_info(NAMES[1])).storage_length == 5
        # Nothing was uploaded for nothing.
        report = await store.collect_garbage()
        assert [item for item in report.items if item.state == "orphan"] == []


# --- starts and stops that meet -------------------------------------------------------------------


@scenario
async def test_a_stop_ends_a_start_that_is_on_its_way(world: World) -> None:
    async with await opened(world, serve="0") as store:
        world.starts[1].shut()
        starts = [begin(store.start_container(1)) for _ in range(2)]
        await settle()
        assert state(store, 1) == "starting"
        error = await error_of(store.append(NAMES[1], b"x"))
        assert isinstance(error, ContainerNotServedError)
        assert "being started" in str(error)
        await store.stop_container(1)
        for start in starts:
            error = await error_of(start)
            assert isinstance(error, ContainerNotServedError)
            assert "stopped while it was being started" in str(error)
        assert state(store, 1) == "stopped"
        assert len(world.opened) == 1
        world.starts[1].open()
        await store.start_container(1)
        await store.create_segment(NAMES[1])


@scenario
async def test_a_start_waits_for_the_stop_that_is_on_its_way(world: World) -> None:
    async with await opened(world) as store:
        world.frames[1].shut()
        taken = store.append(NAMES[1], b"taken")
        stopping = begin(store.stop_container(1))
        await settle()
        starting = begin(store.start_container(1))
        await asyncio.sleep(1)
        assert not starting.done()
        assert state(store, 1) == "stopping"
        world.frames[1].open()
        await starting
        assert stopping.done()
        assert await taken == 5
        assert await read_all(store, NAMES[1]) == b"begintaken"


@scenario
async def test_callers_that_ask_for_one_thing_wait_for_one(world: World) -> None:
    async with await opened(world) as store:
        await asyncio.gather(*(store.stop_container(1) for _ in range(3)))
        await asyncio.gather(*(store.start_container(1) for _ in range(3)))
        assert store.stats()["containers"][1]["log"]["epoch"] == 2


@scenario
async def test_a_cancelled_start_is_undone_unless_another_waits_for_it(world: World) -> None:
    async with await opened(world, serve="0") as store:
        world.starts[1].shut()
        first, second = (begin(store.start_container(1)) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert first.cancelled()
        assert state(store, 1) == "starting"
        second.cancel()
        await settle()
        assert second.cancelled()
        assert state(store, 1) == "stopped"
        assert store.stats()["health"] == []
        world.starts[1].open()
        # One that comes while a cancelled one is being undone starts it anew.
        third = begin(store.start_container(1))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.sleep(0)
        await store.start_container(1)
        assert store.served == [0, 1]


@scenario
async def test_a_cancelled_stop_goes_on(world: World) -> None:
    async with await opened(world) as store:
        world.frames[1].shut()
        taken = store.append(NAMES[1], b"taken")
        stopping = begin(store.stop_container(1))
        await settle()
        stopping.cancel()
        await settle()
        assert stopping.cancelled()
        assert state(store, 1) == "stopping"
        world.frames[1].open()
        assert await taken == 5
        await store.stop_container(1)
        assert state(store, 1) == "stopped"


@scenario
async def test_at_most_two_start_at_one_time(world: World) -> None:
    for gate in world.starts.values():
        gate.shut()
    opening = begin(world.open(serve="0-2"))
    await settle()
    assert world.starting == {0, 1}
    for gate in world.starts.values():
        gate.open()
    async with await opening as store:
        for number in range(3):
            await store.stop_container(number)
        for gate in world.starts.values():
            gate.shut()
        starts = [begin(store.start_container(number)) for number in range(COUNT)]
        await settle()
        assert world.starting == {0, 1}
        world.starts[0].open()
        await starts[0]
        await settle()
        assert world.starting == {1, 2}
        # One that only waits for its turn leaves the row.
        await store.stop_container(3)
        assert isinstance(await error_of(starts[3]), ContainerNotServedError)
        for gate in world.starts.values():
            gate.open()
        await asyncio.gather(*starts[:3])
        assert store.served == [0, 1, 2]
    assert world.starting_max == 2


# --- the end of the store -------------------------------------------------------------------------


@scenario
async def test_a_close_ends_a_start_that_is_on_its_way(world: World) -> None:
    store = await opened(world, serve="0-1")
    for number in (2, 3):
        world.starts[number].shut()
    starts = [begin(store.start_container(number)) for number in (2, 3)]
    world.frames[1].shut()
    taken = store.append(NAMES[1], b"taken")
    stopping = begin(store.stop_container(1))
    await settle()
    closing = begin(store.close())
    await settle()
    for start in starts:
        assert isinstance(await error_of(start), StoreClosedError)
    assert not closing.done()
    world.frames[1].open()
    await closing
    await stopping
    assert await taken == 5


@scenario
async def test_an_opening_in_which_one_fails_leaves_none_open(world: World) -> None:
    world.refused[2] = TierUnavailableError("tier1", "the bookies sleep")
    assert isinstance(await error_of(world.open()), TierUnavailableError)
    assert world.opened == {}
    del world.refused[2]
    async with await opened(world) as store:
        assert store.served == [0, 1, 2, 3]


# --- what is shared -------------------------------------------------------------------------------


@scenario
async def test_the_shares_of_the_cache_follow_the_containers_present(world: World) -> None:
    async with await opened(world, **{**UNFLUSHED, "tier1": "memory", "tail_bytes_max": 8192}) as (
        store
    ):
        total = store.config.read_index.cache_bytes_max

        def shares() -> set[int]:
            return {each._read_index._cached.bytes_max for each in store._containers}

        assert shares() == {total // 4}
        await store.stop_container(3)
        await store.stop_container(2)
        assert shares() == {total // 2}
        # What is flushed is not spilled.
        world.uploads.shut()
        for _ in range(140):
            await store.append(NAMES[0], bytes(total // 400))
        (cache,) = world.caches
        await store._containers[0]._read_index.wait_trimmed()
        assert total // 3 < cache.statistics().bytes_stored <= total // 2
        world.starts[2].shut()
        starting = begin(store.start_container(2))
        await settle()
        assert shares() == {total // 3}
        assert cache.statistics().bytes_stored <= total // 3
        starting.cancel()
        await settle()
        assert shares() == {total // 2}
        world.starts[2].open()
        await store.start_container(2)
        assert shares() == {total // 3}
        world.uploads.open()
        await store.flush()
        assert cache.statistics().bytes_stored > 0
        world.memory.fail_append_after(0, container_id=0)
        await error_of(store.append(NAMES[0], b"x"))
        await settle()
        assert {each._read_index._cached.bytes_max for each in store._containers[1:]} == {
            total // 2
        }
        assert cache.statistics().bytes_stored == 0, "one that has failed holds nothing"
        await store.start_container(0)
        length = 5 + 140 * (total // 400)
        assert len(await read_all(store, NAMES[0])) == length


@scenario
async def test_merges_are_of_one_container_as_before(world: World) -> None:
    async with await opened(world) as store:
        source = name_in(1, "source")
        await store.create_segment(source)
        await store.append(source, b"+")
        await store.stop_container(1)
        await store.start_container(1)
        with pytest.raises(ContainerMismatchError):
            await store.merge(NAMES[0], source)
        assert await store.merge(NAMES[1], source) == (5, 6)
        assert await read_all(store, NAMES[1]) == b"begin+"


@scenario
async def test_what_a_stopped_container_had_is_kept_to_the_last_attribute(world: World) -> None:
    async with await opened(world) as store:
        updates = [
            AttributeUpdate(attribute(each), UpdateType.REPLACE, each) for each in range(1, 40)
        ]
        await store.update_attributes(NAMES[1], updates)
        await store.seal(NAMES[1])
        before = await store.get_info(NAMES[1])
        for _ in range(3):
            await store.stop_container(1)
            await store.start_container(1)
        after = await store.get_info(NAMES[1])
        assert (after.segment_id, after.length, after.sealed) == (before.segment_id, 5, True)
        attributes = await store.get_attributes(NAMES[1])
        assert attributes == {attribute(each): each for each in range(1, 40)}
