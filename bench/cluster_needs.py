"""What a cluster of a size needs of ZooKeeper, BookKeeper, S3, CPU and memory: formulas. Pure.

docs/scale.md has the meaning of each, where its figures are from, and which of them are guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from durablelog.bookkeeper.bookkeeper_location import LEDGER_BYTES_DEFAULT
from durablelog.bookkeeper.ownership_lease import LEASE_S
from durablelog.processor_config import ProcessorConfig
from segmentstore.cluster.host_reports import LOAD_S
from storagewriter.config import StorageWriterConfig

COPIES: Final = 3
"""The write quorum of a ledger, by default."""
LEDGERS_OF_A_LOG: Final = 2
"""The one that is written, and the one before it or the next."""
FRAME_OVERHEAD_BYTES: Final = 45
"""Of a frame with one append: counted in a log in memory (145 for 100 bytes)."""
ROUND_TRIP_S: Final = 0.002
"""A guess of what a write to three bookies takes; two frames of a log are in flight at most."""
APPEND_CPU_S: Final = 17.5e-6
"""Of an append that shares its frame with others: measured (docs/benchmarks.md)."""
FRAME_CPU_S: Final = 45e-6
"""Of an append alone in its frame, log in memory: measured by `cluster_scale`."""
SEGMENT_BYTES: Final = 1_500
"""Of an active segment with attributes and chunks: measured (docs/decisions/0059)."""
SEGMENT_DISK_BYTES: Final = 64
"""Of a segment in the local catalog: measured (64 MB for a million, docs/benchmarks.md)."""
GATEWAY_BYTES: Final = 1 << 30
"""Of the gateway with full windows: measured (docs/bookkeeper.md)."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The size of a cluster and what it carries, evenly spread."""

    hosts: int
    containers: int
    segments: int
    appends_per_s: float
    append_bytes: int


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """What it needs; of the whole cluster unless it says otherwise."""

    zookeeper_nodes: int
    zookeeper_sessions: int
    zookeeper_watches: int
    zookeeper_reads_per_s: float
    zookeeper_writes_per_s: float
    ledgers: int
    entries_per_s: float
    """Of the hosts; each is written by COPIES bookies."""
    bookie_bytes_per_s: float
    """All copies, before the bookies' own journals."""
    puts_per_s: float
    lists_per_s: float
    object_bytes: float
    """Of an object that a flush writes."""
    cores_of_a_host: float
    """Of the process's loop alone, which has one core. The gateway and the wire are not in it."""
    segment_bytes_of_a_host: float
    """Memory of active segments."""
    unflushed_bytes_of_a_host: float
    catalog_bytes_of_a_host: float
    """On local disk."""
    takeover_s: float
    """Replay of one container's log at worst; the session's timeout comes before it."""


def needs(load: ClusterLoad, replayed_per_s: float = 51_000.0) -> ClusterNeeds:
    """At default settings. `replayed_per_s` is what a recovery replays: measured."""
    writer, processor = StorageWriterConfig(), ProcessorConfig()
    appends = load.appends_per_s / load.containers
    bytes_per_s = appends * load.append_bytes
    # Frames hold what came while two were in flight.
    frames = min(appends, 2 / ROUND_TRIP_S)
    logged = bytes_per_s + frames * FRAME_OVERHEAD_BYTES
    checkpoints = max(
        appends / processor.checkpoint_operations, logged / processor.checkpoint_bytes
    )
    ledgers_per_s = logged / LEDGER_BYTES_DEFAULT
    object_bytes = min(writer.object_bytes, bytes_per_s * writer.flush_age_s)
    active = min(load.segments / load.containers, processor.active_segments_max)
    containers_of_a_host = load.containers / load.hosts
    in_frames_alone = frames / appends
    cpu = in_frames_alone * FRAME_CPU_S + (1 - in_frames_alone) * APPEND_CPU_S
    return ClusterNeeds(
        zookeeper_nodes=2 * load.containers
        + 2 * load.hosts
        + LEDGERS_OF_A_LOG * load.containers
        + 8,
        zookeeper_sessions=2 * load.hosts,
        # The map and the list of hosts, the candidate before; of the leader each record.
        zookeeper_watches=3 * load.hosts + load.hosts,
        zookeeper_reads_per_s=load.containers / (LEASE_S / 2),
        # A truncation behind each checkpoint; a ledger is made, listed, closed and deleted.
        zookeeper_writes_per_s=load.containers * (checkpoints + 4 * ledgers_per_s)
        + load.hosts / LOAD_S,
        ledgers=LEDGERS_OF_A_LOG * load.containers,
        entries_per_s=load.containers * frames,
        bookie_bytes_per_s=COPIES * load.containers * logged,
        # A copy of the metadata goes with a checkpoint, once a minute at most.
        puts_per_s=load.containers * (bytes_per_s / object_bytes + min(checkpoints, 1 / 60)),
        lists_per_s=load.containers / writer.mailbox_poll_interval_s
        + 1 / writer.orphan_sweep_interval_s,
        object_bytes=object_bytes,
        cores_of_a_host=load.appends_per_s / load.hosts * cpu,
        segment_bytes_of_a_host=containers_of_a_host * active * SEGMENT_BYTES,
        unflushed_bytes_of_a_host=containers_of_a_host * bytes_per_s * writer.flush_age_s,
        catalog_bytes_of_a_host=load.segments / load.hosts * SEGMENT_DISK_BYTES,
        takeover_s=appends * (1 / checkpoints + writer.flush_age_s) / replayed_per_s,
    )
