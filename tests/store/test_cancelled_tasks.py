"""A program that cancels all tasks of its loop, in the middle of anything: every call ends, the
store closes, nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    SegmentStore,
    SegmentStoreError,
    TasksCancelledError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import own_task, owned_tasks
from segmentstore.contracts.runtime import Runtime
from tests.store.bookkeeper_world import BookKeeperWorld
from tests.store.harness import open_tiny, read_all, run
from tests.support.suites import share

Open = Callable[..., Awaitable[SegmentStore]]

TURNS = (0, 1, 3, 8, 21, 55, 144)
KINDS = ("file", "bookkeeper", "snapshots")
BOUND: Mapping[str, Any] = {"containers": 2, "scrub_bytes_per_s": 10_000}


def cancel_all() -> None:
    """The recipe: everything but the task that carries it out."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def answer(call: Awaitable[Any]) -> object:
    """What a call ends in. The bound is only for calls that never end."""
    async with asyncio.timeout(60):
        try:
            return await call
        except (SegmentStoreError, asyncio.CancelledError) as error:
            return error


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def pass_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def opener(kind: str, tmp_path: Path) -> Open:
    if kind != "bookkeeper":
        bound = {"inline_checkpoint_bytes_max": 0, **BOUND} if kind == "snapshots" else BOUND

        async def on_files() -> SegmentStore:
            return await open_tiny(tmp_path / "s", **bound)

        return on_files
    world = BookKeeperWorld()

    async def on_bookkeeper() -> SegmentStore:
        return await world.open(tmp_path / "s", **BOUND)

    return on_bookkeeper


async def cancelled_at(open_store: Open, turns: int, *, flushing: bool) -> None:
    """One lifetime that is cancelled after some turns under load, and the next one, which must find
    what was acknowledged.
    """
    store = await open_store()
    names = [f"{turns}-{number}" for number in range(4)]
    for name in names:
        await store.create_segment(name)
    appends = [
        (name, number, store.append(name, b"%03d " % number * 20))
        for number in range(20)
        for name in names
    ]
    calls = (
        [asyncio.ensure_future(store.flush()), asyncio.ensure_future(store.checkpoint())]
        if flushing
        else []
    )
    await pass_turns(turns)
    cancel_all()
    acknowledged = dict.fromkeys(names, 0)
    for name, number, append in appends:
        outcome = await answer(append)
        if isinstance(outcome, int):
            assert outcome == 80 * number
            acknowledged[name] = number + 1
        else:
            assert isinstance(
                outcome, ContainerStoppedError | AppendOutcomeUnknownError | TierUnavailableError
            ), outcome
    for call in calls:
        await answer(call)
    assert await answer(store.close()) is None
    late = await answer(store.append(names[0], b"late"))
    assert isinstance(late, ContainerStoppedError)
    assert isinstance(late.cause, TasksCancelledError)
    assert not owned_tasks()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with await open_store() as again:
        for name in names:
            content = await read_all(again, name)
            assert len(content) >= 80 * acknowledged[name]
            assert content == b"".join(
                b"%03d " % number * 20 for number in range(len(content) // 80)
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flushing", share([True, False], 2, 3))
def test_all_tasks_cancelled_under_load(tmp_path: Path, kind: str, flushing: bool) -> None:
    async def main() -> None:
        for turns in TURNS:
            await cancelled_at(opener(kind, tmp_path / f"{turns}"), turns, flushing=flushing)

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_all_tasks_cancelled_in_the_middle_of_a_close(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        open_store = opener(kind, tmp_path)
        for turns in TURNS:
            store = await open_store()
            await store.create_segment(f"{turns}")
            appends = [store.append(f"{turns}", b"%03d " % number) for number in range(100)]
            closing = asyncio.ensure_future(store.close())
            await pass_turns(turns)
            cancel_all()
            await answer(closing)
            await pass_turns(turns // 2)
            cancel_all()
            await answer(store.close())
            assert [await answer(append) for append in appends] == list(range(0, 400, 4))
            assert not owned_tasks()
        await (await open_store()).close()

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_ends_with_an_open_store_closes_it(tmp_path: Path, kind: str) -> None:
    open_store = opener(kind, tmp_path)
    kept: list[SegmentStore] = []

    async def leave() -> None:
        store = await open_store()
        kept.append(store)
        for _ in range(10):
            await store.append("a", b"x")

    async def make() -> None:
        async with await open_store() as store:
            await store.create_segment("a")

    async def look() -> None:
        async with await open_store() as store:
            assert await read_all(store, "a") == b"x" * 20

    run(make())
    run(leave())
    run(leave())
    run(look())


def test_who_waits_for_a_throttle_or_for_tier2_learns_that_the_store_closed(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = Runtime(executor=inline_executor)
        options = {"unflushed_bytes_max": 8192, "tier1": "memory", "tier2": "memory://cancelled"}
        store = await open_tiny(tmp_path / "s", runtime=runtime, **options)
        store._parts.containers[0]._writer._uploader._first = never
        await store.create_segment("a")
        appends = [store.append("a", b"x" * 1000) for _ in range(40)]
        flush = asyncio.ensure_future(store.flush())
        await asyncio.sleep(10.3)  # in the middle of a pause
        assert not all(append.done() for append in appends)
        assert "held back by unflushed" in str(store.stats()["health"])
        # A flush outside of the cancelled tasks: its answer is the store's.
        other = own_task(store.flush(), name="flush")
        await asyncio.sleep(0)
        cancel_all()
        assert [await answer(append) for append in appends] == list(range(0, 40_000, 1000))
        assert isinstance(await answer(flush), asyncio.CancelledError)
        calls = (
            store.flush(),
            store.checkpoint(),
            store.read("a", 0, 1),
            store.create_segment("b"),
        )
        assert await answer(store.close()) is None
        for call in (other, *calls):
            outcome = await answer(call)
            assert isinstance(outcome, ContainerStoppedError)
            assert "cancelled from outside" in str(outcome)
            assert "open the store again" in str(outcome)

    run_virtual(main())


def test_a_program_sees_one_task_of_a_store(tmp_path: Path) -> None:
    async def main() -> None:
        mine = asyncio.all_tasks()
        store = await open_tiny(tmp_path / "s", containers=3, scrub_bytes_per_s=1000)
        await store.create_segment("a")
        for _ in range(20):
            await store.append("a", b"x" * 300)
            assert [task.get_name() for task in asyncio.all_tasks() - mine] == [
                f"segmentstore {tmp_path / 's'}"
            ]
        await store.flush()
        assert owned_tasks()
        await store.close()
        assert not owned_tasks()

    run(main())
