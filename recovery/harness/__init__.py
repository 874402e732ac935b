"""The recovery testing harness: the production code in a world that fails on purpose, and the proof
of what it keeps.

- `simulation`: a seeded world in virtual time (loop, disk, object storage, log, cache, clock,
  chance);
- `workloads`: clients that use a store in every way and write down the answers they got
  (`history`);
- `checkers`: pure checkers of a history;
- `runs`: plans drawn from seeds and carried out in the world. `enumeration`: every crash point of
  short workloads. `kills`: real processes. `services`: real servers, and a proxy with faults before
  them. `mutants`: engines with one rule broken. `reporting`: what people get to see.

The names below are all that a test of an application needs; docs/crash-testing.md shows how, and
`recovery.harness.examples` has a service tested so. Modules of the harness import each other
directly, never from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from recovery.harness.checkers.all_checks import check_history
    from recovery.harness.history import History, Violation
    from recovery.harness.observer import observe
    from recovery.harness.recorder import RecordedStore
    from recovery.harness.reporting.narrate import narrate
    from recovery.harness.runs.plan import Plan, draw_plan, draw_settings
    from recovery.harness.runs.run_result import RunResult
    from recovery.harness.runs.scenario import Scenario
    from recovery.harness.runs.shrink import shrink
    from recovery.harness.runs.simulate import run_many, run_seed
    from recovery.harness.simulation.store_world import StoreWorld
    from recovery.harness.simulation.virtual_loop import DeadlockError, WedgedError
    from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess, World
    from recovery.harness.workloads.catalogue import WORKLOADS

_LAZY: Final = {
    "DeadlockError": "simulation.virtual_loop",
    "History": "history",
    "Plan": "runs.plan",
    "ProcessDiedError": "simulation.world",
    "RecordedStore": "recorder",
    "RunResult": "runs.run_result",
    "Scenario": "runs.scenario",
    "SimulatedProcess": "simulation.world",
    "StoreWorld": "simulation.store_world",
    "Violation": "history",
    "WORKLOADS": "workloads.catalogue",
    "WedgedError": "simulation.virtual_loop",
    "World": "simulation.world",
    "check_history": "checkers.all_checks",
    "draw_plan": "runs.plan",
    "draw_settings": "runs.plan",
    "narrate": "reporting.narrate",
    "observe": "observer",
    "run_many": "runs.simulate",
    "run_seed": "runs.simulate",
    "shrink": "runs.shrink",
}

__all__ = [
    "WORKLOADS",
    "DeadlockError",
    "History",
    "Plan",
    "ProcessDiedError",
    "RecordedStore",
    "RunResult",
    "Scenario",
    "SimulatedProcess",
    "StoreWorld",
    "Violation",
    "WedgedError",
    "World",
    "check_history",
    "draw_plan",
    "draw_settings",
    "narrate",
    "observe",
    "run_many",
    "run_seed",
    "shrink",
]


def __getattr__(name: str) -> object:
    """Load what is asked for, and no more: a test of one service needs neither the checkers nor the
    runs.
    """
    module_name = _LAZY.get(name)
    if module_name is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(importlib.import_module(f"{__name__}.{module_name}"), name)
    globals()[name] = value
    return value
