"""The workloads by name, and the clients they are made of.

A workload either runs all its clients in every process run, or draws some of them for each.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from recovery.harness.workloads.attribute_clients import compare_and_set, count, keep_registers
from recovery.harness.workloads.bench import ClientFunction
from recovery.harness.workloads.conditional import append_conditionally
from recovery.harness.workloads.exactly_once import write_events
from recovery.harness.workloads.housekeeping import flush_often, idle, take_checkpoints
from recovery.harness.workloads.lifecycle import cut_heads, delete_and_make_again, seal_segments
from recovery.harness.workloads.merged_once import merge_once
from recovery.harness.workloads.mergers import merge_segments
from recovery.harness.workloads.mixed import mix_calls
from recovery.harness.workloads.readers import read_anywhere, read_tail
from recovery.harness.workloads.wire_tables import change_table
from recovery.harness.workloads.wire_writers import write_blocks
from recovery.harness.workloads.writers import write_batches, write_fast, write_plainly


@dataclass(frozen=True, slots=True)
class Client:
    """A kind of client."""

    name: str
    run: ClientFunction
    needs: Mapping[str, int] = field(default_factory=dict)
    """Shared segments it works on: how many of each role."""
    share: int = 2
    """Its part of the calls of a process run, beside the others' parts."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A named set of clients."""

    name: str
    description: str
    clients: Sequence[Client]
    """Each runs once in every process run; those named twice, twice."""
    drawn: int = 0
    """Not 0: every process run draws so many of them, or up to two more."""
    jobs_beside: bool = False
    """In the simulated world, compaction jobs run beside the store (compaction_jobs.py)."""
    served: bool = False
    """Its clients share a wire server (wire_service.py)."""
    connected: bool = False
    """They use the store through `segmentstore.connect` (connected.py): it is served, too."""

    @property
    def needs(self) -> dict[str, int]:
        """Shared segments all its clients together need, by role."""
        return needs_of(self.clients)

    def cast(self, rng: random.Random) -> list[Client]:
        """The clients of one process run."""
        if not self.drawn:
            return list(self.clients)
        return rng.sample(list(self.clients), min(len(self.clients), self.drawn + rng.randrange(3)))


def needs_of(clients: Sequence[Client]) -> dict[str, int]:
    """Shared segments that these clients need, by role: at least one, so that readers have
    something to read.
    """
    needs = {"plain": 1}
    for client in clients:
        for role, number in client.needs.items():
            needs[role] = max(number, needs.get(role, 0))
    return needs


PLAIN: Final = Client("plain", write_plainly, {"plain": 3}, share=5)
FAST: Final = Client("fast", write_fast, {"plain": 4}, share=5)
BATCHES: Final = Client("batches", write_batches, {"plain": 3}, share=3)
CONDITIONAL: Final = Client("conditional", append_conditionally, {"conditional": 1}, share=3)
EVENTS: Final = Client("events", write_events, {"events": 2}, share=4)
COUNTERS: Final = Client("counters", count, {"attributes": 2})
REGISTERS: Final = Client("registers", keep_registers, {"attributes": 1})
COMPARE_AND_SET: Final = Client("compare-and-set", compare_and_set, {"attributes": 1})
SEALER: Final = Client("sealer", seal_segments)
TRUNCATOR: Final = Client("truncator", cut_heads, {"cut": 2})
MERGER: Final = Client("merger", merge_segments, {"merged": 1}, share=3)
DELETER: Final = Client("deleter", delete_and_make_again)
MIXED: Final = Client("mixed", mix_calls, {"mixed": 1})
READER: Final = Client("reader", read_anywhere)
TAIL_READER: Final = Client("tail-reader", read_tail)
FLUSHER: Final = Client("flusher", flush_often, share=1)
CHECKPOINTER: Final = Client("checkpointer", take_checkpoints, share=1)
MERGED_ONCE: Final = Client("merged-once", merge_once, {"staged": 1}, share=3)
BLOCKS: Final = Client("blocks", write_blocks, {"blocks": 2}, share=4)
TABLE: Final = Client("table", change_table, {"table": 2}, share=3)
IDLE: Final = Client("idle", idle, share=1)

CLIENTS: Final[Mapping[str, Client]] = {
    client.name: client
    for client in (
        PLAIN,
        FAST,
        BATCHES,
        CONDITIONAL,
        EVENTS,
        COUNTERS,
        REGISTERS,
        COMPARE_AND_SET,
        SEALER,
        TRUNCATOR,
        MERGER,
        DELETER,
        MIXED,
        READER,
        TAIL_READER,
        FLUSHER,
        CHECKPOINTER,
        IDLE,
        MERGED_ONCE,
        BLOCKS,
        TABLE,
    )
}
"""Every kind of client."""

_ALL: Final = (
    *(
        PLAIN,
        PLAIN,
        BATCHES,
        CONDITIONAL,
        CONDITIONAL,
        EVENTS,
        EVENTS,
        COUNTERS,
        REGISTERS,
        COMPARE_AND_SET,
    ),
    *(SEALER, TRUNCATOR, MERGER, DELETER, READER, TAIL_READER, FLUSHER, CHECKPOINTER, IDLE),
    MIXED,
)

WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload("default", "some clients of all kinds, others in every life", _ALL, drawn=4),
        Workload("appends", "many plain writers, as fast as they can", (FAST,) * 8),
        Workload(
            "exactly-once",
            "writers that send again what they are in doubt about",
            (EVENTS, EVENTS, EVENTS, EVENTS, PLAIN, TAIL_READER, CHECKPOINTER),
        ),
        Workload(
            "conditional",
            "writers that race for the end of a segment",
            (CONDITIONAL, CONDITIONAL, CONDITIONAL, CONDITIONAL, READER),
        ),
        Workload(
            "attributes",
            "counters, registers and compare-and-set, alone and riding on appends",
            (COUNTERS, COUNTERS, REGISTERS, REGISTERS, COMPARE_AND_SET, COMPARE_AND_SET, FLUSHER),
        ),
        Workload(
            "lifecycle",
            "segments made, sealed, truncated, merged, deleted and made again",
            (SEALER, TRUNCATOR, MERGER, MERGER, DELETER, MIXED, PLAIN, READER, CHECKPOINTER),
        ),
        Workload(
            "readers",
            "readers everywhere and at the tail, while others write and truncate",
            (READER, READER, READER, TAIL_READER, TAIL_READER, PLAIN, BATCHES, TRUNCATOR, FLUSHER),
        ),
        Workload(
            "tier2",
            "flushes, truncation, deletion, and time for them to take effect",
            (
                PLAIN,
                BATCHES,
                FLUSHER,
                FLUSHER,
                FLUSHER,
                TRUNCATOR,
                TRUNCATOR,
                DELETER,
                MERGER,
                READER,
                IDLE,
            ),
        ),
        Workload(
            "mixed",
            "two conditions on one append, and calls that are taken back or lose their "
            "segment halfway",
            (MIXED, MIXED, MIXED, CONDITIONAL, PLAIN, FLUSHER, READER, TAIL_READER, CHECKPOINTER),
        ),
        Workload("everything", "all clients at once", _ALL),
        Workload(
            "wire",
            "writers and tables behind a wire server, whose connections are cut",
            (BLOCKS, BLOCKS, BLOCKS, TABLE, TABLE, FLUSHER, CHECKPOINTER),
            served=True,
        ),
        Workload(
            "connect",
            "clients of segmentstore.connect, of all kinds, whose connections are cut",
            (
                *(PLAIN, FAST, BATCHES, CONDITIONAL, CONDITIONAL, EVENTS, EVENTS, EVENTS),
                *(COUNTERS, SEALER, TRUNCATOR, MERGER, MERGED_ONCE, MERGED_ONCE, DELETER, MIXED),
                *(READER, TAIL_READER, TAIL_READER, FLUSHER, CHECKPOINTER),
            ),
            drawn=7,
            served=True,
            connected=True,
        ),
    )
}
"""All workloads that the long run and the suite's simulated runs share their time among."""

FAULTS: Final = Workload(
    "faults",
    "appends of every kind, readers, flushes and checkpoints: the log rolls and is "
    "truncated all the time",
    (
        *(FAST, PLAIN, BATCHES, CONDITIONAL, EVENTS, EVENTS, COUNTERS),
        *(TRUNCATOR, READER, TAIL_READER, FLUSHER, CHECKPOINTER),
    ),
)
"""What stores on a real cluster work at while that is broken (services/bookkeeper_faults.py); by
its name in a plan, the same on the model of one.
"""

COMPACTION: Final = Workload(
    "compaction",
    "jobs rewrite what lies in Tier 2, while the owner appends, truncates, merges, "
    "deletes and consolidates",
    (
        *(
            PLAIN,
            BATCHES,
            EVENTS,
            FLUSHER,
            FLUSHER,
            TRUNCATOR,
            MERGER,
            DELETER,
            SEALER,
            READER,
            IDLE,
        ),
        CHECKPOINTER,
    ),
    jobs_beside=True,
)
"""Its worlds need more than the store: the packages that the jobs are made with."""

CLUSTER: Final = Workload(
    "cluster",
    "hosts of a cluster die, hang, leave and are cut off, under writers and readers",
    (),
)
"""Its clients are those of a cluster (cluster_clients.py), and work from the beginning of a run to
its end. Simulated worlds alone have it.
"""

TAKE_OVERS: Final = Workload(
    "take-overs",
    "the same to hosts with very many containers, which are a log and nothing else",
    (),
)
"""It tries assignment and election alone. Simulated worlds alone have it."""

SIMULATED_ALONE: Final = frozenset((CLUSTER.name, TAKE_OVERS.name))

BY_NAME: Final[Mapping[str, Workload]] = {
    **WORKLOADS,
    FAULTS.name: FAULTS,
    COMPACTION.name: COMPACTION,
    CLUSTER.name: CLUSTER,
    TAKE_OVERS.name: TAKE_OVERS,
}
"""What a plan, or an order to a child, may name."""
