"""A store made anew from what Tier 2 holds, when its log and its disk are lost (docs/restore.md).

Theory of operation. The bucket is listed, and for each container the newest readable checkpoint of
its metadata is taken: a copy, or a metadata snapshot. Objects that the checkpoint does not know are
walked by their blocks' headers. Both become the metadata of the container
(`recovery.metadata_rebuild`). The new store has one log a container, and in it one operation: a
checkpoint of that metadata. From then on it is a store as any other. Rules of this file:

- nothing in Tier 2 is written, copied or deleted: the new store's chunks lie in the objects that
  are there;
- epochs, sequence numbers and ids of the new store are above all that the bucket shows, with room
  for those that were lost with the log: none is given twice;
- the folder becomes a store (`store.toml`) last of all: a restore that was cut off leaves a folder
  that is none. With logs on BookKeeper the root node becomes the store's just before that, and a
  process that opens the store there from then on has all of it;
- what cannot be known is said in the report.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from durablelog.catalog.catalog_loading import load_metadata
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.durable_data_log_factory import (
    DurableDataLogFactory,
)
from durablelog.file.file_log_factory import FileLogFactory
from recovery.metadata_rebuild import rebuild
from recovery.new_store import check_folder, on_disk, take_folder, write_store
from recovery.restore_report import (
    CheckpointUsed,
    ContainerRestore,
    Damage,
    FoundBlock,
    RestoreReport,
)
from recovery.snapshot_reading import CatalogReading, SnapshotReader
from recovery.store_check import check_store
from recovery.tier2_scan import (
    Bucket,
    ReadSnapshot,
    list_bucket,
    listed_again,
    newest_metadata,
    scan,
    unknown_objects,
)
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    NotAStoreError,
)
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.store_folder import logs_folder, new_store_id
from tier2.checkpoint_object import CONTAINERS_MAX
from tier2.locations import MemoryStorages, check_object_storage_url, open_object_storage
from tier2.object_names import CheckpointName, MetadataManifestName, classify_name
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import STORE_TAG_BYTES

SEQUENCE_GAP = 1 << 32
"""Sequence numbers left out for operations that were lost with the log."""
EPOCH_GAP = 16
"""Epochs left out: an owner that died before it wrote anything to Tier 2 took one that no name
shows.
"""
CATALOG_READING = CatalogReading(RocksDbKeyStore, load_metadata)
"""How a store's own catalogs are read."""

Progress = Callable[[int, int], None]
"""Receives (container, objects surveyed since the last call)."""


def _no_progress(_container_id: int, _objects: int) -> None:
    pass


async def restore_store(
    tier2: str,
    location: str,
    runtime: Runtime,
    *,
    dry_run: bool = False,
    predecessors: bool = False,
    store_id: str | None = None,
    logs: DurableDataLogFactory | None = None,
    memory: MemoryStorages | None = None,
    catalog: CatalogReading = CATALOG_READING,
    scratch: str | None = None,
    on_progress: Progress = _no_progress,
) -> RestoreReport:
    """Make a store in the folder `location`, new or empty, of what the bucket `tier2` (a URL)
    holds.

    `logs` is where its logs are made, open, and the caller's to close; None for the folder. With
    `dry_run` nothing is made. Several stores that ever were on this bucket are refused, unless
    `predecessors` says that each was restored from the one before, or `store_id` names the wanted
    one. Then objects that carry its tag, and objects that its own metadata name, are restored, and
    the rest ignored. `catalog` reads metadata snapshots. Their files are downloaded below
    `scratch`, a folder that is there; None for a temporary one. The old store must never run on
    this bucket again once the new one was opened. Raises InvalidArgumentError (several stores;
    `location` is a URL) and NotAStoreError (the folder is not empty; the bucket holds nothing of a
    store). Raises DataCorruptionError if what is in the bucket cannot be of one store. Also
    StoreInUseError, ConfigError, and TierUnavailableError, also for a disk that is full.
    Costs one LIST for 1,000 objects and one GET a container, of a snapshot two requests for each
    file. Each object that the newest checkpoint does not know costs one or few GETs.
    """
    location = os.path.abspath(checked_folder(location))
    wanted = _wanted_store(store_id, predecessors=predecessors)
    check_object_storage_url(tier2, new=True)
    storage = open_object_storage(tier2, runtime, memory=memory)
    executor = runtime.executor("restore", 1)
    logs = logs if logs is not None else FileLogFactory(logs_folder(location), runtime)
    made: str | None = None
    try:
        await on_disk(executor, location, check_folder, location, runtime)
        await logs.check_unused()
        if scratch is None:
            scratch = made = await on_disk(executor, location, tempfile.mkdtemp)
        reader = SnapshotReader(storage, f"{scratch}/snapshot", runtime, executor, catalog)
        report, metadata = await listed_again(
            partial(
                _rebuild_all,
                storage,
                location,
                runtime,
                on_progress,
                reader.read,
                dry_run=dry_run,
                predecessors=predecessors,
                wanted=wanted,
            )
        )
        if not dry_run:
            lock = await on_disk(executor, location, take_folder, location, runtime)
            try:
                await _write(report, metadata, tier2, logs, executor, runtime)
                report.findings = await check_store(
                    await logs.stored_logs(len(metadata)), storage, runtime
                )
            finally:
                lock.close()
        return report
    finally:
        if made is not None:
            await on_disk(executor, location, os.rmdir, made)
        executor.shutdown(wait=False)
        await storage.close()


# --- what was -------------------------------------------------------------------------------------


async def _rebuild_all(
    storage: ObjectStorage,
    location: str,
    runtime: Runtime,
    on_progress: Progress,
    read_snapshot: ReadSnapshot,
    *,
    dry_run: bool,
    predecessors: bool,
    wanted: uuid.UUID | None,
) -> tuple[RestoreReport, list[ContainerMetadata]]:
    bucket = await list_bucket(storage)
    if bucket.is_empty:
        raise NotAStoreError(
            storage.url, "Tier 2 holds no object and no checkpoint of a segment store"
        )
    if wanted is not None:
        _narrow(bucket, wanted, storage.url)
    elif len(bucket.stores) > 1 and not predecessors:
        detail = (
            f"the stores {', '.join(bucket.stores)} have been here: which one is to be restored?"
        )
        advice = "name it by store_id, or say that they are predecessors of one another"
        raise InvalidArgumentError("tier2", storage.url, f"{detail} ({advice})")
    report = RestoreReport(
        url=storage.url,
        location=location,
        dry_run=dry_run,
        old_store_id=None,
        epoch=bucket.epoch + EPOCH_GAP,
        foreign_objects=bucket.foreign,
        stores_there=bucket.stores,
    )
    _check_that_one_store_wrote_them(bucket)
    used: dict[int, CheckpointUsed] = {}
    found: dict[int, ContainerRestore] = {}
    for container_id in bucket.containers:
        checkpoint, damaged = await newest_metadata(
            storage,
            bucket.checkpoints.get(container_id, ()),
            bucket.snapshots.get(container_id, ()),
            read_snapshot,
        )
        found[container_id] = ContainerRestore(
            container_id=container_id, checkpoint=checkpoint, damaged=damaged
        )
        if checkpoint is not None:
            used[container_id] = checkpoint
            bucket.claim(container_id, checkpoint.metadata.objects)
    blocks: dict[int, list[FoundBlock]] = {}
    cut: dict[int, list[FoundBlock]] = {}
    for container_id, container in found.items():
        objects = bucket.objects.get(container_id, {})
        unknown, container.passed_over = unknown_objects(objects, container.checkpoint)
        container.objects, container.surveyed = len(objects), len(unknown)
        blocks[container_id], broken = await scan(
            storage, container_id, unknown, partial(on_progress, container_id)
        )
        cut[container_id] = [damage.cut for damage in broken if damage.cut is not None]
        container.damaged += map(str, broken)
        container.unreadable = _unknown_names(broken, container.checkpoint)
    count = _count_of_containers(used, found, blocks, report)
    metadata = []
    for container_id in range(count):
        container = found.get(container_id) or ContainerRestore(
            container_id=container_id, checkpoint=None
        )
        report.containers.append(container)
        found_here, cut_here = blocks.get(container_id, []), cut.get(container_id, [])
        metadata.append(_rebuild_one(container, bucket, found_here, cut_here, count, runtime))
        if container_id not in found:
            report.notes.append(
                f"of container {container_id} there is nothing: no object, and no copy "
                "of its metadata"
            )
    report.others_objects = sum(map(len, bucket.others.values()))
    if wanted is not None:
        report.old_store_id = str(wanted)
    elif report.old_store_id is None and bucket.stores:
        report.old_store_id = bucket.stores[-1] if len(bucket.stores) == 1 else None
    _note_what_is_unknown(report, used)
    return report, metadata


def _wanted_store(store_id: str | None, *, predecessors: bool) -> uuid.UUID | None:
    if store_id is None:
        return None
    if predecessors:
        raise InvalidArgumentError(
            "store_id", store_id, "either one store is wanted, or all that were here"
        )
    try:
        return uuid.UUID(store_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgumentError("store_id", store_id, "that is no id of a store") from None


def _narrow(bucket: Bucket, wanted: uuid.UUID, url: str) -> None:
    bucket.narrow(wanted)
    if bucket.is_empty:
        there = (
            f"those that have a marker there: {', '.join(bucket.stores)}"
            if bucket.stores
            else "no store has a marker"
        )
        raise NotAStoreError(
            url, f"Tier 2 holds no object and no checkpoint of store {wanted} ({there})"
        )


def _unknown_names(broken: list[Damage], checkpoint: CheckpointUsed | None) -> list[str]:
    """Objects that were not read to their end, and of which no checkpoint says what they held."""
    names = [damage.object_name for damage in broken]
    return (
        names
        if checkpoint is None
        else [name for name in names if name not in checkpoint.metadata.objects]
    )


def _check_that_one_store_wrote_them(bucket: Bucket) -> None:
    """A store restored from another one begins above all its epochs: no epoch of a container has
    copies of two.
    """
    for container_id in bucket.containers:
        writers: dict[int, bytes] = {}
        for named in _written(bucket, container_id):
            mark = named.unique_id[:STORE_TAG_BYTES]
            if writers.setdefault(named.epoch, mark) != mark:
                detail = f"more than one store has written in epoch {named.epoch}"
                raise DataCorruptionError(f"checkpoints of container {container_id}", detail)


def _written(bucket: Bucket, container_id: int) -> list[CheckpointName | MetadataManifestName]:
    """What the names of its copies and metadata snapshots say."""
    stored = (
        *bucket.checkpoints.get(container_id, ()),
        *bucket.snapshots.get(container_id, ()),
    )
    names = map(classify_name, (each.name for each in stored))
    return [each for each in names if isinstance(each, CheckpointName | MetadataManifestName)]


def _count_of_containers(
    used: dict[int, CheckpointUsed],
    found: dict[int, ContainerRestore],
    blocks: dict[int, list[FoundBlock]],
    report: RestoreReport,
) -> int:
    """How many containers the store had.

    Raises DataCorruptionError if the bucket contradicts itself.
    """
    highest = max(found)
    said = sorted({checkpoint.containers for checkpoint in used.values()})
    if len(said) > 1 or (said and said[0] <= highest):
        detail = (
            f"checkpoints speak of stores with {said} containers, and there are objects of "
            f"container {highest}"
        )
        raise DataCorruptionError(report.url, f"{detail}: more than one store has written here")
    if said:
        newest = max(used.values(), key=lambda checkpoint: (checkpoint.time_ms, checkpoint.epoch))
        report.old_store_id = newest.store_id
        others = sorted({checkpoint.store_id for checkpoint in used.values()} - {newest.store_id})
        if others:
            # So it is after a restore whose store never came to write all of its checkpoints.
            report.notes.append(
                f"checkpoints of other containers are of the store {', '.join(others)}"
            )
        return said[0]
    report.notes.append(
        "there is no readable checkpoint: all that is known comes from the headers of blocks"
    )
    names = {
        block.segment_name: container_id
        for container_id in found
        for block in blocks[container_id]
        if block.segment_name
    }
    for count in range(highest + 1, CONTAINERS_MAX + 1):
        if all(container_of(name, count) == container_id for name, container_id in names.items()):
            return count
    report.notes.append(
        "no number of containers fits the names found: names are made up where they do not fit"
    )
    return highest + 1


def _rebuild_one(
    container: ContainerRestore,
    bucket: Bucket,
    blocks: list[FoundBlock],
    cut: list[FoundBlock],
    count: int,
    runtime: Runtime,
) -> ContainerMetadata:
    container_id = container.container_id
    highest = max((block.segment_id for block in (*blocks, *cut)), default=0)
    for named in _written(bucket, container_id):
        highest = max(highest, named.sequence_number)
    checkpoint = container.checkpoint
    if checkpoint is not None:
        highest = max(highest, checkpoint.metadata.sequence_number, *checkpoint.metadata.segments)
    rebuilt = rebuild(
        container_id,
        checkpoint.metadata if checkpoint is not None else None,
        blocks,
        bucket.objects.get(container_id, {}),
        first_id=highest + SEQUENCE_GAP,
        now_ms=runtime.clock.time_ms(),
        fits=lambda name: container_of(name, count) == container_id,
        cut=cut,
    )
    container.segments = rebuilt.segments
    unused = {block.object_name for block in blocks} - rebuilt.metadata.objects.keys()
    container.passed_over += len(unused)
    return rebuilt.metadata


def _note_what_is_unknown(report: RestoreReport, used: dict[int, CheckpointUsed]) -> None:
    if used:
        report.notes.append(
            "unknown since the checkpoints: seals, truncations, deletions, merges, "
            "attributes, segments of which nothing"
            " was flushed, and appends that were not flushed"
        )


# --- the new store --------------------------------------------------------------------------------


async def _write(
    report: RestoreReport,
    metadata: list[ContainerMetadata],
    tier2: str,
    logs: DurableDataLogFactory,
    executor: Executor,
    runtime: Runtime,
) -> None:
    # The markers of those before it are still there: a restore intends the store to be where they
    # were.
    config = StoreConfig(
        containers=len(metadata),
        tier1=logs.tier1,
        tier2=tier2,
        shared_tier2=bool(report.stores_there),
    )
    store_id = new_store_id(runtime)
    await write_store(
        report.location,
        store_id,
        config,
        metadata,
        logs,
        executor,
        runtime,
        epoch=report.epoch,
    )
    report.store_id = store_id
