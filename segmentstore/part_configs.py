"""What the settings of a store mean to the parts of one of its containers. Pure."""

from __future__ import annotations

from dataclasses import replace

from readindex.config import ReadIndexConfig
from segmentstore.config import StoreConfig
from storagewriter.config import StorageWriterConfig
from tier2.object_storage import ObjectStorage

_READ_AHEAD_GETS = 8
"""Requests of the best size that are ahead of a reader at most."""


def read_index_config(config: StoreConfig, storage: ObjectStorage) -> ReadIndexConfig:
    """Of the read index of one container."""
    asked = config.read_index
    return replace(
        asked,
        cache_bytes_max=cache_share(config),
        random_bytes=min(config.writer.extent_bytes, asked.piece_bytes),
        get_bytes_max=max(asked.piece_bytes, storage.get_bytes_best),
        # So many of the largest requests hide the latency of one; where that is small, more only
        # costs memory.
        read_ahead_bytes_max=min(
            asked.read_ahead_bytes_max, _READ_AHEAD_GETS * storage.get_bytes_best
        ),
    )


def writer_config(config: StoreConfig) -> StorageWriterConfig:
    """Of the storage writer of one container."""
    asked = config.writer
    # Flushing under pressure must begin well before writers are held for it, or both would wait for
    # each other.
    held_at = min(
        config.unflushed_bytes_max, config.read_index.tail_bytes_max + cache_share(config)
    )
    return replace(
        asked,
        unflushed_target_bytes=max(1, min(asked.unflushed_target_bytes, held_at // 2)),
        # Of the store, shared among its containers; rounded up, for 0 is no bound.
        consolidation_download_bytes_per_s=-(
            -asked.consolidation_download_bytes_per_s // config.containers
        ),
        # The setting is the store's: its containers take turns.
        orphan_sweep_interval_s=asked.orphan_sweep_interval_s * config.containers,
    )


def cache_share(config: StoreConfig) -> int:
    """Bytes of the cache that one container has."""
    return config.read_index.cache_bytes_max // config.served_count
