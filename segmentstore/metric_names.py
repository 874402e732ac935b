"""What the numbers of `store.stats()` are called as metrics, and what each means: one table, for
programs and people.

Rules: base units (bytes, seconds), names `segmentstore_<what>`; a counter only grows while the
store is open and gets the ending `_total`; what is a gauge can fall. Numbers of containers have the
label `container`. A number that is not in the table is served all the same, as a gauge by its own
name. docs/metrics.md has every row (tests/store/test_metrics.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge"]

PREFIX = "segmentstore_"


class MetricName(NamedTuple):
    """One number of a snapshot, as a metric."""

    path: str
    """Where `stats()` has it: keys joined by dots."""
    name: str
    """Without PREFIX, and without the `_total` that a counter gets."""
    kind: Kind
    help: str
    largest: bool = False
    """Of many containers together the largest counts; otherwise the sum."""


def _table(kind: Kind, text: str, *, largest: bool = False) -> list[MetricName]:
    rows = []
    for line in text.strip().splitlines():
        path, name, meaning = (" ".join(part.split()) for part in line.split("|"))
        rows.append(MetricName(path, name, kind, meaning, largest))
    return rows


def by_path(rows: list[MetricName]) -> Mapping[str, MetricName]:
    """The rows, to be found by path."""
    return {row.path: row for row in rows}


STORE_METRICS = [
    *_table(
        "gauge",
        """
        cache.bytes_stored | cache_stored_bytes | In the RocksDB cache.
        cache.bytes_max | cache_max_bytes | What the cache may hold.
        cache.blocks | cache_blocks | Blocks in the cache.
        cache.healthy | cache_healthy | \
            1 while the cache works; 0: the store works without it, slower.
        losses.objects | lost_objects | \
            Objects in Tier 2 that reads found missing or damaged, and that are still wanted.
        losses.places | lost_places | Stretches of segments in them that were asked for.
        scrub.bytes_per_s | scrub_bytes_per_second_max | \
            The rate that the background scrub keeps to.
        scrub.objects | scrub_pass_objects | Objects checked in the current pass.
        scrub.blocks | scrub_pass_blocks | Blocks checked in the current pass.
        scrub.bytes_read | scrub_pass_read_bytes | Bytes checked in the current pass.
        scrub.passed_over | scrub_pass_passed_over | \
            Objects of the current pass that were deleted before they were checked.
        scrub.objects_left | scrub_container_objects_left | Objects left in the container under way.
        scrub.bytes_left | scrub_container_left_bytes | Bytes left in the container under way.
        scrub.harmful | scrub_pass_harmful | Corruption found in the current pass.
        scrub.notes | scrub_pass_notes | \
            Findings of the current pass that are not harmful; objects that Tier 2 refuses are \
            among them.
        scrub.previous_harmful | scrub_previous_pass_harmful | \
            Corruption found in the last whole pass.
        wire.connections | wire_connections | Open connections of the wire protocol.
        wire.outstanding_bytes | wire_outstanding_bytes | \
            Of appends and keyed requests over the wire that have no reply yet.
        wire.reads_waiting | wire_reads_waiting | \
            Reads over the wire that have no reply yet: most wait at a tail.
        controller.calls_in_flight | controller_calls_in_flight | \
            Calls to the Controller that are being carried out.
        controller.transactions_open | controller_open_transactions | \
            Transactions that have not ended.
        tables.open | open_tables | Tables that are in memory.
        tables.index_bytes | table_index_bytes | What their indexes take in memory, about.
        cluster.leads | cluster_leads | 1 on the host that writes the assignment map.
        cluster.hosts | cluster_hosts | Hosts that are registered.
        cluster.map_epoch | cluster_map_epoch | How often the assignment map was written.
        cluster.unassigned | cluster_unassigned_containers | \
            Containers of the store that no host is to serve: alert on it.
        cluster.assigned | cluster_assigned_containers | \
            Containers that the map gives to this host.
        cluster.moves_under_way | cluster_moves_under_way | \
            Planned moves under way in the whole cluster.
        """,
    ),
    *_table(
        "counter",
        """
        cache.inserts | cache_inserts | Blocks put into the cache.
        cache.hits | cache_hits | Blocks the cache gave back.
        cache.misses | cache_misses | Blocks asked for that the cache had dropped.
        losses.seen | losses_seen | \
            Fetches from Tier 2 that failed because bytes were missing or damaged.
        scrub.unavailable | scrub_unavailable | Times that Tier 2 did not answer the scrub.
        catalog.exports | catalog_exports | \
            Snapshots of a container's catalog that were put into Tier 2.
        catalog.failures | catalog_export_failures | Exports of a container's catalog that failed.
        wire.connections_accepted | wire_connections_accepted | Connections that were accepted.
        wire.connections_refused | wire_connections_refused | \
            Connections that were closed because there were too many.
        wire.appends | wire_appends | Appends over the wire.
        wire.append_bytes | wire_append_bytes | Bytes of these.
        controller.calls | controller_calls | Calls to the Controller.
        cluster.starts | cluster_container_starts | Containers that have begun to serve here.
        cluster.start_failures | cluster_container_start_failures | \
            Starts of containers that failed here.
        cluster.stops | cluster_container_stops | Containers that were released here.
        cluster.moved_in | cluster_containers_moved_in | Of the starts, those of planned moves.
        cluster.taken_over | cluster_containers_taken_over | \
            Of the starts, those of containers that no host had in hand.
        """,
    ),
]

CONTAINER_METRICS = [
    *_table(
        "gauge",
        """
        segments | segments | Segments by name, active and idle.
        objects | tier2_objects | Objects with live bytes.
        object_bytes | tier2_object_bytes | Size of these objects.
        garbage_objects | garbage_objects | Objects nothing refers to that are not deleted yet.
        log.frames_in_flight | log_frames_in_flight | Frames being written.
        log.bytes_in_flight | log_in_flight_bytes | Bytes of frames being written.
        log.log_bytes | log_bytes | \
            Tier-1 log from its truncation point to its tail: what a recovery reads.
        log.files | log_files | Files (or ledgers) of the log.
        log.held_bytes | log_held_bytes | \
            Truncated files (or ledgers) of the log that are kept, for they are being read.
        log.retained_bytes | log_retained_bytes | \
            Truncated files (or ledgers) of the log that are retained while they are in the archive.
        read_index.segments | read_index_segments | Segments with an index in memory.
        read_index.tail_bytes | read_index_tail_bytes | Recent appends in memory.
        read_index.tail_bytes_unflushed | read_index_tail_unflushed_bytes | \
            Of these, not yet in Tier 2.
        read_index.cached_bytes | read_index_cached_bytes | Appends in the cache.
        read_index.cached_bytes_unflushed | read_index_cached_unflushed_bytes | \
            Of these, not yet in Tier 2.
        read_index.logged_bytes | read_index_logged_bytes | \
            Larger appends that are read from the log until Tier 2 has them.
        read_index.fetched_bytes | read_index_fetched_bytes | Pieces fetched from Tier 2, in memory.
        read_index.readers_waiting | read_index_readers_waiting | \
            Reads that wait at a tail for more.
        read_index.fetches_in_flight | read_index_fetches_in_flight | Fetches from Tier 2 under way.
        read_index.sequential_readers | read_index_sequential_readers | \
            Places being read in sequence now.
        storage_writer.segments_pending | flush_pending_segments | \
            Segments with bytes that are not in Tier 2.
        storage_writer.unflushed_bytes | unflushed_bytes | \
            Bytes that are not in Tier 2: they hold the log.
        storage_writer.unflushed_age_s | unflushed_age_seconds | \
            Age of the oldest of them, since they were committed, or replayed by this owner.
        storage_writer.uploads_in_flight | uploads_in_flight | Objects being uploaded.
        storage_writer.upload_bytes_in_flight | uploads_in_flight_bytes | Bytes being uploaded.
        storage_writer.garbage_waiting | garbage_waiting | Objects that wait for their deletion.
        storage_writer.messages_waiting | mailbox_messages_waiting | \
            Messages of jobs that had no answer at the last check.
        active_segments.count | active_segments | Segments whose metadata are in memory.
        active_segments.waiting | active_segments_waiting | \
            Calls that wait for a segment to come into memory.
        active_segments.partial | active_segments_partial | \
            Segments in memory without some of their chunks or attributes.
        active_segments.bytes | active_metadata_bytes | \
            What metadata took in memory after the last checkpoint by reference, about.
        snapshots.by_reference | snapshots_by_reference | \
            Containers whose checkpoints name metadata snapshots.
        snapshots.in_progress | snapshots_in_progress | \
            Metadata snapshots being made: the log is truncated behind them.
        snapshots.downloaded | snapshots_downloaded | \
            Containers whose metadata came from Tier 2 when the store was opened.
        archive.parts | archive_parts | Parts of the log in the archive.
        archive.bytes | archive_bytes | Bytes of their entries.
        archive.unarchived_bytes | archive_waiting_bytes | \
            Bytes of sealed parts of the log that the archive has not.
        archive.kept_lists | archive_kept_lists | Lists of archived parts in memory.
        recovery.operations | recovery_operations | Operations replayed when the store was opened.
        recovery.frames | recovery_frames | Frames read when the store was opened.
        recovery.bytes | recovery_bytes | Bytes replayed when the store was opened.
        recovery.operations_since_checkpoint | recovery_operations_since_checkpoint | \
            Of the operations replayed, those behind the last checkpoint.
        recovery.bytes_since_checkpoint | recovery_since_checkpoint_bytes | \
            Of the bytes replayed, those behind the last checkpoint.
        recovery.checkpoint_bytes | recovery_checkpoint_bytes | Size of the last checkpoint met.
        processor.queue_requests | queue_requests | Calls that wait to be written to the log.
        processor.queue_bytes | queue_bytes | Bytes that wait to be written to the log.
        processor.frames_in_flight | processor_frames_in_flight | \
            Frames whose acknowledgement is awaited.
        processor.bytes_in_flight | processor_in_flight_bytes | Bytes of these frames.
        """,
    ),
    *_table(
        "gauge",
        """
        sequence_number | sequence_number | Of the last committed operation.
        log.bookies_behind | log_bookies_behind | \
            Servers of BookKeeper that do not keep up with the log.
        log.bookie_owed_bytes_max | log_bookie_owed_bytes | \
            The most that one of them was sent and has not answered.
        log.gateway_bytes | log_gateway_bytes | \
            Memory of the gateway to BookKeeper for entries; one for all containers.
        log.epoch | log_epoch | \
            Rises with every opening of the log: a jump without a restart is another owner.
        read_index.pressure | read_index_pressure | \
            How full memory and cache are of un-flushed bytes, 0 to 1; above 0.75 writers are \
            slowed.
        recovery.seconds | recovery_seconds | What the recovery took.
        """,
        largest=True,
    ),
    *_table(
        "counter",
        """
        log.frames_appended | log_frames_appended | Frames written.
        log.bytes_appended | log_appended_bytes | Bytes written to the log.
        log.syncs | log_syncs | Syncs of log files.
        read_index.fetches | read_index_fetches | Fetches from Tier 2.
        read_index.fetches_random | read_index_fetches_random | \
            Of these, for reads that continued no other.
        read_index.prefetches | read_index_prefetches | \
            Of these, begun ahead of a sequential reader.
        read_index.fetch_bytes | read_index_fetch_bytes | Brought by fetches.
        read_index.prefetch_bytes | read_index_prefetch_bytes | Of these, fetched ahead.
        read_index.read_ahead_hits | read_index_read_ahead_hits | \
            Extents fetched ahead that were read.
        read_index.read_ahead_wasted_bytes | read_index_read_ahead_wasted_bytes | \
            Fetched ahead and dropped unread.
        read_index.delivery_pauses | read_index_delivery_pauses | \
            Reads of fetched bytes that gave way to others.
        read_index.refills | read_index_refills | \
            Rescans of the log for bytes that memory and cache had lost.
        read_index.cache_misses | read_index_cache_misses | \
            Blocks that were missing from the cache, or from their place in the log, when asked for.
        read_index.spilled_bytes | read_index_spilled_bytes | Moved from memory to the cache.
        read_index.dropped_unflushed_bytes | read_index_dropped_unflushed_bytes | \
            Un-flushed bytes that memory and cache had no room for.
        storage_writer.objects_written | flush_objects | Objects uploaded and committed.
        storage_writer.blocks_written | flush_blocks | Blocks in them.
        storage_writer.bytes_written | flush_bytes | Payload in them.
        storage_writer.links | flush_links | Merges completed in Tier 2.
        storage_writer.upload_failures | upload_failures | \
            Uploads that Tier 2 did not take at that try.
        storage_writer.name_collisions | name_collisions | \
            Foreign objects under names of this store: more than 0 means that another program \
            writes there.
        storage_writer.consolidations | consolidations | Objects made of others.
        storage_writer.consolidated_objects | consolidated_objects | The objects they were made of.
        storage_writer.bytes_copied | consolidation_copied_bytes | Copied by the provider for it.
        storage_writer.bytes_rewritten | consolidation_rewritten_bytes | \
            Downloaded and uploaded for it.
        storage_writer.replacements_refused | consolidation_refused | \
            Stretches of segments that had changed meanwhile.
        storage_writer.consolidation_failures | consolidation_failures | \
            Groups given up because an object is lost or corrupt.
        storage_writer.garbage_deleted | garbage_deleted | \
            Objects whose deletion is confirmed.
        storage_writer.garbage_failures | garbage_failures | \
            Deletions that failed, or whose outcome is unknown.
        storage_writer.sweeps | orphan_sweeps | Searches for orphans that were completed.
        storage_writer.sweep_failures | orphan_sweep_failures | \
            Requests of such a search that Tier 2 did not answer.
        storage_writer.orphans_found | orphans_found | \
            Objects no operation of the log named: made garbage.
        storage_writer.orphan_bytes | orphan_bytes | Size of these objects.
        storage_writer.uploads_aborted | uploads_aborted | \
            Abandoned uploads in parts that were aborted.
        storage_writer.messages_answered | mailbox_messages_answered | \
            Messages of jobs that got an answer.
        storage_writer.proposals_committed | proposals_committed | \
            Objects of jobs that segments are read from now, at least in part.
        storage_writer.proposals_refused | proposals_refused | \
            Objects of jobs that were refused: what they replace had changed, most often.
        storage_writer.mailbox_failures | mailbox_failures | \
            Polls of the mailbox that a tier did not answer.
        storage_writer.wall_clock_jumps | wall_clock_jumps | \
            Times that the wall clock moved by more than a minute beside the time that passed.
        active_segments.activations | segment_activations | \
            Idle segments that came into memory.
        active_segments.evictions | segment_evictions | \
            Segments that left memory: their metadata are in the catalog alone.
        active_segments.pages_read | chunk_pages_read | \
            Pages of chunks that memory lacked, read from the catalog.
        active_segments.attributes_read | attributes_read | \
            Attributes that memory lacked, looked up in the catalog.
        snapshots.completed | snapshots | Metadata snapshots made durable in Tier 2.
        snapshots.bytes_put | snapshots_put_bytes | Bytes put to Tier 2 for them.
        snapshots.objects_deleted | snapshots_deleted_objects | \
            Objects of snapshots that were deleted, since no log begins with them.
        archive.offloaded | archive_offloaded_parts | Parts of the log put into the archive.
        archive.offloaded_bytes | archive_offloaded_bytes | Bytes of their entries.
        archive.failures | archive_failures | Passes of the archiver that were cut off.
        archive.list_gets | archive_list_requests | Requests for lists of archived parts.
        processor.requests_committed | requests_committed | Calls made durable.
        processor.operations_committed | operations_committed | \
            Operations committed; one may hold the appends of many calls.
        processor.frames_committed | frames_committed | Frames committed.
        processor.checkpoints | checkpoints | Metadata checkpoints written.
        processor.throttled_s | throttled_seconds | Time that writers were held back.
        """,
    ),
]

OPERATION_METRICS = [
    *_table("gauge", "in_flight | tier2_requests_in_flight | Requests under way."),
    *_table(
        "counter",
        """
        requests | tier2_requests | \
            Requests sent, those under way included: what the provider bills.
        retries | tier2_retries | Of these, repeats of an earlier one of the same call.
        hedges | tier2_hedges | \
            Of these repeats, second requests sent beside a first one that was late.
        hedges_won | tier2_hedges_won | Of these, those that had the answer first.
        bytes_sent | tier2_sent_bytes | Bytes of objects sent.
        bytes_received | tier2_received_bytes | Bytes of objects received.
        """,
    ),
]
"""Of one operation of the provider: `tier2.operations.<operation>.<path>`; label `operation`."""

CLUSTER_TIMES = [
    *_table(
        "gauge",
        """
        arrival_s | cluster_container_arrival_seconds | \
            From the map that gave the container to this host until it served.
        start_s | cluster_container_start_seconds | \
            Of the arrival, what opening, fencing and replay took.
        stop_s | cluster_container_stop_seconds | \
            What the last stop of a container took that is not here any more.
        """,
        largest=True,
    )
]
"""Of the last move of each container: `cluster.<path>.<container>`; label `container`."""

LEFT_OUT = frozenset(
    (
        "store_id",  # the label of segmentstore_info
        "health",  # counted
        "containers",
        "container_states",  # counted
        "tier2",  # by operation
        "longest_turn_s",  # by part
        "cluster.host_id",  # every number is of this process
        "cluster.arrival_s",  # by container
        "cluster.start_s",  # by container
        "cluster.stop_s",  # by container
        "wire.refusals",  # by reason
        "controller.refusals",  # by method and reason
        "scrub.started_at_ms",
        "scrub.previous_finished_at_ms",
        "scrub.container",
        "scrub.object",
        "catalog.last_export_ms",
    )
)
"""Of the store's own numbers, those that are no metric, or one of another form."""
