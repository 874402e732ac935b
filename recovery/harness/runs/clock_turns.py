"""What the wall clock of a simulated world does in the middle of a process run, by the names of the
fault points.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from recovery.harness.simulation.clock import SimulatedClock
from recovery.harness.simulation.world import World

_DAY_MS: Final = 86_400_000
_YEAR_MS: Final = 365 * _DAY_MS


def turn_clock(world: World, point: str, rng: random.Random) -> None:
    """One of `plan.CLOCK`, now."""
    world.reach(point)
    turn_one_clock(world.clock, point, rng)


def turn_one_clock(clock: SimulatedClock, point: str, rng: random.Random) -> None:
    """The same of one of several clocks; not counted."""
    if point == "clock.forward":
        clock.jump(rng.randrange(_DAY_MS))
    elif point == "clock.backward":
        clock.jump(-rng.randrange(_DAY_MS))
    else:
        clock.freeze()


def turn_far_clock(world: World, point: str, rng: random.Random) -> None:
    """One of `plan.FAR_CLOCK`, now, on a running loop."""
    world.reach(point)
    years_ms = rng.randrange(_YEAR_MS, 20 * _YEAR_MS)
    world.clock.jump(-years_ms if point == "clock.years-backward" else years_ms)
    if point == "clock.ahead-for-a-while":
        asyncio.get_running_loop().call_later(rng.uniform(0, 2), world.clock.jump, -years_ms)
