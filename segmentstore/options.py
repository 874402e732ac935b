"""StoreOptions: what `segmentstore.open` takes beside the location, as a type checker sees it."""

from __future__ import annotations

import os
from typing import TypedDict


class StoreOptions(TypedDict, total=False):
    """Settings of one opening, each optional: `def opened(**options: Unpack[StoreOptions])`.

    `segmentstore.config.StoreConfig` has the meaning, the default and the bounds of each, and a
    test keeps the two equal; `segmentstore.deprecated_settings` has the names of today of those
    that are deprecated. Sizes are in bytes, times in seconds.
    """

    # Fixed when the store is made.
    containers: int
    tier1: str
    tier2: str | os.PathLike[str]

    # What this process does.
    serve: str
    host_id: str
    host_capacity: int
    take_over: bool

    # What callers may do.
    append_bytes_max: int
    attributes_per_segment_max: int
    queue_bytes_max: int

    # Tier 1.
    frame_bytes_max: int
    in_flight_bytes_max: int
    log_file_bytes: int
    checkpoint_operations: int
    checkpoint_bytes: int
    inline_checkpoint_bytes_max: int
    active_segments_max: int
    active_metadata_bytes_max: int

    # Tier 2.
    flush_bytes: int
    flush_age_s: float
    object_bytes: int
    extent_bytes: int
    compression: str
    unflushed_target_bytes: int
    unflushed_bytes_max: int
    uploads_max: int
    upload_bytes_max: int
    consolidation: bool
    consolidation_bytes: int
    consolidation_download_bytes_per_s: int
    shared_tier2: bool
    deletion_lag_s: float
    orphan_sweep_interval_s: float
    mailbox_poll_interval_s: float

    # Reading.
    tail_bytes_max: int
    cache_bytes_max: int
    piece_bytes: int
    read_ahead_bytes_max: int
    fetched_bytes_max: int
    catch_up_bytes_per_s: int

    # Archiving.
    archive: str | os.PathLike[str]
    offload_after_s: float
    offload_above_bytes: int
    archive_deletion_lag_s: float
    archive_retention_s: float
    archive_retention_bytes: int
    archive_block_bytes: int
    archive_read_bytes: int
    archive_bytes_per_s: int

    # Watching.
    catalog_export_interval_s: float
    scrub_bytes_per_s: int
    metrics_port: int
    metrics_host: str
    wire_port: int
    wire_host: str
    controller_port: int
    controller_host: str
    wire_hosts: str
    tls_certificate_file: str
    tls_key_file: str
    users_file: str
    token_key_file: str
    insecure_network: bool
    local_server: bool

    # Deprecated names.
    catalog_export_s: float
    local_face: bool
    mailbox_poll_s: float
    orphan_sweep_spacing_s: float
