"""The numbers of an open store, by container and part, as plain dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from segmentstore.contracts.errors import describe
from segmentstore.contracts.loop_turns import longest_turns
from segmentstore.store_health import health_sentences
from tier2.object_storage import ObjectStorage

if TYPE_CHECKING:
    from segmentstore.stats_types import (
        CacheStats,
        CatalogStats,
        ContainerStateStats,
        LossStats,
        OperationStats,
        ScrubStats,
        StoreStats,
        Tier2Stats,
    )
    from segmentstore.store_parts import StoreParts


def store_stats(parts: StoreParts) -> StoreStats:
    """Everything the parts count, as of now. O(containers)."""
    return {
        "store_id": parts.store_id,
        "health": health_sentences(parts),
        "cache": cast("CacheStats", parts.cache.statistics()._asdict()),
        "tier2": _tier2_stats(parts.storage),
        "catalog": (
            cast("CatalogStats", parts.exporter.statistics()._asdict())
            if parts.exporter is not None
            else None
        ),
        "losses": (
            cast("LossStats", parts.losses.statistics()._asdict())
            if parts.losses is not None
            else {"objects": 0, "places": 0, "seen": 0}
        ),
        "scrub": cast("ScrubStats", parts.scrub.statistics()._asdict())
        if parts.scrub is not None
        else None,
        "cluster": parts.cluster_stats() if parts.cluster_stats is not None else None,
        "wire": parts.wire_stats() if parts.wire_stats is not None else None,
        "controller": parts.controller_stats() if parts.controller_stats is not None else None,
        "tables": parts.table_stats() if parts.table_stats is not None else None,
        "longest_turn_s": longest_turns(),
        "container_states": _container_states(parts),
        "containers": {container.container_id: container.stats() for container in parts.containers},
    }


def _container_states(parts: StoreParts) -> dict[int, ContainerStateStats]:
    return {
        number: {
            "state": status.state.value,
            "since_ms": status.since_ms,
            "cause": None if status.cause is None else describe(status.cause),
        }
        for number, status in parts.registry.statuses().items()
    }


def _tier2_stats(storage: ObjectStorage) -> Tier2Stats:
    statistics = storage.statistics()
    return {
        "url": storage.url,
        "requests": statistics.requests(),
        "bytes_sent": statistics.bytes_sent,
        "bytes_received": statistics.bytes_received,
        "errors": statistics.errors,
        "operations": {
            operation: cast("OperationStats", counted._asdict())
            for operation, counted in statistics.operations.items()
        },
    }
