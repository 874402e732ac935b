"""Directed plans: what chance alone reaches too rarely.

Each is a drawn plan with something held fast.

Beside the drawn ones, so that every fault point of the table is met by every run of the suite.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from recovery.harness.runs.plan import CATALOG, Cycle, Plan, draw_plan, on_bookkeeper
from recovery.harness.simulation.fault_points import EFFECTS

BUSY: Final[Mapping[str, Any]] = {
    "containers": 1,
    "frame_bytes_max": 200,
    "log_file_bytes": 8 * 1024 + 200,
    "checkpoint_operations": 5,
    "checkpoint_bytes": 1000,
    "flush_bytes": 150,
    "flush_age_s": 0.01,
    "object_bytes": 1000,
    "upload_bytes_max": 2000,
    "deletion_lag_s": 0.0,
}
"""Everything happens all the time: the log rolls, is checkpointed and cut, objects are made and
deleted.
"""


def _with(plan: Plan, **settings: Any) -> Plan:
    return dataclasses.replace(plan, settings={**plan.settings, **BUSY, **settings})


def _folder_syncs_fail(plan: Plan) -> Plan:
    """A put to the file Tier 2 that is repeated finds its own object, whose name may not be
    durable.
    """
    rates = {"disk.sync-directory.eio": 0.08, "disk.link.eio": 0.02}
    return dataclasses.replace(_with(plan), tier1="ledger", tier2="file", rates=rates)


def _service_log(plan: Plan) -> Plan:
    return dataclasses.replace(_with(plan), tier1="ledger")


def _bookkeeper(plan: Plan) -> Plan:
    """Ledgers and nodes, and everything that happens to them."""
    rates = {
        "bookkeeper.bookie.killed": 0.004,
        "bookkeeper.bookie.stopped": 0.004,
        "bookkeeper.bookie.wiped": 0.001,
        "bookkeeper.connection.broken": 0.001,
        "bookkeeper.connection.slow": 0.005,
        "bookkeeper.gateway.killed": 0.002,
        "bookkeeper.call.late": 0.03,
        "node.away": 0.003,
        "node.change.lost": 0.02,
        "node.change.lost-reply": 0.03,
        "node.read.failed": 0.02,
    }
    return dataclasses.replace(on_bookkeeper(_with(plan)), rates=rates)


def _bookkeeper_owners(plan: Plan) -> Plan:
    """Takeovers under load, on slow ways, and nothing else: what an old owner gets, and when."""
    cycles = tuple(
        Cycle(operations=120, ending="takeover", dies_at=40 + 30 * number)
        for number, _ in enumerate(plan.cycles)
    )
    rates = {"bookkeeper.connection.slow": 0.03}
    return dataclasses.replace(
        on_bookkeeper(_with(plan)), workload="appends", rates=rates, cycles=cycles
    )


def _file_log(plan: Plan) -> Plan:
    return dataclasses.replace(_with(plan), tier1="file", rates={})


def _making(plan: Plan) -> Plan:
    """The store dies while it is made, again and again."""
    cycles = tuple(Cycle(operations=5, ending="power", dies_at=at) for at in range(8))
    return dataclasses.replace(plan, rates={}, cycles=cycles)


def _names_fail(plan: Plan) -> Plan:
    rates = {
        "disk.unlink.eio": 0.1,
        "disk.create.enospc": 0.02,
        "disk.link.eio": 0.05,
    }
    return dataclasses.replace(_with(plan), tier1="file", tier2="file", rates=rates)


def _renames_fail(plan: Plan) -> Plan:
    """Only files that the log rolled from are renamed, and it rolls where else all goes well."""
    cycles = tuple(Cycle(operations=120, ending="kill") for _ in plan.cycles)
    return dataclasses.replace(
        _with(plan), tier1="file", rates={"disk.rename.eio": 0.2}, cycles=cycles
    )


def _listings(plan: Plan) -> Plan:
    """Checks of the files, with a listing that lags or fails."""
    cycles = tuple(dataclasses.replace(cycle, checked=True) for cycle in plan.cycles)
    rates = {"object.list.lags": 0.5, "object.list.failed": 0.2}
    return dataclasses.replace(
        _with(plan), tier1="file", tier2="object", rates=rates, cycles=cycles
    )


def _big_writes(plan: Plan) -> Plan:
    """Groups longer than 4 KiB, so that a power cut can tear them there."""
    cycles = tuple(
        Cycle(operations=1500, ending="power", dies_after="log.write", nth=3 + at)
        for at in range(14)
    )
    busy = _with(
        plan,
        frame_bytes_max=4000,
        log_file_bytes=60_000,
        checkpoint_operations=1000,
        flush_bytes=20_000,
    )
    settings = {**busy.settings, "object_bytes": 50_000, "upload_bytes_max": 50_000}
    return dataclasses.replace(
        busy, workload="appends", tier1="file", rates={}, cycles=cycles, settings=settings
    )


def _bit_rot(plan: Plan) -> Plan:
    cycles = tuple(
        dataclasses.replace(cycle, rot="rot.log" if number % 2 else "rot.object")
        for number, cycle in enumerate(plan.cycles)
    )
    return dataclasses.replace(_with(plan), tier1="file", rates={}, cycles=cycles)


def _catalogs(plan: Plan) -> Plan:
    """Each second process run finds its catalogs damaged."""
    points = itertools.cycle(CATALOG)
    cycles = tuple(
        Cycle(operations=60, ending="kill", catalog=next(points) if number % 2 else "")
        for number, _ in enumerate(plan.cycles)
    )
    return dataclasses.replace(
        _with(plan, inline_checkpoint_bytes_max=0), tier1="file", rates={}, cycles=cycles
    )


def _full_disk(plan: Plan) -> Plan:
    """The disk becomes full in every second process run; of three containers some have nothing to
    give up, and wait.
    """
    cycles = tuple(
        Cycle(operations=60, ending="kill", fills_at=8 + 20 * number if number % 2 else None)
        for number, _ in enumerate(plan.cycles)
    )
    return dataclasses.replace(
        _with(plan, containers=3), tier1="file", tier2="object", rates={}, cycles=cycles
    )


def _closing(plan: Plan) -> Plan:
    cycles = tuple(
        Cycle(operations=20, ending="close", closes_at=number % 5)
        for number, _ in enumerate(plan.cycles)
    )
    return dataclasses.replace(_with(plan), rates={}, cycles=cycles)


DIRECTIONS: Final[Mapping[str, Callable[[Plan], Plan]]] = {
    "folder syncs fail": _folder_syncs_fail,
    "service log": _service_log,
    "bookkeeper": _bookkeeper,
    "bookkeeper owners": _bookkeeper_owners,
    "file log": _file_log,
    "making": _making,
    "names fail": _names_fail,
    "renames fail": _renames_fail,
    "listings": _listings,
    "big writes": _big_writes,
    "rot": _bit_rot,
    "catalogs": _catalogs,
    "closing": _closing,
    "full disk": _full_disk,
}


_BY_PREFIX: Final[Mapping[str, str]] = {
    "tier2": "folder syncs fail",
    "ledger": "service log",
    "bookkeeper": "bookkeeper",
    "node": "bookkeeper",
    "object": "listings",
    "store": "making",
    "folder": "making",
}
"""Where the effects of a kind are frequent; the others: in the file log."""


def directed_plans(base: str, rounds: int) -> Iterator[Plan]:
    """`rounds` plans of each direction, then `rounds` for each kind of effect, in which processes
    die just before and just after it. The seed of one is `base/direction/round`.
    """
    for number in range(rounds):
        for name, change in DIRECTIONS.items():
            yield change(draw_plan(f"{base}/{name}/{number}", "everything"))
    for number in range(rounds):
        for kind in EFFECTS:
            change = DIRECTIONS[_BY_PREFIX.get(kind.partition(".")[0], "file log")]
            plan = change(draw_plan(f"{base}/{kind}/{number}", "everything"))
            yield dataclasses.replace(
                plan, cycles=tuple(_at_effect(kind, number, count) for count in range(8))
            )


def _at_effect(kind: str, number: int, count: int) -> Cycle:
    """One that works first, then one that dies before the effect, then one that dies after it, and
    so on.
    """
    return Cycle(
        operations=60,
        ending="power" if (number + count) % 2 else "kill",
        dies_before=kind if count % 4 in {0, 2} else "",
        dies_after=kind if count % 4 == 1 else "",
    )
