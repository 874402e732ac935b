"""What an open store is made of, and how it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.durable_data_log_factory import DurableDataLogFactory
from readindex.cache_storage import CacheStorage
from recovery.background_scrub import BackgroundScrub
from recovery.loss_keeper import LossKeeper
from segmentstore.cancellation_watch import CancellationWatch
from segmentstore.catalog_export import CatalogExporter
from segmentstore.config import StoreConfig
from segmentstore.container import SegmentContainer
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.stats_types import ControllerStats, TableStats, WireStats
from segmentstore.tier2_start import Tier2Start
from tier2.object_storage import ObjectStorage
from tier2.store_markers import StoreMarkers

if TYPE_CHECKING:
    # Loaded only where there is one.
    from segmentstore.metrics_endpoint import MetricsEndpoint


@dataclass(slots=True, kw_only=True, eq=False)
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
    cache: CacheStorage
    make_catalog: Callable[[int], MetadataCatalog]
    """Of a container, not opened yet."""
    containers: list[SegmentContainer]
    """Those that are served here, ascending."""
    markers: StoreMarkers
    """Of the stores whose objects are where ours are."""
    tier2_start: Tier2Start
    undo: UndoStack = field(default_factory=UndoStack)
    """What closes each part, pushed when it was opened."""
    scrub: BackgroundScrub | None = None
    losses: LossKeeper | None = None
    exporter: CatalogExporter | None = None
    endpoint: MetricsEndpoint | None = None
    wire_stats: Callable[[], WireStats] | None = None
    table_stats: Callable[[], TableStats] | None = None
    controller_stats: Callable[[], ControllerStats] | None = None
    controller_health: Callable[[], list[str]] | None = None
    findings: Sequence[str] = ()
    """What is wrong with how the store is kept, a sentence each, for its health."""
    closing: asyncio.Task[None] | None = None
    watch: CancellationWatch | None = None
    registered: object | None = None
    """What the process knows it by, if it was opened for a program: `open_stores.registered`."""

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
        outcomes = await gather_outcomes(
            *(container.stop() for container in self.containers), name="stop container"
        )
        if self.losses is not None:
            await self.losses.stop()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def release_logs(self) -> None:
        """Release the logs of all containers, for an owner whose event loop is closed."""
        for container in self.containers:
            with suppress(OSError):
                container.release_log()
