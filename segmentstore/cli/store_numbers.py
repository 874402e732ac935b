"""The few numbers of a store that the command line acts on; the one place that knows where
`stats()` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from segmentstore import SegmentStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNumbers:
    """A snapshot, summed over all containers."""

    operations_replayed: int
    """By the recovery this store was opened with."""
    log_bytes: int
    """Between truncation point and tail."""
    tier2_objects: int
    tier2_bytes: int
    """Of the objects that live chunks are in."""
    tier2_bytes_read: int
    """Fetched from Tier 2 since the store was opened."""

    @classmethod
    def of(cls, store: SegmentStore) -> StoreNumbers:
        """The numbers as of now."""
        stats = cast("dict[str, Any]", store.stats())
        containers = list(stats["containers"].values())
        return cls(
            operations_replayed=sum(
                item.get("recovery", {}).get("operations", 0) for item in containers
            ),
            log_bytes=sum(item["log"]["log_bytes"] for item in containers),
            tier2_objects=sum(item["objects"] for item in containers),
            tier2_bytes=sum(item["object_bytes"] for item in containers),
            tier2_bytes_read=stats["tier2"]["bytes_received"],
        )
