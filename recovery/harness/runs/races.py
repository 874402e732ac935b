"""Races of two owners: the first is stopped behind each check of the disk in turn, a second one
takes over, the first comes back.

Drawn plans stop owners before some effect or behind some check. Two checks with another owner
between them, of which the second does not fit to the first, come up once in thousands of runs. Here
every one of them comes up. Rules of this file:

- plans that differ in the number of the check alone go alike up to it: one seed draws everything
  else;
- only checks disks are stopped behind, so objects are in files: what a service answers is late by
  chance in drawn plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from recovery.harness.history import ProcessRun
from recovery.harness.runs.directed import BUSY
from recovery.harness.runs.plan import Cycle, Plan, Tier1, draw_plan, on_bookkeeper
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.service import SegmentStore

RACES: Final[Mapping[str, Sequence[Cycle]]] = {
    "making": (Cycle(operations=5, ending="takeover"),),
    "closed": (Cycle(operations=20, ending="close"), Cycle(operations=5, ending="takeover")),
    "killed": (
        Cycle(operations=20, ending="kill", dies_at=100),
        Cycle(operations=5, ending="takeover"),
    ),
    "cut in opening": (
        Cycle(operations=20, ending="power", dies_at=100),
        Cycle(operations=0, ending="power", dies_at=8),
        Cycle(operations=5, ending="takeover"),
    ),
    "beside a living owner": (Cycle(operations=20, ending="takeover", dies_at=100),),
}
"""The last process run is the race, the others are what became of the store before.

In the first race it is not there yet. In the last one an owner has been at work for a while, and
the process that opens beside it is the one that is stopped.
"""
RETURNS: Final = (3, 10, 20, 50)
"""Effects of the other one after which the stopped one goes on, in turn: while it opens, or while
it works.
"""
TIER1: Final[Sequence[Tier1]] = ("file", "bookkeeper")
"""On BookKeeper only the store's folder is checked on a disk."""


def race(base: str, tier1: Tier1, name: str, number: int | None) -> Plan:
    """The race of this name, in which a process is stopped behind the check of this number; None:
    no process is. Raises KeyError.
    """
    drawn = draw_plan(f"{base}/{tier1}/{name}", "everything")
    *before, last = RACES[name]
    last = dataclasses.replace(last, returns_at=RETURNS[(number or 0) % len(RETURNS)])
    if last.dies_at is None:
        stopped = dataclasses.replace(last, stops_behind=number)
    else:
        stopped = dataclasses.replace(last, rival_stops_behind=number)
    settings = {**drawn.settings, **BUSY}
    plan = dataclasses.replace(
        drawn, tier1=tier1, tier2="file", rates={}, settings=settings, cycles=(*before, stopped)
    )
    return on_bookkeeper(plan) if tier1 == "bookkeeper" else plan


def race_plans(base: str, tier1: Tier1, name: str) -> Iterator[Plan]:
    """One race, once for each check of the opening.

    Some 0.1 s for the first of them: before it no process is stopped.
    """
    undisturbed = _Undisturbed(race(base, tier1, name, None))
    undisturbed.run()
    return (race(base, tier1, name, number) for number in range(undisturbed.reads))


def all_races(base: str) -> Iterator[Plan]:
    """Every race, some 270 plans."""
    for tier1, name in product(TIER1, RACES):
        yield from race_plans(base, tier1, name)


class _Undisturbed(Scenario):
    """No process is stopped behind a check; the checks of the last opening that another one may
    disturb are counted.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.reads = 0

    async def _open(self, process: SimulatedProcess) -> tuple[ProcessRun, SegmentStore]:
        opened = await super()._open(process)
        if process.name.startswith(("owner", "rival")):
            self.reads = process.reads
        return opened
