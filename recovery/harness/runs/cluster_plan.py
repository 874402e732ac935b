"""What a simulated run of a cluster will do, drawn from its seed. Pure.

A cycle is a time in which one thing happens to the hosts, at its beginning; what it leads to may
last longer. Hosts and containers are settings beside those of the store.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.runs.plan import CLUSTER, RATES, TAKE_OVERS, Cycle, Plan, draw_settings
from recovery.harness.simulation.store_world import BOOKKEEPER

HOSTS: Final = "hosts"
"""The setting that says how many there are; none of the store's."""
PAUSE_S: Final = "client_pause_s"
"""The setting that says how long a client waits from one call to the next, at most."""
PAUSES_S: Final = (1.0, 4.0, 10.0)
"""Mostly long ones: what is tried are the hosts, not the log."""

FAULTS: Final[Mapping[str, int]] = {
    "host.killed": 6,
    "host.killed.all": 1,
    "host.paused.short": 2,
    "host.paused.long": 4,
    "host.closed": 4,
    "host.restarts": 1,
    "host.session-lost": 3,
    "host.cut-off": 3,
    "host.zookeeper-away": 2,
    "host.leader-dies": 4,
    "host.dies-at-effect": 4,
    "host.clock": 2,
    "host.edits": 4,
    "host.replaced": 2,
}
"""What may happen in a cycle, and how often."""
_MORE_DEATHS: Final = {"host.killed": 20, "host.killed.all": 20, "host.paused.long": 10}
"""Where take-overs are tried: a death is many of them, and moves cost more than they."""
ORDERLY: Final = frozenset(("host.closed", "host.restarts", "host.edits"))
"""Those in which nothing dies that has not released what it had."""
_RATES: Final = ("bookkeeper.", "node.", "object.")
_NOT_HERE: Final = ("bookkeeper.bookie.wiped", "object.away")
"""What has two tiers away for longer than a bound of this run allows, or for good."""
WATCH_RATES: Final = (0.02, 0.2)
LEDGER_BYTES: Final = (4096, 20_000)


def draw_cluster_plan(seed: str, *, cycles: int | None = None) -> Plan:
    """The plan of a seed; one in eight is orderly."""
    rng = random.Random(f"{seed}/cluster plan")
    is_calm = rng.random() < 1 / 8
    faults = {point: often for point, often in FAULTS.items() if not is_calm or point in ORDERLY}
    settings: dict[str, Any] = {
        **draw_settings(rng),
        "containers": rng.randint(2, 8),
        "cache_bytes_max": 1 << 20,
        "orphan_sweep_interval_s": 60.0,
        "deletion_lag_s": rng.choice((60.0, 4000.0)),
        "scrub_bytes_per_s": 0,
        "tier1": f"{BOOKKEEPER}?ledger_bytes={rng.choice(LEDGER_BYTES)}",
        HOSTS: rng.randint(2, 5),
        PAUSE_S: rng.choice(PAUSES_S),
    }
    return Plan(
        seed=seed,
        workload=CLUSTER,
        tier1="bookkeeper",
        tier2="object",
        settings=settings,
        rates={} if is_calm else _draw_rates(rng),
        cycles=tuple(_draw_cycle(rng, faults) for _ in range(cycles or rng.randint(5, 12))),
    )


def draw_take_over_plan(seed: str) -> Plan:
    """The plan of a seed: many containers, which are a log and nothing else; one in eight is
    orderly.
    """
    rng = random.Random(f"{seed}/take-over plan")
    is_calm = rng.random() < 1 / 8
    faults = dict.fromkeys(ORDERLY, 1) if is_calm else {**FAULTS, **_MORE_DEATHS}
    rates = {} if is_calm else _draw_rates(rng)
    return Plan(
        seed=seed,
        workload=TAKE_OVERS,
        tier1="bookkeeper",
        tier2="object",
        settings={
            "containers": rng.choice((64, 128, 256, 512)),
            HOSTS: rng.choice((3, 3, 4, 5, 8)),
            PAUSE_S: rng.choice(PAUSES_S),
        },
        rates={point: rate for point, rate in rates.items() if point.startswith("node.")},
        cycles=tuple(
            Cycle(
                operations=rng.choice((0, 5, 15, 30, 60, 120)),
                ending="kill",
                fault=rng.choices(list(faults), list(faults.values()))[0],
            )
            for _ in range(rng.randint(15, 40))
        ),
    )


def is_orderly(plan: Plan) -> bool:
    """Whether nothing dies, hangs or is cut off in it; what is watched may be reported late."""
    return plan.rates.keys() <= {"node.watch.late"} and all(
        cycle.fault in ORDERLY for cycle in plan.cycles
    )


def _draw_rates(rng: random.Random) -> dict[str, float]:
    """Half of all plans have none but what happens to hosts."""
    if rng.random() < 0.5:
        return {}
    share = rng.choice((0.1, 0.4))
    # The lower of two rates: a run is about hosts.
    rates = {
        point: least
        for point, (least, *_) in RATES.items()
        if point.startswith(_RATES) and point not in _NOT_HERE and rng.random() < share
    }
    if rates and rng.random() < 0.5:
        rates["node.watch.late"] = rng.choice(WATCH_RATES)
    return rates


def _draw_cycle(rng: random.Random, faults: Mapping[str, int]) -> Cycle:
    fault = rng.choices(list(faults), list(faults.values()))[0]
    # Some follow at once: two hosts that die together, a leader in the middle of a move.
    return Cycle(operations=rng.choice((0, 1, 5, 15, 30, 30)), ending="kill", fault=fault)
