"""Interleaved rounds: floor, skeleton, engine, and again, each in a process and a folder of its
own.

By convention a case module has the functions `floor_round`, `skeleton_round` and `engine_round`,
each taking `directory` and the case's parameters, and giving back a `Measured`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import child
from bench.child import Measured
from bench.workspace import subfolder

SIDES = ("floor", "skeleton", "engine")


def count_of(*, quick: bool) -> int:
    """Rounds a throughput case makes."""
    return 2 if quick else 3


def interleaved(
    module: str, rounds: int, directory: Path, *, sides: Sequence[str] = SIDES, **parameters: object
) -> dict[str, list[Measured]]:
    """What each side of `module` gave, round by round."""
    measured: dict[str, list[Measured]] = {side: [] for side in sides}
    for index in range(rounds):
        for side in sides:
            with subfolder(directory, f"{side}-{index}") as folder:
                measured[side].append(
                    child.call(module, f"{side}_round", {"directory": str(folder), **parameters})
                )
    return measured
