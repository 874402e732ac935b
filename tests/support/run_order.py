"""The order of a run: what shares a costly thing is put side by side, and before all else. Pure.

xdist's `worksteal` gives each worker one contiguous part of all tests, of the same length. A worker
that has no more takes the end of another's. So each part begins with tests that need to stay
together, or take long, and ends with quick ones that any worker can take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """Tests that run one after the other in one worker."""

    name: str
    seconds: float
    """What one of them takes, about: groups are dealt out by it."""


def arrange(groups: Sequence[Group | None], workers: int) -> list[int]:
    """The numbers of all tests in the order to run them, of which each worker gets a part.

    `groups` has the group of each test, or None for one that runs anywhere.
    """
    members: dict[str, list[int]] = defaultdict(list)
    costs: dict[str, float] = defaultdict(float)
    for number, group in enumerate(groups):
        if group is not None:
            members[group.name].append(number)
            costs[group.name] += group.seconds
    parts: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for name in sorted(costs, key=lambda name: -costs[name]):
        lightest = loads.index(min(loads))
        parts[lightest] += members[name]
        loads[lightest] += costs[name]
    anywhere = [number for number, group in enumerate(groups) if group is None]
    order: list[int] = []
    for number, part in enumerate(parts):
        order += part
        end = len(groups) * (number + 1) // workers
        room = max(0, end - len(order))
        order += anywhere[:room]
        del anywhere[:room]
    return order
