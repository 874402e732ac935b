"""LoopCalls: calls from threads arrive in their order, and none behind its end."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.event_loops import new_uvloop
from segmentstore.contracts.loop_calls import LoopCalls

LOOPS = [asyncio.SelectorEventLoop, new_uvloop]
Factory = Callable[[], asyncio.AbstractEventLoop]


def on(factory: Factory, main: Any) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def descriptors() -> int:
    gc.collect()  # Another test's may be closed by it at any time.
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("factory", LOOPS)
def test_the_calls_of_each_thread_come_in_their_order(factory: Factory) -> None:
    count, threads = 2_000, 3

    async def main() -> None:
        before = descriptors()
        calls, arrived, done = LoopCalls(), list[tuple[int, int]](), asyncio.Event()

        def take(thread: int, number: int) -> None:
            assert asyncio.get_running_loop() is loop
            arrived.append((thread, number))
            if len(arrived) == count * threads:
                done.set()

        def give(thread: int) -> None:
            for number in range(count):
                calls.call(take, thread, number)

        loop = asyncio.get_running_loop()
        givers = [threading.Thread(target=give, args=(thread,)) for thread in range(threads)]
        for giver in givers:
            giver.start()
        await asyncio.wait_for(done.wait(), 60)
        for thread, giver in enumerate(givers):
            giver.join()
            assert [number for of, number in arrived if of == thread] == list(range(count))
        calls.close()
        assert descriptors() == before

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_a_call_that_raises_is_reported_and_the_others_follow(factory: Factory) -> None:
    async def main() -> None:
        calls, reported = LoopCalls(), list[str]()
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

        def refuse(number: int) -> None:
            raise ValueError(number)

        for number in range(3):
            calls.call(refuse, number)
        calls.call(done.set)
        await asyncio.wait_for(done.wait(), 60)
        assert reported == ["0", "1", "2"]
        calls.close()

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_nothing_is_called_once_it_is_closed(factory: Factory) -> None:
    async def main() -> None:
        calls, arrived = LoopCalls(), list[int]()
        calls.call(arrived.append, 1)
        calls.close()
        reading, writing = os.pipe()
        # The number that was its descriptor's may be one of these.
        calls.call(arrived.append, 2)
        calls.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not arrived
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):
            os.read(reading, 8)
        for descriptor in (reading, writing):
            os.close(descriptor)

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_one_that_is_closed_by_a_call_calls_no_other(factory: Factory) -> None:
    async def main() -> None:
        calls, arrived = LoopCalls(), list[int]()
        calls.call(calls.close)
        calls.call(arrived.append, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not arrived

    on(factory, main())


def test_it_is_closed_behind_its_loop() -> None:
    made: list[LoopCalls] = []

    async def main() -> None:
        made.append(LoopCalls())

    before = descriptors()
    on(asyncio.SelectorEventLoop, main())
    made[0].call(int)
    made[0].close()
    assert descriptors() == before


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_a_loop_that_watches_nothing_is_called_as_it_can_be(
    has_eventfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_eventfd:
        monkeypatch.delattr(os, "eventfd")

    async def main() -> list[int]:
        calls, arrived = LoopCalls(), list[int]()
        for number in range(3):
            calls.call(arrived.append, number)
        await asyncio.sleep(0)
        calls.close()
        return arrived

    before = descriptors()
    assert run_virtual(main()) == [0, 1, 2]
    assert descriptors() == before


class FullLoop(asyncio.SelectorEventLoop):
    """As where the system watches as many descriptors as it may."""

    def add_reader(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def called_from_a_thread() -> list[int]:
    before = descriptors()
    calls, arrived = LoopCalls(), list[int]()
    thread = threading.Thread(target=calls.call, args=(arrived.append, 1))
    thread.start()
    thread.join()
    await asyncio.sleep(0)
    calls.close()
    assert descriptors() == before
    return arrived


@pytest.mark.parametrize("factory", LOOPS)
def test_a_process_without_a_free_descriptor_calls_as_it_can(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", refuse)
    assert on(factory, called_from_a_thread()) == [1]


def test_a_system_that_watches_no_more_is_called_as_it_can_be() -> None:
    # Its own descriptors, of its wake-ups, were there before.
    loop = asyncio.SelectorEventLoop()
    loop.__class__ = FullLoop
    assert on(lambda: loop, called_from_a_thread()) == [1]
