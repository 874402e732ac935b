"""The simulated world itself: time, processes, jobs, locks, clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.virtual_loop import (
    DeadlockError,
    VirtualLoop,
    WedgedError,
    run_virtual,
)
from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess, World


def test_hours_pass_at_once_and_timers_come_in_order() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(7200, seen.append, "late")
        loop.call_later(3600, seen.append, "early")
        await asyncio.sleep(7200)
        assert loop.time() == 7200
        return seen

    assert run_virtual(main()) == ["early", "late"]


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(main())
    world = World("deadlock")
    with pytest.raises(DeadlockError):
        world.run_task(world.process("p"), main())
    world.close()


def test_a_loop_alone_that_polls_for_ever_comes_to_the_end_of_time() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - the very thing
            await asyncio.sleep(3600)

    with pytest.raises(WedgedError, match="not come about until"):
        run_virtual(main())


def test_waiting_for_ever_is_an_error_too() -> None:
    async def main() -> None:
        await asyncio.sleep(10**6)

    world = World("wedged")
    with pytest.raises(WedgedError):
        world.run_task(world.process("p"), main(), timeout_s=3600)
    world.process("q")
    with pytest.raises(WedgedError):
        world.run(lambda: False, timeout_s=3600)
    world.close()


def test_turning_in_a_circle_while_time_stands_still_is_an_error() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - the very thing
            await asyncio.sleep(0)

    world = World("circle")
    with pytest.raises(WedgedError):
        world.run_task(world.process("p"), main())
    world.process("q")
    with pytest.raises(WedgedError):
        world.run(lambda: False)
    world.close()


def test_an_unawaited_error_is_kept() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        tasks = [asyncio.ensure_future(fail())]
        await asyncio.sleep(1)
        tasks.clear()
        gc.collect()  # From Python 3.13 on a task that failed is part of a cycle.
        await asyncio.sleep(1)

    world = World("unhandled")
    world.run_task(world.process("p"), main())
    assert [text for text in world.unhandled if "KeyError" in text] == world.unhandled
    assert len(world.unhandled) == 1
    world.close()


def test_sets_of_tasks_keep_the_order_of_their_making() -> None:
    async def main() -> bool:
        tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(50)]
        numbers = [hash(task) for task in tasks]
        await asyncio.wait(tasks)
        return numbers == sorted(numbers) and numbers[-1] - numbers[0] < 200

    assert run_virtual(main())


def test_jobs_of_a_pool_take_turns_at_each_wait_and_only_so_many_at_once() -> None:
    world = World("jobs")
    process = world.process("p")
    seen: list[str] = []

    def job(name: str) -> str:
        for step in range(3):
            seen.append(f"{name}{step}")
            process.give_way(0.001)
        return name

    async def main(threads: int) -> list[str]:
        executor = process.runtime.executor("pool", threads)
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(executor, job, name) for name in "abc"))

    assert world.run_task(process, main(2)) == ["a", "b", "c"]
    assert seen[:4] == ["a0", "b0", "a1", "b1"]
    assert seen.index("c0") > seen.index("a2")
    seen.clear()
    world.run_task(process, main(1))
    assert seen == [f"{name}{step}" for name in "abc" for step in range(3)]
    world.close()


def test_an_error_of_a_job_reaches_who_waits() -> None:
    world = World("error")
    process = world.process("p")

    def job() -> None:
        process.give_way(0.1)
        raise OSError("gone")

    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(process.runtime.executor("pool", 1), job)

    with pytest.raises(OSError, match="gone"):
        world.run_task(process, main())
    world.close()


def test_a_lock_keeps_jobs_out_in_the_order_they_came() -> None:
    world = World("lock")
    process = world.process("p")
    lock = process.runtime.lock()
    seen: list[str] = []

    def job(name: str) -> None:
        with lock:
            seen.append(f"{name} in")
            process.give_way(0.01)
            seen.append(f"{name} out")

    async def main() -> None:
        executor = process.runtime.executor("pool", 3)
        await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(executor, job, name) for name in "abc")
        )

    world.run_task(process, main())
    assert seen == [f"{name} {way}" for name in "abc" for way in ("in", "out")]
    world.close()


def working(
    process_steps: list[int], world: World
) -> tuple[Callable[[], bool], asyncio.Task[None]]:
    process = world.processes[0]

    async def main() -> None:
        for step in range(100):
            process_steps.append(step)
            await asyncio.sleep(1)

    task = process.start(main())
    return task.done, task


def test_a_process_is_stopped_between_a_check_and_what_it_does_about_it() -> None:
    world = World("look")
    process, other = world.process("p"), world.process("q")
    process.stops_behind = 0
    seen: list[bool] = []
    task = process.start(in_a_job(process, lambda: seen.append(process.runtime.disk.exists("/a"))))
    world.run(lambda: process.paused)
    assert world.points.counts() == {"owner.paused-behind-look": 1}
    world.run_task(other, in_a_job(other, lambda: other.runtime.disk.make_directory("/a")))
    assert seen == []
    process.resume()
    world.run(task.done)
    assert seen == [False]
    assert process.runtime.disk.exists("/a")
    world.close()


async def in_a_job(process: SimulatedProcess, job: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(process.runtime.executor("pool", 1), job)


def test_a_killed_process_does_nothing_more() -> None:
    world = World("kill")
    process = world.process("p")
    steps: list[int] = []
    working(steps, world)
    world.run(lambda: len(steps) == 10)
    world.kill(process)
    other = world.process("q")
    world.run_task(other, asyncio.sleep(1000))
    assert len(steps) == 10
    with pytest.raises(ProcessDiedError):
        process.effect("log.write", "/x")
    world.close()


def test_a_paused_process_goes_on_where_it_was() -> None:
    world = World("pause")
    process = world.process("p")
    steps: list[int] = []
    done, _ = working(steps, world)
    world.run(lambda: len(steps) == 10)
    process.pause()
    world.run_task(world.process("q"), asyncio.sleep(1000))
    assert len(steps) == 10
    process.resume()
    world.run(done)
    assert steps == list(range(100))
    world.close()


def test_a_process_dies_before_the_effect_it_was_asked_to() -> None:
    world = StoreWorld("dies")
    process = world.process("p")
    process.dies_at = 7
    with pytest.raises(ProcessDiedError):
        world.run_task(process, world.open_store(process))
    assert process.dead
    assert process.effects == 8
    counts = world.points.counts()
    assert sum(count for point, count in counts.items() if point.startswith("crash.before.")) == 1
    assert sum(count for point, count in counts.items() if point.startswith("crash.after.")) == 1
    world.close()


def test_the_clock_jumps_freezes_and_goes_back() -> None:
    world = World("clock")
    clock, begun = world.clock, world.clock.time_ms()
    world.run_task(world.process("p"), asyncio.sleep(5))
    assert clock.time_ms() == begun + 5000
    clock.jump(-10_000)
    assert clock.time_ms() == begun - 5000
    clock.freeze()
    world.run_task(world.processes[0], asyncio.sleep(5))
    assert clock.time_ms() == begun - 5000
    clock.thaw()
    assert clock.time_ms() == begun
    clock.jump(-2 * begun)
    assert clock.time_ms() == 0
    world.close()


def test_a_loop_that_is_discarded_runs_nothing_of_what_waited() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            seen.append("closed")
            await asyncio.sleep(1)
            seen.append("never")

    task = loop.create_task(tidy())
    loop.run_ready()
    loop.discard()
    assert seen == ["closed"]
    assert loop.is_closed()
    assert not task.done()
