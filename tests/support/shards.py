"""Shards of `make test-all`: which files run together, and with which a build begins. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CORES = 2
"""Of the machine that estimates are made for."""
START_S = 30.0
"""Wall seconds that a shard has beside its tests: the interpreter, imports, collection."""


@dataclass(frozen=True)
class Shard:
    """Files that one run of pytest takes together."""

    files: tuple[str, ...]
    seconds: float
    """Of one quiet core, by the marks."""
    longest_s: float
    """Of its longest test."""

    def wall_s(self, slowness: float) -> float:
        """What it will take, at the most, on a machine this much slower than a quiet one."""
        return START_S + slowness * max(
            self.longest_s, self.seconds / CORES + self.longest_s / CORES
        )


def pack(costs: Mapping[str, Sequence[float]], target_s: float) -> list[Shard]:
    """Every file of `costs` (seconds of its tests) in one of the shards of about `target_s`."""
    if not costs:
        return []
    totals = {name: sum(each) for name, each in costs.items()}
    count = max(1, round(sum(totals.values()) / target_s))
    bins: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for name in sorted(costs, key=lambda name: (-totals[name], name)):
        lightest = loads.index(min(loads))
        bins[lightest].append(name)
        loads[lightest] += totals[name]
    return [
        Shard(tuple(sorted(names)), load, max(max(costs[name], default=0.0) for name in names))
        for names, load in zip(bins, loads, strict=True)
        if names
    ]


def fits(shard: Shard, spent_s: float, budget_s: float, slowness: float) -> bool:
    """Whether a shard that begins now ends before the time is over."""
    return spent_s + shard.wall_s(slowness) <= budget_s


def rotation(commit: str, count: int) -> list[int]:
    """All shards, in the order of a build: from the one that the commit's hash names."""
    first = int(commit, 16) % count if count else 0
    return [(first + step) % count for step in range(count)]
