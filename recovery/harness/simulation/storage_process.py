"""What the simulated services need of the process that uses them, and of its world."""

from __future__ import annotations

import random
from typing import Protocol

from recovery.harness.simulation.virtual_loop import VirtualTime


class StorageWorld(Protocol):
    """What the services around a process need of its world."""

    @property
    def time(self) -> VirtualTime: ...

    def strikes(self, point: str) -> bool:
        """True if the fault of this name happens now."""


class StorageProcess(Protocol):
    """What they need of the process itself."""

    @property
    def name(self) -> str: ...
    @property
    def world(self) -> StorageWorld: ...
    @property
    def random(self) -> random.Random: ...
    @property
    def dead(self) -> bool: ...
    @property
    def paused(self) -> bool: ...

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        """Called before each effect; raises, and is dead, if the process dies before it."""
