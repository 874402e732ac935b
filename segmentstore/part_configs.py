"""What the settings of a store mean to the parts of one of its containers. Pure."""

from __future__ import annotations

from dataclasses import replace

from readindex.config import ReadIndexConfig
from segmentstore.config import StoreConfig
from storagewriter.config import StorageWriterConfig
from tier2.object_storage import ObjectStorage

_READ_AHEAD_GETS = 8
"""Requests of the best size that are ahead of a reader at most."""


def read_index_config(
    config: StoreConfig, storage: ObjectStorage, cache_bytes: int
) -> ReadIndexConfig:
    """Of the read index of one container, which has `cache_bytes` of the cache."""
    asked = config.read_index
    return replace(
        asked,
        cache_bytes_max=cache_bytes,
        random_bytes=min(config.writer.extent_bytes, asked.piece_bytes),
        get_bytes_max=max(asked.piece_bytes, storage.get_bytes_best),
        # So many of the largest requests hide the latency of one; where that is small, more only
        # costs memory.
        read_ahead_bytes_max=min(
            asked.read_ahead_bytes_max, _READ_AHEAD_GETS * storage.get_bytes_best
        ),
    )


def writer_config(config: StoreConfig, cache_bytes: int) -> StorageWriterConfig:
    """Of the storage writer of one container, which has `cache_bytes` of the cache."""
    asked = config.writer
    return replace(
        asked,
        unflushed_target_bytes=unflushed_target(config, cache_bytes),
        # Of the store, shared among its containers; rounded up, for 0 is no bound.
        consolidation_download_bytes_per_s=-(
            -asked.consolidation_download_bytes_per_s // config.containers
        ),
        # The setting is the store's: its containers take turns.
        orphan_sweep_interval_s=asked.orphan_sweep_interval_s * config.containers,
    )


def unflushed_target(config: StoreConfig, cache_bytes: int) -> int:
    """Un-flushed bytes at which everything pending of a container goes to Tier 2."""
    # Flushing under pressure must begin well before writers are held for it, or both would wait for
    # each other.
    held_at = min(config.unflushed_bytes_max, config.read_index.tail_bytes_max + cache_bytes)
    return max(1, min(config.writer.unflushed_target_bytes, held_at // 2))


def cache_share(config: StoreConfig, present: int) -> int:
    """Bytes of the cache that each of the containers present has."""
    return config.read_index.cache_bytes_max // max(1, present)
