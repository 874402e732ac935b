"""What `store.stats()` gives, as a type checker sees it: plain dictionaries, their keys and their
types.

A test keeps the dictionaries of the parts equal to the records they are made of, which have the
meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NotRequired, TypedDict


class OperationStats(TypedDict):
    """`tier2.request_meter.OperationStatistics` has the meaning of each."""

    requests: int
    in_flight: int
    retries: int
    hedges: int
    hedges_won: int
    bytes_sent: int
    bytes_received: int
    errors: Mapping[str, int]
    seconds: float
    latency_counts: tuple[int, ...]


class CacheStats(TypedDict):
    """`readindex.cache_storage.CacheStatistics` has the meaning of each."""

    bytes_stored: int
    bytes_max: int
    blocks: int
    inserts: int
    hits: int
    misses: int
    healthy: bool


class CatalogStats(TypedDict):
    """`segmentstore.catalog_export.ExportStatistics` has the meaning of each."""

    exports: int
    failures: int
    last_export_ms: int | None


class LossStats(TypedDict):
    """`recovery.loss_keeper.LossStatistics` has the meaning of each."""

    objects: int
    places: int
    seen: int


class ScrubStats(TypedDict):
    """`recovery.background_scrub.ScrubStatistics` has the meaning of each."""

    bytes_per_s: float
    started_at_ms: int
    container: int | None
    object: str | None
    objects: int
    blocks: int
    bytes_read: int
    passed_over: int
    objects_left: int
    bytes_left: int
    harmful: int
    notes: int
    unavailable: int
    previous_finished_at_ms: int | None
    previous_harmful: int


class LogStats(TypedDict):
    """`durablelog.durable_data_log.DataLogStatistics` has the meaning of each."""

    epoch: int
    frames_in_flight: int
    bytes_in_flight: int
    frames_appended: int
    bytes_appended: int
    syncs: int
    log_bytes: int
    files: int
    bookies_behind: int
    bookie_owed_bytes_max: int
    gateway_bytes: int
    held_bytes: int
    retained_bytes: int


class ReadIndexStats(TypedDict):
    """`readindex.statistics.ReadIndexStatistics` has the meaning of each."""

    segments: int
    tail_bytes: int
    tail_bytes_unflushed: int
    cached_bytes: int
    cached_bytes_unflushed: int
    logged_bytes: int
    fetched_bytes: int
    readers_waiting: int
    fetches_in_flight: int
    fetches: int
    fetches_random: int
    prefetches: int
    fetch_bytes: int
    prefetch_bytes: int
    read_ahead_hits: int
    read_ahead_wasted_bytes: int
    sequential_readers: int
    delivery_pauses: int
    refills: int
    cache_misses: int
    spilled_bytes: int
    dropped_unflushed_bytes: int
    pressure: float


class StorageWriterStats(TypedDict):
    """`storagewriter.config.StorageWriterStatistics` has the meaning of each."""

    segments_pending: int
    unflushed_bytes: int
    unflushed_age_s: float
    uploads_in_flight: int
    upload_bytes_in_flight: int
    objects_written: int
    blocks_written: int
    bytes_written: int
    links: int
    upload_failures: int
    name_collisions: int
    consolidations: int
    consolidated_objects: int
    bytes_copied: int
    bytes_rewritten: int
    replacements_refused: int
    consolidation_failures: int
    garbage_waiting: int
    garbage_deleted: int
    garbage_failures: int
    sweeps: int
    sweep_failures: int
    orphans_found: int
    orphan_bytes: int
    uploads_aborted: int
    messages_waiting: int
    messages_answered: int
    proposals_committed: int
    proposals_refused: int
    mailbox_failures: int
    wall_clock_jumps: int


class ActiveSegmentsStats(TypedDict):
    """`segmentstore.container.active_segments.ActiveSegmentsStatistics` has the meaning of each."""

    count: int
    activations: int
    evictions: int
    waiting: int
    partial: int
    bytes: int
    pages_read: int
    attributes_read: int


class SnapshotStats(TypedDict):
    """`segmentstore.container.metadata_checkpoints.SnapshotStatistics` has the meaning of each."""

    by_reference: bool
    in_progress: bool
    downloaded: bool
    completed: int
    bytes_put: int
    objects_deleted: int


class RecoveryStats(TypedDict):
    """`recovery.recovery_processor.RecoveryReport` has the meaning of each."""

    operations: int
    frames: int
    bytes: int
    seconds: float
    operations_since_checkpoint: int
    bytes_since_checkpoint: int
    checkpoint_bytes: int


class ProcessorStats(TypedDict):
    """`durablelog.processor_config.ProcessorStatistics` has the meaning of each."""

    queue_requests: int
    queue_bytes: int
    frames_in_flight: int
    bytes_in_flight: int
    requests_committed: int
    operations_committed: int
    frames_committed: int
    checkpoints: int
    throttled_by: str
    throttled_s: float


class ArchiveStats(TypedDict):
    """`segmentstore.container.log_archiver.ArchiveStatistics` has the meaning of each."""

    parts: int
    bytes: int
    unarchived_bytes: int
    offloaded: int
    offloaded_bytes: int
    failures: int
    list_gets: int
    kept_lists: int


class Tier2Stats(TypedDict):
    """Requests to Tier 2 since the store was opened."""

    url: str
    requests: int
    bytes_sent: int
    bytes_received: int
    errors: int
    operations: dict[str, OperationStats]
    """By kind of request."""


class ContainerStats(TypedDict):
    """One container served here."""

    state: str
    segments: int
    sequence_number: int
    objects: int
    object_bytes: int
    garbage_objects: int
    sweep_stopped_by: str | None
    """Why no orphans are searched for; None if they are."""
    log: LogStats
    read_index: ReadIndexStats
    storage_writer: StorageWriterStats
    active_segments: ActiveSegmentsStats
    snapshots: SnapshotStats
    archive: NotRequired[ArchiveStats]
    """Absent without archiving."""
    recovery: NotRequired[RecoveryStats]
    """What its start replayed; absent before it has started."""
    processor: NotRequired[ProcessorStats]
    """Absent before it has started."""


class ContainerStateStats(TypedDict):
    """`segmentstore.container.container_status.ContainerStatus` has the meaning of each."""

    state: str
    since_ms: int
    cause: str | None


class ClusterStats(TypedDict):
    """This process as a host of its store's cluster (`serve="cluster"`)."""

    host_id: str
    leads: bool
    """It writes the assignment map."""
    hosts: int
    """That are registered."""
    map_epoch: int
    """How often the map was written."""
    unassigned: int
    """Containers of the store that no host is to serve: what to alert on."""
    assigned: int
    """Containers that the map gives to this host."""
    moves_under_way: int
    """Planned moves, of the whole cluster."""
    starts: int
    """Containers that have begun to serve here."""
    start_failures: int
    stops: int
    moved_in: int
    """Of the starts, those behind a planned move."""
    taken_over: int
    """Of the starts, those of containers that no host had in hand."""
    arrival_s: Mapping[int, float]
    """By container that serves here, from the map that gave it to this host until it served."""
    start_s: Mapping[int, float]
    """Of that, what opening, fencing and replay took."""
    stop_s: Mapping[int, float]
    """By container that left: what its stop took, until another host could open it."""


BY_CONTAINER: Final = ("arrival_s", "start_s", "stop_s")
"""The keys of ClusterStats that have a number for each container."""


class WireStats(TypedDict):
    """The wire server (`wire_port`)."""

    connections: int
    """Open."""
    connections_accepted: int
    connections_refused: int
    """There were too many."""
    appends: int
    append_bytes: int
    outstanding_bytes: int
    """Of appends, and of changes and keys of tables, that have no reply yet."""
    reads_waiting: int
    """Reads that have no reply yet: most wait at a tail."""
    refusals: Mapping[str, int]
    """Requests and connections that were refused, by reason."""


class TableStats(TypedDict):
    """Tables of Pravega's clients and of the Controller (`wire_port`, `controller_port`)."""

    open: int
    """In memory."""
    index_bytes: int
    """What their indexes take in memory, about."""


class ControllerStats(TypedDict):
    """The Controller (`controller_port`)."""

    calls: int
    calls_in_flight: int
    transactions_open: int
    """Of all streams; those that are being committed or aborted are among them."""
    refusals: Mapping[str, int]
    """Calls that were refused or failed, by method and reason."""


class StoreStats(TypedDict):
    """All numbers of an open store; docs/metrics.md has the meanings."""

    store_id: str
    health: list[str]
    """A sentence for each thing that is wrong; empty while nothing is."""
    cache: CacheStats
    tier2: Tier2Stats
    catalog: CatalogStats | None
    losses: LossStats
    scrub: ScrubStats | None
    """None if the store does not scrub (`scrub_bytes_per_s`)."""
    cluster: ClusterStats | None
    """None unless it is a host of a cluster."""
    wire: WireStats | None
    """None without a wire server."""
    controller: ControllerStats | None
    """None without a Controller."""
    tables: TableStats | None
    """None without either of the two."""
    longest_turn_s: Mapping[str, float]
    """By part, how long it has held the event loop without a break, at most."""
    container_states: dict[int, ContainerStateStats]
    """By id; those that were to be served here since the opening."""
    containers: dict[int, ContainerStats]
    """By id; those served here, and those that have failed since."""
