"""A world and its processes without disk and store: what the simulated services need, with faults
that come when asked to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from recovery.harness.simulation.fault_points import EFFECTS, TABLE
from recovery.harness.simulation.virtual_loop import DeadlockError, VirtualLoop, VirtualTime

T = TypeVar("T")


class DiedError(BaseException):
    """Raised in what a process was doing when it died."""


class FakeWorld:
    """Time, and faults: `plan` says which queries of a fault point strike."""

    def __init__(self, seed: int = 0) -> None:
        self.time = VirtualTime()
        self.seed = seed
        self.struck: list[str] = []
        self.processes: list[FakeProcess] = []
        self._plans: dict[str, tuple[int, int]] = {}

    def plan(self, point: str, times: int = 1, *, after: int = 0) -> None:
        """Let `after` queries of the point pass, and strike in the next `times`."""
        assert point in TABLE, point
        self._plans[point] = (after, times)

    def heal(self) -> None:
        self._plans.clear()

    def strikes(self, point: str) -> bool:
        assert point in TABLE, point
        after, times = self._plans.get(point, (0, 0))
        if after:
            self._plans[point] = (after - 1, times)
            return False
        if not times:
            return False
        self._plans[point] = (0, times - 1)
        self.struck.append(point)
        return True

    def reach(self, point: str) -> None:
        assert point in TABLE, point
        self.struck.append(point)

    def process(self, name: str = "p") -> FakeProcess:
        process = FakeProcess(self, f"{name}.{len(self.processes) + 1}")
        self.processes.append(process)
        return process

    def run(self, until: Callable[[], bool]) -> None:
        """Let the processes that are neither dead nor paused run, in turn."""
        while not until():
            running = [
                process for process in self.processes if not process.dead and not process.paused
            ]
            now_us = self.time.now_us
            ready = [process for process in running if process.loop.next_due_us() == now_us]
            for process in ready:
                process.loop.run_ready()
            if not ready:
                timers = [
                    timer
                    for process in running
                    if (timer := process.loop.next_timer_us()) is not None
                ]
                if not timers:
                    raise DeadlockError("nothing will happen any more")
                self.time.now_us = min(timers)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which no process runs."""
        self.time.now_us += round(seconds * 1_000_000)

    def close(self) -> None:
        for process in self.processes:
            process.die()


@contextmanager
def fake_world(seed: int = 0) -> Iterator[FakeWorld]:
    world = FakeWorld(seed)
    try:
        yield world
    finally:
        world.close()


class FakeProcess:
    """A process with a loop of its own. `dies_before` and `pauses_before` are kinds of effects."""

    def __init__(self, world: FakeWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = VirtualLoop(world.time)
        self.random = random.Random(f"{world.seed}/{name}")
        self.dead = False
        self.paused = False
        self.dies_before = ""
        self.pauses_before = ""
        self.effects: list[tuple[str, str, str]] = []

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        assert kind in EFFECTS, kind
        if kind == self.dies_before:
            self.die()
        if self.dead:
            raise DiedError
        self.effects.append((kind, place, detail))
        if kind == self.pauses_before:
            self.paused = True

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(main)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and the other processes beside it. Raises DiedError."""
        task = self.start(main)
        self.world.run(lambda: task.done() or self.dead)
        if self.dead:
            raise DiedError
        return task.result()

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            self.loop.discard()
