"""Failures of containers, at their start, while they serve and at their stop: each is reported with
its cause, and nothing is started again before it is asked for.
"""

from __future__ import annotations

import asyncio
from functools import partial

from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.store.harness import read_all
from tests.store.registry_world import (
    COUNT,
    NAMES,
    World,
    begin,
    error_of,
    opened,
    scenario,
    settle,
    state,
)


@scenario
async def test_a_start_that_fails_is_reported_and_may_be_tried_again(world: World) -> None:
    async with await opened(world) as store:
        await store.stop_container(1)
        world.refused[1] = TierUnavailableError("tier1", "the bookies sleep")
        starts = [begin(store.start_container(1)) for _ in range(2)]
        for start in starts:
            assert isinstance(await error_of(start), TierUnavailableError)
        status = store.stats()["container_states"][1]
        assert status["state"] == "failed"
        assert "the bookies sleep" in str(status["cause"])
        (finding,) = store.stats()["health"]
        assert finding.startswith("container 1 has failed: ")
        assert "the bookies sleep" in finding
        refused = await error_of(store.append(NAMES[1], b"x"))
        assert isinstance(refused, ContainerStoppedError)
        assert isinstance(refused.cause, TierUnavailableError)
        assert await store.append(NAMES[0], b"+") == 5
        assert len(world.opened) == COUNT - 1
        await asyncio.sleep(3600)
        assert state(store, 1) == "failed", "nothing starts it again"
        del world.refused[1]
        await store.start_container(1)
        assert store.stats()["health"] == []
        assert await read_all(store, NAMES[1]) == b"begin"


@scenario
async def test_a_container_that_another_has_says_so(world: World) -> None:
    async with await opened(world) as store:
        await store.stop_container(1)
        world.refused[1] = NotPrimaryError(1, "another was faster")
        assert isinstance(await error_of(store.start_container(1)), NotPrimaryError)
        error = await error_of(store.append(NAMES[1], b"x"))
        assert isinstance(error, ContainerNotServedError)
        assert "another was faster" in str(error)
        await store.stop_container(1)
        assert store.stats()["health"] == []


@scenario
async def test_one_that_is_fenced_is_reported_and_not_started_again(world: World) -> None:
    async with await opened(world) as store:
        contents = world.memory.contents(1)
        contents.epoch += 1
        assert isinstance(await error_of(store.append(NAMES[1], b"x")), AppendOutcomeUnknownError)
        status = store.stats()["container_states"][1]
        assert status["state"] == "failed"
        assert "NotPrimaryError" in str(status["cause"]) or "another owner" in str(status["cause"])
        await asyncio.sleep(3600)
        assert store.served == [0, 2, 3]
        assert contents.epoch == 2
        assert isinstance(await error_of(store.append(NAMES[1], b"x")), NotPrimaryError)
        assert any("container 1 is stopped" in each for each in store.stats()["health"])
        assert await store.append(NAMES[0], b"+") == 5
        # A stop takes note of it; a start takes the log back.
        await store.stop_container(1)
        assert state(store, 1) == "stopped"
        assert store.stats()["health"] == []
        await store.start_container(1)
        assert await store.append(NAMES[1], b"y") == 5


@scenario
async def test_one_that_has_failed_is_started_again_when_it_is_asked_for(world: World) -> None:
    async with await opened(world) as store:
        world.memory.fail_append_after(0, container_id=1)
        assert isinstance(await error_of(store.append(NAMES[1], b"x")), AppendOutcomeUnknownError)
        assert state(store, 1) == "failed"
        assert isinstance(await error_of(store.append(NAMES[1], b"x")), ContainerStoppedError)
        await store.start_container(1)
        assert state(store, 1) == "running"
        assert await store.append(NAMES[1], b"y") == 5


@scenario
async def test_a_stop_that_could_not_drain_is_no_success(world: World) -> None:
    async with await opened(world) as store:
        world.frames[1].shut()
        taken = store.append(NAMES[1], b"taken")
        stopping = begin(store.stop_container(1))
        await settle()
        world.memory.fail_append_after(0, container_id=1)
        world.frames[1].open()
        error = await error_of(stopping)
        assert isinstance(error, ContainerStoppedError)
        assert isinstance(error.cause, TierUnavailableError)
        assert isinstance(await error_of(taken), AppendOutcomeUnknownError)
        assert state(store, 1) == "failed"
        assert any("container 1 has failed" in each for each in store.stats()["health"])
        await store.start_container(1)
        assert store.stats()["health"] == []
        assert await read_all(store, NAMES[1]) == b"begin"


@scenario
async def test_one_that_has_failed_stays_failed_while_it_is_released(world: World) -> None:
    """Another owner waits for one that is being stopped, and need not wait for this."""
    async with await opened(world) as store:
        world.closes.shut()
        world.memory.fail_append_after(0, container_id=1)
        await error_of(store.append(NAMES[1], b"lost"))
        stop = begin(store.stop_container(1))
        await settle()
        assert (world.closes.waiting, state(store, 1)) == (1, "failed")
        start = begin(store.start_container(1))
        await settle()
        assert state(store, 1) == "failed"
        world.memory.contents(1).fail_after = None
        world.closes.open()
        await asyncio.gather(stop, start)
        assert state(store, 1) == "running"


@scenario
async def test_one_that_fails_in_the_turn_in_which_it_begins_has_not_started(world: World) -> None:
    async with await opened(world, serve="0") as store:
        world.starts[1].shut()
        starting = begin(store.start_container(1))
        await settle()
        container = store._parts.registry._entries[1].container
        assert container is not None
        error = TierUnavailableError("tier1", "at once")
        fail = partial(container._failed, error)
        container._eviction.prepare = fail  # type: ignore[method-assign]
        world.starts[1].open()
        assert await error_of(starting) is error
        assert state(store, 1) == "failed"
        assert sorted(world.opened) == [0]
        assert store.served == [0]
        await store.start_container(1)
        assert store.served == [0, 1]


@scenario
async def test_a_flush_of_one_that_is_stopped_on_request_says_so(world: World) -> None:
    async with await opened(world) as store:
        world.uploads.shut()
        await store.append(NAMES[1], b"+")
        flushes = [begin(store.flush(NAMES[1])), begin(store.flush())]
        await settle()
        await store.stop_container(1)
        world.uploads.open()
        for flush in flushes:
            assert isinstance(await error_of(flush), ContainerNotServedError)
