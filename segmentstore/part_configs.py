"""What the settings of a store mean to the parts of one of its containers. Pure."""

from __future__ import annotations

from readindex.config import ReadIndexConfig
from segmentstore.config import StoreConfig
from storagewriter.config import StorageWriterConfig
from tier2.object_storage import ObjectStorage

_READ_AHEAD_GETS = 8
"""Requests of the best size that are ahead of a reader at most."""


def read_index_config(config: StoreConfig, storage: ObjectStorage) -> ReadIndexConfig:
    """Of the read index of one container."""
    return ReadIndexConfig(
        tail_bytes_max=config.tail_bytes_max,
        cache_bytes_max=config.cache_bytes_max // config.served_count,
        random_bytes=min(config.extent_bytes, config.piece_bytes),
        get_bytes_max=max(config.piece_bytes, storage.get_bytes_best),
        piece_bytes=config.piece_bytes,
        # So many of the largest requests hide the latency of one; where that is small, more only
        # costs memory.
        read_ahead_bytes_max=min(
            config.read_ahead_bytes_max, _READ_AHEAD_GETS * storage.get_bytes_best
        ),
        fetched_bytes_max=config.fetched_bytes_max,
        catch_up_bytes_per_s=config.catch_up_bytes_per_s,
    )


def writer_config(config: StoreConfig) -> StorageWriterConfig:
    """Of the storage writer of one container."""
    # Flushing under pressure must begin well before writers are held for it, or both would wait for
    # each other.
    held_at = min(
        config.unflushed_bytes_max,
        config.tail_bytes_max + config.cache_bytes_max // config.served_count,
    )
    return StorageWriterConfig(
        flush_bytes=config.flush_bytes,
        flush_age_s=config.flush_age_s,
        object_bytes=config.object_bytes,
        extent_bytes=config.extent_bytes,
        compression=config.compression,
        unflushed_target_bytes=max(1, min(config.unflushed_target_bytes, held_at // 2)),
        uploads_max=config.uploads_max,
        upload_bytes_max=config.upload_bytes_max,
        deletion_lag_s=config.deletion_lag_s,
        consolidation=config.consolidation,
        consolidation_bytes=config.consolidation_bytes,
        # Of the store, shared among its containers; rounded up, for 0 is no bound.
        consolidation_download_bytes_per_s=-(
            -config.consolidation_download_bytes_per_s // config.containers
        ),
        # The setting is the store's: its containers take turns.
        orphan_sweep_interval_s=config.orphan_sweep_interval_s * config.containers,
        mailbox_poll_interval_s=config.mailbox_poll_interval_s,
    )
