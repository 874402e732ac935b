"""The longest turns of the event loop, by part: measured by its own clock, unnoticed by tasks."""

from __future__ import annotations

import asyncio
import gc
import io
import traceback
import weakref
from collections.abc import Callable

import pytest

from recovery.harness.simulation.virtual_loop import VirtualLoop, run_virtual
from segmentstore.contracts import loop_turns
from segmentstore.contracts.loop_turns import OTHER, PARTS_MAX, longest_turns, part_of, timed_turn
from segmentstore.contracts.owned_tasks import OwnedTaskGroup, gather_owned, own_task
from tests.support.turn_watch import TurnWatch, described


def spend(microseconds: int) -> None:
    """Have time pass within the turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.virtual_time.now_us += microseconds


async def spend_each(*microseconds: int) -> None:
    """A step for each."""
    for each in microseconds:
        spend(each)
        await asyncio.sleep(1)


class Callbacks:
    @timed_turn("callback")
    def run(self) -> None:
        spend(500)

    @timed_turn("failing callback")
    def fail(self) -> None:
        spend(600)
        raise KeyError("planted")


def test_the_longest_step_of_each_part_is_kept() -> None:
    async def main() -> None:
        await own_task(spend_each(1000, 3000, 2000), name="writer 7")
        await own_task(spend_each(2500), name="writer 8")
        await gather_owned(spend_each(10), spend_each(20), name="pair")
        async with OwnedTaskGroup() as group:
            tasks = [
                group.create_task(spend_each(30)),
                group.create_task(spend_each(40), name="named #9"),
            ]
        assert [task.get_name().partition(".")[0] for task in tasks] == ["spend_each", "named #9"]
        Callbacks().run()
        with pytest.raises(KeyError):
            Callbacks().fail()
        assert longest_turns() == pytest.approx(
            {
                "callback": 0.0005,
                "failing callback": 0.0006,
                "named ": 0.00004,
                "pair": 0.00002,
                "spend_each": 0.00003,
                "writer": 0.003,
            },
            abs=1e-9,
        )

    run_virtual(main())


def test_a_step_that_ends_in_an_exception_counts() -> None:
    async def main() -> None:
        async def clean_up() -> None:
            try:
                await asyncio.sleep(1)
            finally:
                spend(700)

        task = own_task(clean_up(), name="cancelled")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert longest_turns() == {"cancelled": pytest.approx(0.0007)}

    run_virtual(main())


def test_nothing_is_spent_in_virtual_time_and_loops_are_apart() -> None:
    async def main(name: str) -> dict[str, float]:
        await own_task(asyncio.sleep(1), name=name)
        return longest_turns()

    gc.collect()
    before = {id(loop) for loop in loop_turns._loops}
    assert longest_turns() == {}
    assert run_virtual(main("one")) == {"one": 0.0}
    assert run_virtual(main("two")) == {"two": 0.0}
    gc.collect()
    # Those that tests before this one have left are others.
    assert {id(loop) for loop in loop_turns._loops} <= before


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("storage writer 0", "storage writer"),
        ("log-12", "log"),
        ("idle segments 3, with room", "idle segments, with room"),
        ("tier2 s3 part", "tier2 s3 part"),
        ("open store: release", "open store"),
        ("read#8/9", "read"),
    ],
)
def test_a_part_has_no_ids(name: str, part: str) -> None:
    assert part_of(name) == part


def test_the_number_of_parts_is_bounded() -> None:
    async def main() -> None:
        for number in range(2 * PARTS_MAX):
            await own_task(spend_each(1000 + number), name=f"x{number}x")
        turns = longest_turns()
        assert len(turns) == PARTS_MAX
        assert turns[OTHER] == pytest.approx(0.001199)

    run_virtual(main())


# --- tasks are as without -------------------------------------------------------------------------


def test_a_task_shows_its_own_function_and_place() -> None:
    async def wait_here() -> None:
        await asyncio.sleep(1)

    async def main() -> None:
        task = own_task(wait_here(), name="waits 1")
        plain = asyncio.get_running_loop().create_task(wait_here(), name="waits 1")
        await asyncio.sleep(0)
        assert "wait_here() running at " in repr(task)
        assert repr(task).partition(" wait_for=")[0] == repr(plain).partition(" wait_for=")[0]
        (frame,) = task.get_stack()
        assert frame.f_code is wait_here.__code__
        shown = io.StringIO()
        task.print_stack(file=shown)
        assert "await asyncio.sleep(1)" in shown.getvalue()
        assert asyncio.iscoroutine(task.get_coro())
        await asyncio.gather(task, plain)
        assert repr(task).partition(" result=")[0] == repr(plain).partition(" result=")[0]

    run_virtual(main())


def test_a_traceback_has_one_entry_more() -> None:
    async def fail_here() -> None:
        await asyncio.sleep(0)
        raise KeyError("planted")

    async def main() -> None:
        names = []
        begin: Callable[..., asyncio.Task[None]]
        for begin in (own_task, asyncio.get_running_loop().create_task):
            task = begin(fail_here(), name="fails")
            await asyncio.wait((task,))
            error = task.exception()
            assert isinstance(error, KeyError)
            names.append([each.name for each in traceback.extract_tb(error.__traceback__)])
        assert names == [["send", "fail_here"], ["fail_here"]]

    run_virtual(main())


def test_a_task_that_is_cut_off_cleans_up() -> None:
    seen: list[type[BaseException]] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            seen.append(type(error))
            raise

    loop = asyncio.new_event_loop()
    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        kept.extend(own_task(wait_for_ever(), name="waits") for _ in range(2))
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    loop.close()
    kept[0].get_coro().close()
    assert seen == [GeneratorExit]
    for task in kept:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    kept.clear()
    gc.collect()
    assert seen == [GeneratorExit, GeneratorExit]


# --- the watch of tests ---------------------------------------------------------------------------


def test_a_task_that_was_cancelled_leaves_nothing_to_the_collector() -> None:
    """What it had is freed at once: the collector passes over old objects rarely."""

    class Held:
        pass

    async def wait(held: Held) -> None:
        await asyncio.Event().wait()
        del held

    async def main() -> None:
        held = Held()
        known = weakref.ref(held)
        task = own_task(wait(held), name="waits")
        del held
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        del task
        await asyncio.sleep(0)
        assert known() is None

    gc.disable()
    try:
        # Tasks of the virtual loop leave more.
        asyncio.run(main())
    finally:
        gc.enable()


def test_the_watch_counts_the_calls_of_each_turn() -> None:
    async def call(count: int) -> None:
        for _ in range(count):
            spend(0)
        await asyncio.sleep(0)

    async def main(watch: TurnWatch) -> None:
        for phase, count in (("few", 10), ("many", 1000)):
            watch.phase = phase
            await own_task(call(count), name=f"calls {count}")

    counts = []
    for _ in range(2):
        with TurnWatch({"main": "test"}) as watch:
            run_virtual(main(watch))
        counts.append([watch.longest[phase, "calls"].calls for phase in ("few", "many")])
        # Others may be there: what a process does once, at its first task.
        turn = watch.over(2000)["many", "calls"]
        # `spend`, `get_running_loop` and `isinstance`.
        assert 3000 <= turn.calls < 3050
        assert turn.turns == 2
        assert described(("many", "calls"), turn).startswith(
            f"many: a turn of 'calls' makes {turn.calls:,} calls; sampled calls: "
        )
        assert "spend" in described(("many", "calls"), turn)
    assert counts[0] == counts[1]
    assert 30 <= counts[0][0] < 80
