"""What an open store is made of, and how it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.cache_storage import CacheStorage
from recovery.loss_keeper import LossKeeper
from segmentstore.cancellation_watch import CancellationWatch
from segmentstore.catalog_export import CatalogExporter
from segmentstore.config import StoreConfig
from segmentstore.container import ContainerRegistry, MakeContainer, SegmentContainer
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.part_configs import cache_share
from segmentstore.tier2_start import Tier2Start
from tier2.object_storage import ObjectStorage
from tier2.store_markers import StoreMarkers

if TYPE_CHECKING:
    from recovery.background_scrub import BackgroundScrub
    from segmentstore.contracts.health_tree import PartPath, PartSeen
    from segmentstore.contracts.store_hosts import HostPlace, StoreHosts

    # Loaded only where there is one.
    from segmentstore.metrics_endpoint import MetricsEndpoint
    from segmentstore.stats_types import ClusterStats, ControllerStats, TableStats, WireStats
    from tier2.archive.archive_place import ArchivePlace


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StoreParts:
    """Everything an open store is made of."""

    location: str
    store_id: str
    config: StoreConfig
    runtime: Runtime
    logs: DurableDataLogFactory
    """Tier 1."""
    storage: ObjectStorage
    """Tier 2."""
    archive: ArchivePlace | None = None
    """Where sealed parts of the logs go."""
    cache: CacheStorage
    make_catalog: Callable[[int], MetadataCatalog]
    """Of a container, not opened yet."""
    markers: StoreMarkers
    """Of the stores whose objects are where ours are."""
    registry: ContainerRegistry = field(init=False)
    """Of the containers in this process; set before the first one starts."""
    tier2_start: Tier2Start
    undo: UndoStack = field(default_factory=UndoStack)
    """What closes each part, pushed when it was opened."""
    scrub: BackgroundScrub | None = None
    losses: LossKeeper | None = None
    exporter: CatalogExporter | None = None
    endpoint: MetricsEndpoint | None = None
    cluster_stats: Callable[[], ClusterStats] | None = None
    cluster_health: Callable[[], list[str]] | None = None
    cluster_waits_for: Callable[[], list[str]] | None = None
    """What keeps a host of a cluster from being ready, a sentence each."""
    cluster_drain: Callable[[], Awaitable[None]] | None = None
    """Has other hosts take the containers of this one."""
    cluster_hosts: Callable[[], Awaitable[StoreHosts]] | None = None
    """Where clients find the containers of a cluster."""
    cluster_owner: Callable[[int], Awaitable[HostPlace | None]] | None = None
    """Which host is to serve a container; None: none is known."""
    cluster_places: Callable[[], Awaitable[Sequence[HostPlace]]] | None = None
    """Of all hosts. All three are None until it has joined."""
    wire_stats: Callable[[], WireStats] | None = None
    table_stats: Callable[[], TableStats] | None = None
    controller_stats: Callable[[], ControllerStats] | None = None
    controller_health: Callable[[], list[str]] | None = None
    findings: Sequence[str] = ()
    """What is wrong with how the store is kept, a sentence each, for its health."""
    observations: Mapping[PartPath, PartSeen] = field(default_factory=dict)
    """Since when each part is as it is."""
    closing: asyncio.Task[None] | None = None
    watch: CancellationWatch | None = None
    registered: object | None = None
    """What the process knows it by, if it was opened for a program: `open_stores.registered`."""

    @property
    def containers(self) -> Sequence[SegmentContainer]:
        """Those that are served here, ascending, as of now."""
        return self.registry.containers

    async def close(self) -> None:
        """Close the parts in the reverse order of their opening; goes on past one that fails.

        Done once, whatever callers ask or stop waiting: all callers wait for the same end.
        """
        await asyncio.shield(self.begin_close())

    def begin_close(self) -> asyncio.Task[None]:
        """The task that closes."""
        if self.closing is None:
            self.closing = own_task(self.undo.unwind(), name="close store")
            if self.watch is not None:
                self.closing.add_done_callback(self.watch.end)
        return self.closing

    async def stop_containers(self) -> None:
        """Stop all containers; what their last reads find lost is still kept.

        Raises what the first one fails with, when all have stopped.
        """
        try:
            await self.registry.close()
        finally:
            if self.losses is not None:
                await self.losses.stop()


def registry_of(
    parts: StoreParts,
    make: MakeContainer,
    begin: Callable[[SegmentContainer], Awaitable[None]],
) -> ContainerRegistry:
    """The registry of a store, which is its parts' from now on; nothing is started."""
    config = parts.config
    parts.registry = ContainerRegistry(
        config.containers,
        config.serve,
        make=make,
        begin=begin,
        share=partial(cache_share, config),
        clock=parts.runtime.clock,
    )
    return parts.registry
