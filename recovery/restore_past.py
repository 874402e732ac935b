"""A store as of a moment: a new one, made of the history of another one's logs (docs/restore.md).

Theory of operation. Each container's metadata are replayed up to the moment (`ArchivedHistory`).
The bytes that its segments had then are copied into the new store's own Tier 2 (`PastBytes`).
What came of it becomes the metadata of the new container by the rules of every restore
(`metadata_rebuild`). Rules of this file:

- the store that it is taken from is only read, and may run on;
- nothing of the new store refers to anything of the old one: each may be deleted without the other;
- of an operation or a checkpoint of one container, the others are as of its time;
- the time of an operation is the highest stamp up to it: a clock set back makes nothing earlier;
- what cannot be had is in the report, with the reason. Nothing is made up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

from durablelog.durable_data_log_factory import DurableDataLogFactory
from durablelog.file.file_log_factory import FileLogFactory
from recovery.archived_history import ArchivedHistory, PastState
from recovery.block_sinks import FIRST_EPOCH, BlockSink, PlannedBlocks, WrittenBlocks
from recovery.metadata_rebuild import Rebuilt, rebuild
from recovery.moments import AtTime, Moment
from recovery.new_store import check_folder, on_disk, take_folder, write_store
from recovery.past_bytes import GatheredBytes, PastBytes, PastLoss, segments_at
from recovery.past_chunks import PastChunks
from recovery.restore_report import SegmentRestore
from recovery.store_check import check_store
from recovery.tier2_scan import retried
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.store_folder import logs_folder, new_store_id, own_tier2_url
from tier2.block_reader import BlockReader
from tier2.extent_codec import CODECS_BY_NAME
from tier2.locations import MemoryStorages, check_object_storage_url, open_object_storage
from tier2.object_storage import ObjectStorage


class PastContainer(NamedTuple):
    """One container of the store that is restored from."""

    history: ArchivedHistory
    now: ContainerMetadata | None
    """Its metadata as they are; None: they are lost, and with them what consolidation moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSource:
    """A store that is only read."""

    store_id: str
    containers: Sequence[PastContainer]
    """By id, all of them."""
    storage: ObjectStorage
    """Its Tier 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastContainerReport:
    """One container of the new store."""

    container_id: int
    sequence_number: int
    """Of the last operation in it."""
    timestamp_ms: int
    """Of that operation, milliseconds since 1970 UTC."""
    begun_with: int
    """Sequence number of the checkpoint that replay began with."""
    operations: int
    """Replayed."""
    parts_opened: int
    """Archived parts that were read, each time counted."""
    bytes_from_objects: int
    bytes_from_history: int
    segments: Sequence[SegmentRestore]
    losses: Sequence[PastLoss]
    damage: Sequence[str]
    """Of the history, met in the search for bytes."""


@dataclass(slots=True, kw_only=True)
class PastReport:
    """What was restored, and what cannot be had any more."""

    moment: str
    location: str
    tier2: str
    dry_run: bool
    old_store_id: str
    store_id: str | None = None
    """Of the new store; None after a dry run."""
    containers: list[PastContainerReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Of the check of the new store."""

    @property
    def losses(self) -> list[PastLoss]:
        """Of all containers."""
        return [loss for container in self.containers for loss in container.losses]

    @property
    def lost_bytes(self) -> int:
        """That the segments had, and that cannot be had any more."""
        return sum(loss.length for loss in self.losses)

    @property
    def restored_bytes(self) -> int:
        """That can be read from the new store."""
        return sum(each.bytes_from_objects + each.bytes_from_history for each in self.containers)


async def restore_past(
    source: PastSource,
    moment: Moment,
    location: str,
    runtime: Runtime,
    *,
    container_id: int | None = None,
    tier2: str | None = None,
    logs: DurableDataLogFactory | None = None,
    dry_run: bool = False,
    memory: MemoryStorages | None = None,
) -> PastReport:
    """Make a store in the folder `location`, new or empty, that is what `source` was at the moment.

    `container_id` is of the container whose operation or checkpoint the moment is; a store of one
    container needs none. `tier2` is the URL of a place without objects, None for the folder's own.
    `logs` is where its logs are made, open, and the caller's to close; None for the folder. With
    `dry_run` nothing is made, and objects of `source` are not read but counted on. Raises
    InvalidArgumentError, MomentNotKeptError, NotAStoreError (the folder is not empty),
    DataCorruptionError, TierUnavailableError, ConfigError.
    """
    location = os.path.abspath(checked_folder(location))
    logs = logs if logs is not None else FileLogFactory(logs_folder(location), runtime)
    url = _checked_tier2(tier2, location, logs)
    executor = runtime.executor("restore", 1)
    target = open_object_storage(url, runtime, memory=memory)
    try:
        await on_disk(executor, location, check_folder, location, runtime)
        await logs.check_unused()
        states = await _states_at(source, moment, container_id)
        report = PastReport(
            moment=str(moment),
            location=location,
            tier2=url,
            dry_run=dry_run,
            old_store_id=source.store_id,
        )
        there = await _sizes(source, states)
        if dry_run:
            for state, container in zip(states, source.containers, strict=True):
                await _restore(report, source, container, state, there, PlannedBlocks(), runtime)
            return report
        await _check_empty(target, url)
        lock = await on_disk(executor, location, take_folder, location, runtime)
        try:
            config = StoreConfig(containers=len(states), tier1=logs.tier1, tier2=tier2 or "")
            await _make(report, source, states, there, target, config, logs, executor, runtime)
        finally:
            lock.close()
        return report
    finally:
        executor.shutdown(wait=False)
        await target.close()


def _checked_tier2(tier2: str | None, location: str, logs: DurableDataLogFactory) -> str:
    """The URL of the new store's Tier 2."""
    if tier2 is not None:
        check_object_storage_url(tier2, new=True)
        return tier2
    if logs.is_shared:
        raise InvalidArgumentError(
            "tier2", "", "a store whose log many folders open needs a Tier 2 at a URL: name one"
        )
    return own_tier2_url(location)


async def _check_empty(target: ObjectStorage, url: str) -> None:
    async def listed() -> None:
        async for page in target.list():
            for stored in page:
                detail = f"it holds objects ({stored.name}): name a place of its own"
                raise InvalidArgumentError("tier2", url, detail)

    await retried(listed)


# --- what was -------------------------------------------------------------------------------------


async def _states_at(
    source: PastSource, moment: Moment, container_id: int | None
) -> list[PastState]:
    count = len(source.containers)
    if isinstance(moment, AtTime):
        if container_id is not None:
            detail = "a time is the same for all containers: leave it out"
            raise InvalidArgumentError("container", container_id, detail)
        return [await each.history.state_at(moment) for each in source.containers]
    if container_id is None and count > 1:
        detail = f"the store has {count} containers, each with numbers of its own: name one"
        raise InvalidArgumentError("container", None, detail)
    number = container_id or 0
    if not 0 <= number < count:
        raise InvalidArgumentError(
            "container", number, f"the store has containers 0 to {count - 1}"
        )
    history = source.containers[number].history
    named = await history.state_at(moment)
    if count == 1:
        return [named]
    then = AtTime(await history.time_of(named.sequence_number))
    return [
        named if each.history is history else await each.history.state_at(then)
        for each in source.containers
    ]


async def _sizes(source: PastSource, states: Sequence[PastState]) -> dict[str, int]:
    """Of the objects that the metadata of both times name, as far as they are there."""
    names: set[str] = set()
    for state, container in zip(states, source.containers, strict=True):
        names.update(state.metadata.objects)
        if container.now is not None:
            names.update(container.now.objects)
    sizes: dict[str, int] = {}
    last = ""

    async def listed() -> None:
        nonlocal last
        async for page in source.storage.list("", last):
            for stored in page:
                last = stored.name
                if stored.name in names:
                    sizes[stored.name] = stored.size

    await retried(listed)
    return sizes


# --- what is made of it ---------------------------------------------------------------------------


async def _make(
    report: PastReport,
    source: PastSource,
    states: Sequence[PastState],
    there: dict[str, int],
    target: ObjectStorage,
    config: StoreConfig,
    logs: DurableDataLogFactory,
    executor: Executor,
    runtime: Runtime,
) -> None:
    store_id = new_store_id(runtime)
    codec = CODECS_BY_NAME[config.writer.compression]
    metadata = []
    for state, container in zip(states, source.containers, strict=True):
        sink = WrittenBlocks(target, container.history.container_id, store_id, codec, runtime)
        rebuilt = await _restore(report, source, container, state, there, sink, runtime)
        metadata.append(rebuilt.metadata)
    await write_store(
        report.location,
        store_id,
        config,
        metadata,
        logs,
        executor,
        runtime,
        epoch=FIRST_EPOCH + 1,
    )
    report.store_id = store_id
    stored = await logs.stored_logs(len(metadata))
    report.findings = await check_store(stored, target, runtime)


async def _restore(
    report: PastReport,
    source: PastSource,
    container: PastContainer,
    state: PastState,
    there: dict[str, int],
    sink: BlockSink,
    runtime: Runtime,
) -> Rebuilt:
    history = container.history
    chunks = PastChunks(state.metadata, container.now, there)
    reader = BlockReader(source.storage, history.container_id, runtime, object_size=there.get)
    try:
        gathered = await PastBytes(history, state, chunks, reader, sink).gather()
    finally:
        await reader.close()
    rebuilt = _rebuilt(state, sink, runtime, len(source.containers))
    report.containers.append(_container_report(history, state, rebuilt, gathered))
    await asyncio.sleep(0)
    return rebuilt


def _rebuilt(state: PastState, sink: BlockSink, runtime: Runtime, count: int) -> Rebuilt:
    """The metadata of a container of the new store: those of the moment, over the new objects."""
    container_id = state.metadata.container_id
    known = ContainerMetadata(container_id)
    known.sequence_number = state.sequence_number
    for segment in segments_at(state.metadata):
        known.segments[segment.segment_id] = _bare(segment)
    return rebuild(
        container_id,
        known,
        sink.blocks,
        sink.objects,
        first_id=state.sequence_number + 1,
        now_ms=runtime.clock.time_ms(),
        fits=lambda name: container_of(name, count) == container_id,
    )


def _bare(segment: SegmentMetadata) -> SegmentMetadata:
    """The segment without its place in Tier 2; all of its bytes are due there."""
    bare = SegmentMetadata(segment.segment_id, segment.name, segment.created_ms)
    bare.last_modified_ms = segment.last_modified_ms
    bare.start_offset = segment.start_offset
    bare.length = bare.storage_length = segment.length
    bare.sealed = segment.sealed
    bare.apply_attributes(dict(segment.attributes.items()))
    return bare


def _container_report(
    history: ArchivedHistory, state: PastState, rebuilt: Rebuilt, gathered: GatheredBytes
) -> PastContainerReport:
    return PastContainerReport(
        container_id=history.container_id,
        sequence_number=state.sequence_number,
        timestamp_ms=state.timestamp_ms,
        begun_with=state.begun_with,
        operations=state.operations,
        parts_opened=history.parts_opened,
        bytes_from_objects=gathered.from_objects,
        bytes_from_history=gathered.from_history,
        segments=rebuilt.segments,
        losses=gathered.losses,
        damage=gathered.damage,
    )
