"""Plan: everything one simulated run will do, drawn from its seed. Pure.

A plan is plain data, so that a failure can be made smaller: take something out, run again, see
whether it still fails (`shrink`), and kept as a file. The seed still decides every small choice;
the plan decides the large ones.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from recovery.harness.simulation.fault_points import TABLE
from recovery.harness.simulation.store_world import ARCHIVE, BOOKKEEPER

Ending = Literal["power", "kill", "close", "takeover"]
Tier1 = Literal["file", "ledger", "bookkeeper"]

ENDINGS: Final[Mapping[Ending, int]] = {"power": 9, "kill": 5, "close": 3, "takeover": 3}
"""How often a process run ends so, in twentieths."""

RATES: Final[Mapping[str, tuple[float, ...]]] = {
    "disk.write.eio": (0.0005, 0.004),
    "disk.write.partial": (0.0005, 0.004),
    "disk.write.enospc": (0.0005, 0.004),
    "disk.create.enospc": (0.002, 0.02),
    "disk.sync.eio": (0.0005, 0.004),
    "disk.sync-directory.eio": (0.001, 0.01),
    "disk.rename.eio": (0.002, 0.02),
    "disk.link.eio": (0.002, 0.02),
    "disk.unlink.eio": (0.005, 0.05),
    "disk.read.eio": (0.0005, 0.005),
    "disk.stall": (0.0005, 0.005),
    "object.put.failed": (0.02, 0.2),
    "object.put.lost-reply": (0.02, 0.2),
    "object.put.twice": (0.02, 0.2),
    "object.put.late": (0.02, 0.2),
    "object.delete.failed": (0.02, 0.2),
    "object.delete.lost-reply": (0.02, 0.2),
    "object.delete.late": (0.02, 0.2),
    "object.get.failed": (0.01, 0.1),
    "object.get.truncated": (0.01, 0.1),
    "object.get.wrong-range": (0.01, 0.1),
    "object.head.failed": (0.02, 0.2),
    "object.list.failed": (0.02, 0.2),
    "object.list.lags": (0.1, 0.5),
    "object.slow": (0.005, 0.05),
    "object.burst": (0.002, 0.01),
    "object.throttled": (0.002, 0.02),
    "object.away": (0.0005, 0.002),
    "ledger.append.lost": (0.0005, 0.004),
    "ledger.append.in-doubt": (0.0005, 0.004),
    "ledger.append.repeated": (0.01, 0.1),
    "ledger.append.slow": (0.001, 0.01),
    "ledger.open.unavailable": (0.02, 0.1),
    "ledger.read.unavailable": (0.005, 0.05),
    "bookkeeper.bookie.killed": (0.0005, 0.01),
    "bookkeeper.bookie.stopped": (0.0005, 0.01),
    "bookkeeper.bookie.wiped": (0.0005, 0.005),
    "bookkeeper.connection.broken": (0.0005, 0.005),
    "bookkeeper.connection.slow": (0.001, 0.02),
    "bookkeeper.gateway.killed": (0.0005, 0.005),
    "bookkeeper.call.late": (0.01, 0.1),
    "node.away": (0.002, 0.02),
    "node.change.lost": (0.02, 0.1),
    "node.change.lost-reply": (0.02, 0.2),
    "node.read.failed": (0.01, 0.1),
    "cache.insert.refused": (0.01, 0.2),
    "cache.block.lost": (0.01, 0.2),
    "cache.wiped": (0.005, 0.05),
}
"""For the faults that strike by chance: the rates to choose from when a plan has them on."""

TIER1: Final[Mapping[Tier1, int]] = {"file": 73, "ledger": 13, "bookkeeper": 14}
"""On what the log is, in hundredths."""
LEDGER_BYTES: Final = (4096, 20_000)

LOAD: Final = "appends"
"""The workload that has no faults and few crashes: it shows how much the simulated world can
carry.
"""
COMPACTION: Final = "compaction"
"""The workload that jobs beside the store take part in."""
CLUSTER: Final = "cluster"
"""The workload of clients of several hosts (cluster_plan.py)."""
TAKE_OVERS: Final = "take-overs"
"""The workload of hosts whose containers are a log and nothing else (cluster_plan.py)."""
CLOCK: Final = ("clock.forward", "clock.backward", "clock.frozen")
CATALOG: Final = ("catalog.rot", "catalog.lost", "catalog.stale")
FAR_CLOCK: Final = ("clock.years-forward", "clock.years-backward", "clock.ahead-for-a-while")


@dataclass(frozen=True, slots=True)
class Cycle:
    """One process run of the store."""

    operations: int
    """Calls its clients make, about."""
    ending: Ending
    dies_at: int | None = None
    """Effect before which the process dies (power, kill, close), or is paused (takeover); None: at
    the end of its work.
    """
    stops_behind: int | None = None
    """Takeover: check a disk behind which it is paused, unless it comes to the effect before."""
    dies_before: str = ""
    """An effect of this kind before which the process dies (directed plans), beside `dies_at`."""
    dies_after: str = ""
    """An effect of this kind after which, and before the next one, it dies."""
    nth: int = 0
    """How many effects of that kind pass before."""
    closes_at: int | None = None
    """Ending close: effect of the close itself before which the process dies; None: it closes in
    peace.
    """
    under_load: bool = False
    """Ending close: while the clients are at work."""
    new_settings: bool = False
    """It opens the store with other settings than the plan's, all but the number of containers."""
    rival_dies_at: int | None = None
    """Takeover: effect of the second owner before which it dies."""
    rival_stops_behind: int | None = None
    """Takeover: check a disk behind which the second owner is paused, until the first one has
    worked a while (directed plans).
    """
    returns_at: int | None = None
    """Takeover: effects of the other owner after which the stopped one goes on; None: chance says
    it.
    """
    again: bool = False
    """Recover once more before any client writes, and compare."""
    checked: bool = False
    """The files are checked as they lie, by `recovery.store_check`, before this process run opens
    them.
    """
    cancelled_at: int | None = None
    """Effect at which all tasks of the store's that its loop lists are cancelled, as a program does
    that ends; not of takeovers.
    """
    cancelled_again: int | None = None
    """Effects after that at which it is done once more: the store closes meanwhile."""
    clock: str = ""
    """What the wall clock does in the middle of it: a name of CLOCK, or nothing."""
    far_clock: str = ""
    """What it does beside that, by years: a name of FAR_CLOCK, or nothing."""
    locks_expire: bool = True
    """Takeover: the paused owner's locks are given up for it; else the second owner is refused
    first.
    """
    rot: str = ""
    """A fault point of bit rot, planted before this process run; nothing mostly."""
    catalog: str = ""
    """A fault point of the catalogs on local disk, before this process run; nothing mostly."""
    fills_at: int | None = None
    """Effect before which the disk becomes full: until this process run ends, room is only what the
    store gives up.
    """
    fault: str = ""
    """Of a cluster, where a cycle is a time of so many seconds as `operations` says: what happens
    at its beginning, the name of a fault point.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulated run."""

    seed: str
    workload: str
    tier1: Tier1
    tier2: Literal["object", "file"]
    settings: Mapping[str, Any]
    rates: Mapping[str, float]
    cycles: tuple[Cycle, ...]
    kernel_syncs: bool = False
    """Of a log in files: the kernel syncs small groups, which the event loop writes then."""

    def to_json(self) -> str:
        """One line, for a file or a command line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan a line of `to_json` means.

        Raises ValueError, KeyError, TypeError on anything else.
        """
        fields = json.loads(text)
        fields["cycles"] = tuple(Cycle(**cycle) for cycle in fields["cycles"])
        unknown = sorted(set(fields["rates"]) - set(TABLE))
        if unknown:
            raise ValueError(f"no such fault point: {unknown[0]}")
        return cls(**fields)


def draw_plan(seed: str, workload: str, *, cycles: int | None = None) -> Plan:
    """The plan of a seed: the same for the same arguments, for ever (as far as this file does not
    change).
    """
    rng = random.Random(f"{seed}/plan")
    if workload == LOAD:
        return _with_kernel_syncs(_draw_load(seed, rng, cycles))
    tier1 = rng.choices(list(TIER1), list(TIER1.values()))[0]
    plan = Plan(
        seed=seed,
        workload=workload,
        tier1=tier1,
        tier2="file" if rng.random() < 0.25 else "object",
        settings=draw_settings(rng),
        rates=_draw_rates(rng),
        cycles=_draw_cycles(rng, cycles if cycles is not None else rng.randint(6, 14)),
    )
    plan = dataclasses.replace(plan, cycles=_behind_reads(plan))
    plan = dataclasses.replace(plan, cycles=_cancelled(plan))
    plan = dataclasses.replace(plan, cycles=_with_far_clocks(plan))
    plan = _with_few_active(_with_snapshots(plan))
    plan = on_bookkeeper(plan) if tier1 == "bookkeeper" else plan
    plan = _with_kernel_syncs(_with_archive(plan))
    return _with_mailbox(plan) if workload == COMPACTION else plan


def _behind_reads(plan: Plan) -> tuple[Cycle, ...]:
    """The same process runs, with some owners who are paused behind a check and not before an
    effect.
    """
    rng = random.Random(f"{plan.seed}/looks")
    numbers = [
        rng.randrange(rng.choice([50, 200])) if rng.random() < 0.4 else None for _ in plan.cycles
    ]
    return tuple(
        dataclasses.replace(cycle, stops_behind=number) if cycle.ending == "takeover" else cycle
        for cycle, number in zip(plan.cycles, numbers, strict=True)
    )


def _cancelled(plan: Plan) -> tuple[Cycle, ...]:
    """The same process runs, with some in which the program cancels all tasks of its loop and goes
    on.
    """
    rng = random.Random(f"{plan.seed}/cancelled")
    moments = [
        (rng.randrange(20, 300), rng.choice([None, rng.randrange(30)]))
        if rng.random() < 0.08
        else None
        for _ in plan.cycles
    ]
    return tuple(
        dataclasses.replace(cycle, cancelled_at=moment[0], cancelled_again=moment[1])
        if moment is not None and cycle.ending != "takeover"
        else cycle
        for cycle, moment in zip(plan.cycles, moments, strict=True)
    )


def _with_far_clocks(plan: Plan) -> tuple[Cycle, ...]:
    """The same process runs, in a fifth of the plans with a wall clock that is years off now and
    then.
    """
    rng = random.Random(f"{plan.seed}/far clocks")
    if rng.random() >= 0.2:
        return plan.cycles
    drawn = [rng.choice(FAR_CLOCK) if rng.random() < 0.4 else "" for _ in plan.cycles]
    return tuple(
        dataclasses.replace(cycle, far_clock=name)
        for cycle, name in zip(plan.cycles, drawn, strict=True)
    )


def _with_snapshots(plan: Plan) -> Plan:
    """The same, in a third of the plans with checkpoints that name metadata snapshots. Some process
    runs find the catalogs on local disk damaged.
    """
    rng = random.Random(f"{plan.seed}/snapshots")
    settings = draw_snapshots(rng)
    if not settings:
        return plan
    drawn = [rng.choice(CATALOG) if rng.random() < 0.1 else "" for _ in plan.cycles]
    return dataclasses.replace(
        plan,
        settings={**plan.settings, **settings},
        cycles=tuple(
            dataclasses.replace(cycle, catalog=point)
            for cycle, point in zip(plan.cycles, drawn, strict=True)
        ),
    )


def _with_few_active(plan: Plan) -> Plan:
    """The same, in half of the plans that name snapshots with few segments in memory."""
    if "inline_checkpoint_bytes_max" not in plan.settings:
        return plan
    drawn = draw_active(random.Random(f"{plan.seed}/active"))
    return dataclasses.replace(plan, settings={**plan.settings, **drawn})


def _with_archive(plan: Plan) -> Plan:
    """The same, in a fifth of the plans with an archive of the logs."""
    drawn = draw_archive(random.Random(f"{plan.seed}/archive"))
    return dataclasses.replace(plan, settings={**plan.settings, **drawn})


def _with_kernel_syncs(plan: Plan) -> Plan:
    """The same, in half of the plans with a kernel that syncs for logs in files."""
    rng = random.Random(f"{plan.seed}/kernel syncs")
    return dataclasses.replace(plan, kernel_syncs=rng.random() < 0.5)


def _with_mailbox(plan: Plan) -> Plan:
    """The same with owners who inspect their mailboxes."""
    rng = random.Random(f"{plan.seed}/mailbox")
    return dataclasses.replace(
        plan, settings={**plan.settings, "mailbox_poll_interval_s": rng.choice([0.3, 1.0, 5.0])}
    )


def on_bookkeeper(plan: Plan) -> Plan:
    """The same on ledgers: small ones, so that there are many; sometimes fewer replicas will do."""
    rng = random.Random(f"{plan.seed}/ledgers")
    least, most = LEDGER_BYTES
    url = f"{BOOKKEEPER}?ledger_bytes={rng.choice([least, least, 2 * least, most])}"
    if rng.random() < 0.4:
        url += "&degraded=2/2/2"
    return dataclasses.replace(plan, tier1="bookkeeper", settings={**plan.settings, "tier1": url})


def _draw_load(seed: str, rng: random.Random, cycles: int | None) -> Plan:
    """Few long process runs without faults but crashes, thousands of appends in each: what many
    writers at full rate meet.
    """
    frame, flush = rng.choice([1500, 4000, 16_000]), rng.choice([10_000, 40_000])
    settings = {
        "containers": 1,
        "frame_bytes_max": frame,
        "log_file_bytes": frame + rng.choice([60_000, 200_000]),
        "flush_bytes": flush,
        "flush_age_s": 1000.0,
        "object_bytes": 2 * flush,
        "upload_bytes_max": 8 * flush,
        "unflushed_target_bytes": 1 << 20,
        "extent_bytes": 4096,
        "tail_bytes_max": 1 << 22,
        "append_bytes_max": 8192,
        "checkpoint_operations": rng.choice([500, 5000]),
    }
    process_runs = tuple(
        Cycle(
            operations=rng.choice([2000, 5000, 10_000]),
            ending=rng.choice(["power", "kill"]),
            dies_at=at,
        )
        for at in [rng.choice([None, rng.randrange(100, 800)]) for _ in range(cycles or 3)]
    )
    return Plan(seed, LOAD, "file", "object", settings, {}, process_runs)


def draw_settings(rng: random.Random) -> dict[str, Any]:
    """Store settings so small that what is rare in production happens all the time."""
    frame = rng.choice([64, 200, 200, 500, 1500, 4000])
    flush = rng.choice([60, 150, 400, 2000, 20_000])
    objects = max(flush, rng.choice([200, 1000, 5000]))
    piece = rng.choice([64, 200, 1000, 1000, 8000])
    return {
        "containers": rng.choice([1, 1, 1, 2, 3]),
        "frame_bytes_max": frame,
        "log_file_bytes": 8 * 1024 + frame + rng.choice([0, 0, 4096, 20_000]),
        "in_flight_bytes_max": rng.choice([500, 3000, 1 << 20]),
        "checkpoint_operations": rng.choice([5, 20, 60, 1000]),
        "checkpoint_bytes": rng.choice([1000, 4096, 30_000]),
        "flush_bytes": flush,
        "flush_age_s": rng.choice([0.01, 0.1, 2.0, 1000.0]),
        "object_bytes": objects,
        "upload_bytes_max": objects * rng.choice([1, 2, 4]),
        "uploads_max": rng.choice([1, 2, 4]),
        "unflushed_target_bytes": rng.choice([500, 2000, 1 << 20]),
        "unflushed_bytes_max": rng.choice([20_000, 1 << 22]),
        "extent_bytes": rng.choice([16, 64, 256, 4096]),
        "deletion_lag_s": rng.choice([0.0, 1.0, 60.0, 4000.0]),
        "piece_bytes": piece,
        "fetched_bytes_max": piece * rng.choice([2, 4, 30]),
        "tail_bytes_max": rng.choice([64, 300, 3000, 3000, 1 << 20]),
        "cache_bytes_max": rng.choice([4000, 64 * 1024, 1 << 20, 1 << 20]),
        "append_bytes_max": 8192,
        "queue_bytes_max": rng.choice([8192, 40_000, 1 << 20]),
        "consolidation": rng.random() < 0.75,
        "consolidation_bytes": rng.choice([60, 300, 1000, 5000]),
        "orphan_sweep_interval_s": rng.choice([0.0, 1.0, 60.0]),
        "compression": rng.choice(["none", "none", "zstd"]),
        "scrub_bytes_per_s": rng.choice([0, 0, 0, 1000]),
        "read_ahead_bytes_max": piece * rng.choice([0, 1, 4, 30]),
        # Only jobs write to the mailbox.
        "mailbox_poll_interval_s": 0.0,
    }


def draw_snapshots(rng: random.Random) -> dict[str, Any]:
    """For a third of all stores the setting by which their checkpoints name metadata snapshots:
    all, or those of more metadata.
    """
    if rng.random() >= 0.33:
        return {}
    return {"inline_checkpoint_bytes_max": rng.choice([0, 0, 300, 1500])}


def draw_archive(rng: random.Random) -> dict[str, Any]:
    """For a fifth of all stores an archive; some wait with a part, or keep few of them."""
    if rng.random() >= 0.2:
        return {}
    drawn = {
        "archive": ARCHIVE,
        "offload_after_s": rng.choice([0.0, 0.0, 1.0]),
        "offload_above_bytes": rng.choice([0, 4000, 10_000]),
        "archive_deletion_lag_s": rng.choice([0.0, 0.0, 0.5, 5.0]),
    }
    if rng.random() < 0.2:
        drawn["archive_retention_bytes"] = rng.choice([11_000, 40_000])
    return drawn


def draw_active(rng: random.Random) -> dict[str, Any]:
    """For half of all stores a bound of segments in memory that their workloads exceed; for half of
    these one of what their metadata take, too.
    """
    if rng.random() >= 0.5:
        return {}
    drawn = {"active_segments_max": rng.choice([4, 5, 8])}
    if rng.random() < 0.5:
        drawn["active_metadata_bytes_max"] = rng.choice([1500, 4000, 9000])
    return drawn


def _draw_rates(rng: random.Random) -> dict[str, float]:
    """A third of all plans are without faults but crashes; the others have some on, some of these
    often.
    """
    if rng.random() < 0.33:
        return {}
    share = rng.choice([0.05, 0.2, 0.5])
    return {point: rng.choice(rates) for point, rates in RATES.items() if rng.random() < share}


def _draw_cycles(rng: random.Random, count: int) -> tuple[Cycle, ...]:
    cycles = [_draw_cycle(rng) for _ in range(count)]
    if rng.random() < 0.15:
        # The store is being made.
        cycles[0] = dataclasses.replace(cycles[0], ending="power", dies_at=rng.randrange(14))
    return tuple(cycles)


def _draw_cycle(rng: random.Random) -> Cycle:
    ending = rng.choices(list(ENDINGS), list(ENDINGS.values()))[0]
    opening = rng.random() < 0.25
    dies_at = rng.randrange(45) if opening else rng.randrange(20, 420)
    at_the_end = ending == "close" or rng.random() < 0.08
    return Cycle(
        operations=rng.choice([5, 20, 60, 120]),
        ending=ending,
        dies_at=None if at_the_end and (ending != "close" or rng.random() < 0.6) else dies_at,
        closes_at=rng.randrange(5) if ending == "close" and rng.random() < 0.5 else None,
        under_load=ending == "close" and rng.random() < 0.5,
        new_settings=rng.random() < 0.1,
        rival_dies_at=rng.randrange(80) if ending == "takeover" and rng.random() < 0.3 else None,
        again=rng.random() < 0.15,
        checked=rng.random() < 0.1,
        clock=rng.choice(CLOCK) if rng.random() < 0.08 else "",
        locks_expire=rng.random() < 0.8,
        rot=rng.choice(["rot.log", "rot.object"]) if rng.random() < 0.01 else "",
    )
