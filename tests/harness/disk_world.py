"""A world and its processes for tests of the simulated disk: no loop, no chance of faults but what
a test plans.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from recovery.harness.simulation.clock import SimulatedClock
from recovery.harness.simulation.disk import DiskProcess, DiskWorld
from recovery.harness.simulation.fault_points import EFFECTS, TABLE
from recovery.harness.simulation.virtual_loop import VirtualTime
from segmentstore.contracts.disk import Disk


class DiedError(BaseException):
    """What a process raises that has died."""


class World(DiskWorld):
    """Faults strike when `plan` says so of a point and the effect that is under way."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self._clock = SimulatedClock(self.time)
        self.effect = ""
        self.plan: Callable[[str, str], bool] = lambda _point, _effect: False

    @property
    def clock(self) -> SimulatedClock:
        return self._clock

    def strikes(self, point: str) -> bool:
        assert point in TABLE
        return self.plan(point, self.effect)

    def reach(self, point: str) -> None:
        assert point in TABLE

    def meet(self, point: str) -> None:
        """This fault strikes from now on, and no other does."""
        self.plan = lambda name, _: name == point


class Process(DiskProcess):
    """Time passes at once; `between` may check the world, or change it, before each effect."""

    def __init__(self, world: World | None = None, name: str = "p") -> None:
        self._world = world if world is not None else World()
        self._name = name
        self._random = random.Random(1)
        self.is_dead = False
        self.effects: list[tuple[str, str]] = []
        self.reads = 0
        self.between: Callable[[str], None] = lambda _: None
        self.seconds = 0.0

    @property
    def name(self) -> str:
        return self._name

    @property
    def world(self) -> World:
        return self._world

    @property
    def random(self) -> random.Random:
        return self._random

    @property
    def dead(self) -> bool:
        return self.is_dead

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        assert kind in EFFECTS
        if self.is_dead:
            raise DiedError
        self.between(kind)
        self._world.effect = kind
        self.effects.append((kind, place))

    def note_read(self) -> None:
        self.reads += 1

    def give_way(self, seconds: float) -> None:
        if self.is_dead:
            raise DiedError
        self.seconds += seconds


def write(disk: Disk, path: str, content: bytes) -> None:
    file = disk.open(path, write=True, create=True)
    file.pwrite([content], 0)
    file.close()


def read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(0, 1_000_000)
    finally:
        file.close()
