"""StoreStatus: how an open store is, as numbers, as a tree, and as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segmentstore.contracts import forks
from segmentstore.contracts.extras import require_extra
from segmentstore.stats import store_stats
from segmentstore.store_health import store_health
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    from segmentstore.contracts.health_tree import StoreHealth
    from segmentstore.stats_types import StoreStats


class StoreStatus:
    """The part of `SegmentStore` that says how it is. Nothing here asks a service."""

    _parts: StoreParts
    _birth: forks.Birth

    def stats(self) -> StoreStats:
        """Numbers by container and part; `health` says what is wrong, empty when all is well.

        What each means is in docs/metrics.md. O(objects in Tier 2).
        """
        self._birth.check()
        return store_stats(self._parts)

    async def fetch_stats(self) -> StoreStats:
        """`stats()`, as a store in another process has it, too."""
        return self.stats()

    def health(self) -> StoreHealth:
        """Host, containers and parts as a tree: how each is, why and since when.

        The store is `ready` while all containers that are assigned to this process are served. No
        request, O(containers): for probes. docs/metrics.md names the parts.
        """
        self._birth.check()
        return store_health(self._parts)

    async def fetch_health(self) -> StoreHealth:
        """`health()`, as a store in another process has it, too."""
        return self.health()

    async def fetch_metrics_text(self) -> bytes:
        """`metrics_text()`, as a store in another process has it, too."""
        return self.metrics_text()

    def metrics_text(self) -> bytes:
        """`stats()` as Prometheus reads it (text format 0.0.4, UTF-8): what `metrics_port` serves.

        See docs/metrics.md. Raises MissingExtraError without the extra `metrics`.
        """
        require_extra("metrics", "metrics_text()")
        # Not at the top: metrics alone need it.
        from segmentstore.metrics import metrics_text  # noqa: PLC0415

        return metrics_text(self.stats())
