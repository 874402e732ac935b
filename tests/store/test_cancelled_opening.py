"""An opening that is cancelled at any step, and again while it releases: nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore.contracts.owned_tasks import owned_tasks
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY, WorldDisk, run
from tests.support.suites import share, size, sized, slow

STEP = size("CANCELLED_OPENING_STEP", 6, 2)
"""At each so many-th call of the disk."""

WAIT_S = 60


class NoticingDisk(WorldDisk):
    """Cancels a task of the loop in the middle of some of its calls, which go on after that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.task: asyncio.Task[Any] | None = None
        self.moments: set[int] = set()
        """Numbers of calls, from 1."""
        self.calls = 0

    def reach(self, call: str, path: str) -> None:
        self.calls += 1
        if self.calls in self.moments:
            cancelled = threading.Event()

            def cancel() -> None:
                assert self.task is not None
                self.task.cancel()
                cancelled.set()

            self.loop.call_soon_threadsafe(cancel)
            assert cancelled.wait(WAIT_S)
        super().reach(call, path)


def left(threads: set[threading.Thread], descriptors: int) -> None:
    """Threads end soon after their work; descriptors are closed at once."""
    for thread in set(threading.enumerate()) - threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def cancelled_opening(location: Path, disk: NoticingDisk) -> None:
    task = asyncio.ensure_future(segmentstore.open(location, runtime=Runtime(disk=disk), **TINY))
    disk.task = task
    await asyncio.wait((task,))
    if not task.cancelled():
        # Cancelled too late: what is given is the caller's.
        await task.result().close()


async def calls_of_an_opening(location: Path) -> int:
    disk = NoticingDisk(asyncio.get_running_loop())
    async with segmentstore.open(location, runtime=Runtime(disk=disk), **TINY):
        return disk.calls


@sized(5)
@pytest.mark.parametrize("made", share([True, False], 2, 5))
def test_cancelled_at_any_call_of_the_disk_and_again_it_leaves_nothing(
    tmp_path: Path, *, made: bool
) -> None:
    async def main() -> None:
        count = await calls_of_an_opening(tmp_path / "count")
        if made:
            count = await calls_of_an_opening(tmp_path / "count")
        threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        for moment in range(1, count + 1, STEP):
            for again in (0, 2):
                location = tmp_path / f"{moment}-{again}"
                if made:
                    await (await segmentstore.open(location, **TINY)).close()
                disk = NoticingDisk(asyncio.get_running_loop())
                disk.moments = {moment, moment + again}
                await cancelled_opening(location, disk)
                left(threads, descriptors)
                await (await segmentstore.open(location, **TINY)).close()

    run(main())


@slow(3)
def test_the_failure_of_an_unawaited_first_checkpoint_is_not_reported(tmp_path: Path) -> None:
    """A future that fails unseen is an error in programs whose event loop's handler raises."""

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )
        count = await calls_of_an_opening(tmp_path / "count")
        # The first checkpoint is among the last of what a new store writes.
        for moment in range(count * 2 // 3, count + 1):
            disk = NoticingDisk(asyncio.get_running_loop())
            disk.moments = {moment}
            await cancelled_opening(tmp_path / str(moment), disk)
        gc.collect()
        assert not complaints

    run(main())


def test_cancelled_in_any_turn_of_the_loop_and_again_it_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with segmentstore.open(tmp_path / "s", **TINY):
            pass
        threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        for turns in range(0, 60, 3):
            for more in (1, 2, 5):
                task = asyncio.ensure_future(segmentstore.open(tmp_path / "s", **TINY))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                for _ in range(more):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    await task.result().close()
                left(threads, descriptors)
                assert not owned_tasks()

    run(main())


def test_a_program_that_is_cancelled_at_its_end_leaves_the_store_free(tmp_path: Path) -> None:
    """asyncio.run cancels what is left of tasks, and closes the loop behind them."""

    async def main(turns: int) -> None:
        task = asyncio.ensure_future(segmentstore.open(tmp_path / "s", **TINY))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()

    for turns in (1, 2, 3, 5, 8, 13, 21):
        asyncio.run(main(turns))
        with segmentstore.blocking.open(tmp_path / "s", **TINY) as store:
            assert store.stats()["health"] == []


def test_an_opening_that_is_done_when_it_is_cancelled_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(segmentstore.open(tmp_path / "s", **TINY))
        while True:
            inner = [task for task in owned_tasks() if task.get_name().startswith("open store and")]
            if inner and inner[0].done():
                break
            if inner:
                inner[0].add_done_callback(lambda _: opening.cancel())
                break
            await asyncio.sleep(0)
        await asyncio.wait((opening,))
        assert opening.cancelled()
        await (await segmentstore.open(tmp_path / "s", **TINY)).close()

    run(main())
