"""What a run of cycles will do to a cluster, drawn from its seed. Pure.

The seed gives the faults and their durations; at which instant of the load they come is up to the
machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

HOSTS: Final = 3
BOOKIES: Final = 3
SESSION_TIMEOUT_S: Final = 4
"""Of the hosts: short, so that a take-over is."""

KINDS: Final[Mapping[str, int]] = {
    "host killed": 4,
    "host paused, shorter than its session": 2,
    "host paused, longer than its session": 3,
    "host drained and started": 2,
    "two hosts killed": 1,
    "two hosts paused, longer than their sessions": 1,
    "link host to ZooKeeper cut": 2,
    "link host to a bookie cut": 1,
    "link host to all bookies cut": 1,
    "link clients to a host cut": 2,
    "bookie killed": 1,
    "ZooKeeper killed": 1,
}
"""How often each comes in one deck."""
_SHORT_S: Final = (0.5, 2.0)
_LONG_S: Final = (SESSION_TIMEOUT_S + 2.0, SESSION_TIMEOUT_S + 4.0)
_AWAY_S: Final = (0.2, 5.0)
"""From a kill to the start, and of a cut: shorter and longer than a session."""


@dataclass(frozen=True, slots=True)
class CycleStep:
    """One cycle: a fault, and its end."""

    kind: str
    victim: int
    """A number by which the host is chosen among those that have containers then."""
    bookie: int
    seconds: float
    """From the fault to its end."""
    silent: bool
    """Of a cut: nothing passes, but no connection ends."""
    whole: bool
    """With a host, its gateway is killed or paused at the same moment."""


def draw_steps(seed: str) -> Iterator[CycleStep]:
    """The cycles of a seed, without end: one shuffled deck of KINDS after the other."""
    rng = random.Random(f"{seed}/cluster cycles")
    while True:
        deck = [kind for kind, often in KINDS.items() for _ in range(often)]
        rng.shuffle(deck)
        for kind in deck:
            yield CycleStep(
                kind,
                victim=rng.randrange(HOSTS),
                bookie=rng.randrange(BOOKIES),
                seconds=round(rng.uniform(*_seconds(kind)), 2),
                silent=rng.random() < 0.5,
                whole=rng.random() < 0.7,
            )


def _seconds(kind: str) -> tuple[float, float]:
    if "shorter" in kind:
        return _SHORT_S
    return _LONG_S if "longer" in kind else _AWAY_S
