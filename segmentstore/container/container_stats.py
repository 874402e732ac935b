"""The numbers of one container, as `store.stats()` gives them, and what is wrong with it. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from durablelog.durable_data_log import DurableDataLog
from durablelog.operation_processor import OperationProcessor
from readindex.read_index import ReadIndex
from recovery.recovery_processor import RecoveryReport
from segmentstore.container.active_segments import ActiveSegments
from segmentstore.container.metadata_checkpoints import MetadataCheckpoints
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter.storage_writer import StorageWriter

if TYPE_CHECKING:
    from segmentstore.container.archive_hold import ArchiveHold
    from segmentstore.container.log_archiver import LogArchiver
    from segmentstore.stats_types import (
        ActiveSegmentsStats,
        ArchiveStats,
        ContainerStats,
        LogStats,
        ProcessorStats,
        ReadIndexStats,
        RecoveryStats,
        SnapshotStats,
        StorageWriterStats,
    )


def container_stats(
    state: str,
    metadata: ContainerMetadata,
    log: DurableDataLog,
    read_index: ReadIndex,
    writer: StorageWriter,
    checkpoints: MetadataCheckpoints,
    active: ActiveSegments,
    recovery: RecoveryReport | None,
    processor: OperationProcessor | None,
    archiver: LogArchiver | None,
) -> ContainerStats:
    """Everything the parts count, as of now. O(objects in Tier 2)."""
    result: ContainerStats = {
        "state": state,
        "segments": metadata.segment_count,
        "sequence_number": metadata.sequence_number,
        "objects": len(metadata.objects),
        "object_bytes": sum(live.record.size for live in metadata.objects.values()),
        "garbage_objects": len(metadata.garbage),
        "sweep_stopped_by": writer.orphan_sweeper.stopped_by,
        "log": cast("LogStats", log.statistics()._asdict()),
        "read_index": cast("ReadIndexStats", read_index.statistics()._asdict()),
        "storage_writer": cast("StorageWriterStats", writer.statistics()._asdict()),
        "active_segments": cast("ActiveSegmentsStats", dataclasses.asdict(active.statistics())),
        "snapshots": cast("SnapshotStats", checkpoints.statistics()._asdict()),
    }
    if archiver is not None:
        result["archive"] = cast("ArchiveStats", archiver.statistics()._asdict())
    if recovery is not None:
        result["recovery"] = cast("RecoveryStats", recovery._asdict())
    if processor is not None:
        result["processor"] = cast("ProcessorStats", processor.statistics()._asdict())
    return result


def container_health(
    failure: BaseException | None,
    log: DurableDataLog,
    writer: StorageWriter,
    copies: str | None,
    room: str | None,
    processor: OperationProcessor | None,
    hold: ArchiveHold | None,
) -> dict[str, str | None]:
    """What is wrong with each part, a sentence; None while it is well. O(1).

    `copies` is what is wrong with those of the metadata in Tier 2, `room` with segments that wait
    for room in memory. `processor` is None unless the container runs.
    """
    throttled_by = processor.statistics().throttled_by if processor is not None else ""
    found = {
        "log": log.health() if failure is None else None,
        "storage_writer": writer.health(),
        "snapshots": copies,
        "active_segments": room,
        "processor": f"writers are held back by {throttled_by}" if throttled_by else None,
    }
    if hold is not None and hold.holds:
        found["archive"] = hold.health()
    return found
