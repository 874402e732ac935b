"""Exports of the catalog: the metadata of containers as snapshots in Tier 2, on command and by
schedule.

Theory of operation. A container whose checkpoints name snapshots takes a checkpoint, and behind
that its metadata catalog is as of one sequence number, idle segments included; they are read from
there (`export_tables`). Of a small container one turn of the event loop copies what is in memory,
which is all there is. A thread makes the tables, and four requests put them (`tier2.catalog`,
docs/formats/catalog.md). Rules of this file:

- one export at a time in a store: each holds its tables, and keeps old files of the catalog;
- an export reads and writes Tier 2 alone; whatever fails shows in `health`, is tried again if it
  was the schedule's, and stops nothing else;
- what is old is deleted after an export, never instead of one: an export has succeeded once its
  manifest is put;
- pyarrow is loaded by the first export, in its thread. A store that exports nothing does not need
  it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from durablelog.catalog.key_store import KeySnapshot
from segmentstore.config import StoreConfig
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import SegmentStoreError, TierUnavailableError, describe
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.export_tables import encode_stored
from storagewriter.wall_clock import SteadyWallClock
from tier2.object_names import SnapshotName
from tier2.object_storage import ObjectStorage, StorageUnavailableError
from tier2.unique_ids import new_copy_id

if TYPE_CHECKING:
    from segmentstore.contracts.reports import CatalogExport
    from tier2.catalog.catalog_copy import CatalogCopy
    from tier2.catalog.catalog_manifest import Manifest
    from tier2.catalog.catalog_snapshots import EncodedTable

_log = logging.getLogger(__name__)

SETTING: Final = "catalog_export_interval_s"
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 300.0
"""From a scheduled export that failed to the next; never longer than the schedule itself."""


class ExportStatistics(NamedTuple):
    """What the exports of an open store have come to."""

    exports: int
    failures: int
    last_export_ms: int | None
    """When the last export began of which there is a snapshot."""


class ExportSource(Protocol):
    """A container, seen from here."""

    @property
    def container_id(self) -> int:
        """Which container."""

    @property
    def metadata(self) -> ContainerMetadata:
        """The committed metadata, without the idle segments; read only."""

    async def written_catalog(self) -> KeySnapshot | None:
        """The catalog with everything that was committed by now, and perhaps more, as of its
        sequence number; the caller closes it. None: it has none, and `metadata` are all there is,
        as of this turn of the loop.

        Raises TierUnavailableError, DataCorruptionError, and as `check_running`.
        """

    @property
    def epoch(self) -> int:
        """Of the container's log."""

    def check_running(self) -> None:
        """Raise ContainerStoppedError or NotPrimaryError unless the container serves."""


class CatalogExporter:
    """The exports of one open store: of the containers that this process serves, and no others."""

    def __init__(
        self,
        storage: ObjectStorage,
        sources: Callable[[], Sequence[ExportSource]],
        runtime: Runtime,
        store_id: str,
        config: StoreConfig,
    ) -> None:
        """`sources` gives those that are served here as of now.

        Raises MissingExtraError if there is a schedule and pyarrow is missing.
        """
        every_s = config.catalog_export_interval_s
        if every_s:
            require_extra("arrow", SETTING)
        self._storage = storage
        self._sources = sources
        self._runtime = runtime
        self._aging = dataclasses.replace(runtime, clock=SteadyWallClock(runtime))
        self._store_id = store_id
        self._containers = config.containers
        self._every_s = every_s
        self._backoff = Backoff(
            runtime.random,
            min_s=RETRY_MIN_S,
            max_s=min(RETRY_MAX_S, max(RETRY_MIN_S, every_s)),
        )
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._exports = 0
        self._last_export_ms: int | None = None
        self._health: dict[int, HealthNote] = {}
        """By container, once its first export has begun."""

    def start(self) -> None:
        """Begin to export by schedule, if there is one: a first time once `every_s` is over.

        Once.
        """
        assert self._task is None, "it starts once"
        if self._every_s:
            self._task = own_task(self._run(), name="catalog export")

    async def stop(self) -> None:
        """End the schedule, and what it has under way. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def export_all(self) -> list[CatalogExport]:
        """Export every container served here, by container.

        Raises what `export` raises, once all were tried.
        """
        done: list[CatalogExport] = []
        failures: list[Exception] = []
        for source in self._sources():
            try:
                done.append(await self.export(source))
            except Exception as error:  # noqa: BLE001
                # One that was taken over keeps its siblings from nothing.
                failures.append(error)
        if failures:
            raise failures[0]
        return done

    async def export_manifest(self, source: ExportSource) -> str:
        """Export one container as `export` does; give the name of the snapshot's manifest."""
        return (await self.export(source)).manifest

    async def export(self, source: ExportSource) -> CatalogExport:
        """Export one container as it is when its turn comes.

        Raises MissingExtraError (pyarrow), TierUnavailableError, DataCorruptionError,
        ContainerStoppedError, NotPrimaryError. Costs a checkpoint, some five microseconds a chunk
        in a thread, four requests and a listing.
        """
        from tier2.retried_reads import RetriedCalls  # noqa: PLC0415 - exports alone need it

        return await self._export_to(RetriedCalls(self._storage), source)

    async def _export_to(self, storage: ObjectStorage, source: ExportSource) -> CatalogExport:
        require_extra("arrow", "an export of the catalog")
        async with self._lock:
            source.check_running()
            health = self._note(source.container_id)
            try:
                manifest = await self._export(storage, source)
            except StorageUnavailableError as error:
                health.failed(error)
                raise TierUnavailableError("tier2", str(error)) from error
            except Exception as error:
                health.failed(error)
                raise
            health.succeeded()
            self._exports += 1
            self._last_export_ms = manifest.time_ms
            return export_of(manifest)

    def health(self) -> list[str]:
        """What is wrong, one sentence each; empty when all is well."""
        here = (self._health.get(source.container_id) for source in self._sources())
        findings = (each.describe() for each in here if each is not None)
        return [finding for finding in findings if finding is not None]

    def statistics(self) -> ExportStatistics:
        """Numbers as of now. O(containers)."""
        return ExportStatistics(
            exports=self._exports,
            failures=sum(each.failures for each in self._health.values()),
            last_export_ms=self._last_export_ms,
        )

    def _note(self, container_id: int) -> HealthNote:
        note = self._health.get(container_id)
        if note is None:
            text = f"container {container_id}: catalog export to tier2 {self._storage.url}"
            note = self._health[container_id] = HealthNote(text, self._runtime.clock)
        return note

    async def _export(self, storage: ObjectStorage, source: ExportSource) -> Manifest:
        # No operation before that is missing from what comes.
        epoch, time_ms = source.epoch, self._runtime.clock.time_ms()
        executor = self._runtime.executor("catalog", 1)
        try:
            sequence_number, encoded = await _encoded(source, executor)
        finally:
            executor.shutdown(wait=False)
        from tier2.catalog import catalog_snapshots  # noqa: PLC0415 - loaded by the thread

        unique_id = new_copy_id(self._store_id, self._runtime.random)
        manifest = await catalog_snapshots.put_snapshot(
            storage,
            self._runtime,
            store_id=self._store_id,
            containers=self._containers,
            snapshot=SnapshotName(source.container_id, epoch, sequence_number, unique_id),
            time_ms=time_ms,
            encoded=encoded,
        )
        await _delete_old(storage, self._aging, manifest)
        return manifest

    async def _run(self) -> None:
        self._aging.clock.time_ms()
        loop = asyncio.get_running_loop()
        due: dict[int, float] = {}
        while True:
            soonest = begin = loop.time()
            soonest += self._every_s
            for source in self._sources():
                # One that was not there before has its first turn when a period is over.
                at_s = due.setdefault(source.container_id, begin + self._every_s)
                if at_s <= loop.time():
                    began = loop.time()
                    at_s = began + self._every_s + await self._scheduled(source)
                    due[source.container_id] = at_s
                soonest = min(soonest, at_s)
            await asyncio.sleep(max(0.0, soonest - loop.time()))

    async def _scheduled(self, source: ExportSource) -> float:
        """Export one container if it serves; how much sooner (negative) than by schedule its next
        turn is.
        """
        try:
            source.check_running()
        except Exception:  # noqa: BLE001 - its own health says so
            return 0.0
        try:
            # What fails is tried again by the schedule, and shows in health at once.
            await self._export_to(self._storage, source)
        except Exception as error:  # noqa: BLE001 - whatever it is: a snapshot is not worth a store
            _log.info("catalog export of container %d: %s", source.container_id, describe(error))
            return min(self._backoff.next_s(), self._every_s) - self._every_s
        self._backoff.reset()
        return 0.0


async def export_metadata(
    storage: ObjectStorage,
    runtime: Runtime,
    metadata: ContainerMetadata,
    *,
    store_id: str,
    containers: int,
    epoch: int,
    time_ms: int,
) -> CatalogExport:
    """Export a container that no process has open, from its metadata, which do not change
    meanwhile.

    `time_ms`: of a moment, wall time, before `epoch` and `metadata` were read, and at which no
    process had it open. Raises MissingExtraError (pyarrow), TierUnavailableError.
    """
    require_extra("arrow", "an export of the catalog")
    from tier2.catalog import catalog_snapshots  # noqa: PLC0415 - exports alone need it
    from tier2.retried_reads import RetriedCalls  # noqa: PLC0415 - exports alone need it

    storage = RetriedCalls(storage)
    try:
        manifest = await catalog_snapshots.write_snapshot(
            storage,
            runtime,
            store_id=store_id,
            containers=containers,
            container_id=metadata.container_id,
            epoch=epoch,
            time_ms=time_ms,
            metadata=metadata,
            stopped=True,
        )
        await _delete_old(storage, runtime, manifest)
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    return export_of(manifest)


async def _encoded(source: ExportSource, executor: Executor) -> tuple[int, dict[str, EncodedTable]]:
    """The tables of a container, and the sequence number as of which they are."""
    snapshot = await source.written_catalog()
    if snapshot is not None:
        try:
            encoded = await encode_stored(snapshot, source.container_id, executor)
        except SegmentStoreError:
            source.check_running()
            raise
        finally:
            await snapshot.close()
        return snapshot.sequence_number, encoded
    # In the turn in which it was said that memory has everything. Only who exports pays for it.
    from tier2.catalog.catalog_copy import copy_catalog  # noqa: PLC0415

    copy = copy_catalog(source.metadata)
    encoded = await asyncio.get_running_loop().run_in_executor(executor, _encode, copy)
    return copy.sequence_number, encoded


def _encode(copy: CatalogCopy) -> dict[str, EncodedTable]:
    # Only who exports pays for it, and not on the loop.
    from tier2.catalog import catalog_snapshots  # noqa: PLC0415

    return catalog_snapshots.encode_copy(copy)


async def _delete_old(storage: ObjectStorage, runtime: Runtime, manifest: Manifest) -> None:
    from tier2.catalog import catalog_snapshots  # noqa: PLC0415 - its caller has loaded it

    try:
        await catalog_snapshots.delete_old_snapshots(
            storage,
            manifest.container_id,
            manifest.epoch,
            runtime.clock.time_ms(),
            store_id=manifest.store_id,
        )
    except StorageUnavailableError as error:
        # The export has succeeded; the next one deletes what this one left.
        _log.info("old catalog snapshots of container %d stay: %s", manifest.container_id, error)


def export_of(manifest: Manifest) -> CatalogExport:
    """What is notified of a snapshot."""
    # Not at the top: exports alone need it.
    from segmentstore.contracts.reports import CatalogExport  # noqa: PLC0415

    return CatalogExport(
        container_id=manifest.container_id,
        epoch=manifest.epoch,
        sequence_number=manifest.sequence_number,
        time_ms=manifest.time_ms,
        manifest=manifest.name,
        rows={name: file.rows for name, file in manifest.tables.items()},
        size=sum(file.size for file in manifest.tables.values()),
    )
