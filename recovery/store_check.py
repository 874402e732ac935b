"""A stopped store read from end to end, without changing a byte of it: whether all that was
acknowledged is there and right.

Each log is read and replayed as recovery does it, through the same `Replay`; what it adds up to is
checked against itself and against Tier 2. Rules:

- nothing is written, opened for writing, or locked here: the caller holds the store's lock and the
  logs' locks. Of logs that cannot be locked (on BookKeeper) it finds out afterwards whether one was
  opened meanwhile;
- a fault in one container does not hide what is wrong with another;
- a tier that does not answer is never taken for corruption (TierUnavailableError).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.data_frame_reader import DataFrameReader, Record
from durablelog.durable_data_log import LogFrame
from durablelog.durable_data_log_factory import RemoteLog, StoredLogs
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_layout import file_number
from durablelog.file.log_state import read_state
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import OperationFormatError
from durablelog.operations import CheckpointOperation, SnapshotCheckpointOperation
from recovery.block_check import check_object
from recovery.consistency_check import (
    Listing,
    check_metadata,
    chunks_by_object,
    differences,
    in_order,
    note_garbage,
)
from recovery.replay import Replay
from recovery.snapshot_check import SnapshotCheck
from recovery.stopped_catalogs import LoadedSnapshot, StoppedCatalogs, first_snapshot
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.findings import Finding, harmful, note
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import gather_owned
from segmentstore.contracts.runtime import Runtime
from tier2.locations import MemoryStorages, open_object_storage
from tier2.object_storage import ObjectStorage, StorageUnavailableError
from tier2.unique_ids import store_tag

OBJECTS_AT_ONCE = 8
"""Objects checked together; deep, each holds up to two pieces of 4 MiB."""


async def check_store(
    logs: StoredLogs,
    tier2: str | ObjectStorage,
    runtime: Runtime,
    *,
    deep: bool = False,
    memory: MemoryStorages | None = None,
    store_id: str | None = None,
    catalogs: StoppedCatalogs | None = None,
) -> list[Finding]:
    """Everything wrong with, or worth reporting of, the store whose containers' logs and Tier 2 (or
    its URL) these are.

    With its `store_id` objects of unknown owner are distinguished from orphans. `catalogs` loads
    the metadata snapshots that logs begin with; without it such a log cannot be replayed. `logs`
    has every container of the store: the folder of a file log, or what gives a log's frames. Deep
    reads every block of every live object, and every file of a metadata snapshot. Harmful findings
    come first. Costs the replay of all logs, one `head` an object and two requests a metadata
    snapshot; deep, one read of all objects. Raises TierUnavailableError, ConfigError (a newer
    format), StoreInUseError (from a log elsewhere).
    """
    loop = asyncio.get_running_loop()
    executor = runtime.executor("check", 1)
    findings: list[Finding] = []
    containers: dict[int, ContainerMetadata | None] = {}
    snapshots = SnapshotCheck(list(logs), store_tag(store_id) if store_id else b"")
    storage = (
        open_object_storage(tier2, runtime, memory=memory) if isinstance(tier2, str) else tier2
    )
    try:
        for container_id, log in logs.items():
            walk = _LogCheck(container_id, log, runtime.disk)
            try:
                await loop.run_in_executor(executor, walk.begin)
                if walk.snapshot is not None and catalogs is not None:
                    await _load(walk, catalogs, storage, snapshots)
                await loop.run_in_executor(executor, walk.run)
            except OSError as error:
                raise TierUnavailableError("tier1", str(error)) from error
            findings += walk.findings
            containers[container_id] = walk.metadata
        tag = store_tag(store_id) if store_id else b""
        findings += await _check_tier2(storage, containers, snapshots, tag, deep=deep)
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    finally:
        executor.shutdown(wait=False)
        if storage is not tier2:
            await storage.close()
    return in_order(findings)


async def _load(
    walk: _LogCheck, catalogs: StoppedCatalogs, storage: ObjectStorage, snapshots: SnapshotCheck
) -> None:
    """Give the walk what its log begins with, or the reason why that cannot be had."""
    assert walk.snapshot is not None
    try:
        walk.loaded = await catalogs.load(walk.container_id, walk.snapshot, storage)
    except DataCorruptionError as error:
        walk.loaded = error
        return
    snapshots.begins(walk.container_id, walk.snapshot)
    if (damage := walk.loaded.local_damage) is not None:
        place = f"container {walk.container_id}, checkpoint {walk.snapshot.sequence_number}"
        detail = f"{damage}; its metadata snapshot in Tier 2 is whole, and an opening takes that"
        walk.findings.append(note("catalog", place, detail))


@dataclass(slots=True)
class _LogCheck:
    """One container's log: read, replayed, checked against itself. `run` blocks."""

    container_id: int
    log: str | RemoteLog
    disk: Disk
    findings: list[Finding] = field(default_factory=list)
    metadata: ContainerMetadata | None = None
    """What the log adds up to; None if it cannot be known.

    Empty if the log has never been written to.
    """
    snapshot: SnapshotCheckpointOperation | None = None
    """The checkpoint by reference that the log begins with, after `begin`."""
    loaded: LoadedSnapshot | DataCorruptionError | None = None
    """What it names; to be had before `run`."""

    def begin(self) -> None:
        """Find out what the log begins with. Raises as `run`, which reports damage."""
        with suppress(DataCorruptionError):
            if isinstance(self.log, RemoteLog):
                self.snapshot = first_snapshot(self.log.frames())
            elif read_state(self.log, self.disk) is not None:
                self.snapshot = first_snapshot(read_only_frames(self.log, self.disk))

    def run(self) -> None:
        """Fill in `findings` and `metadata`.

        Raises OSError, ConfigError, and what a log elsewhere raises.
        """
        metadata = ContainerMetadata(self.container_id)
        load = None if self.loaded is None else self._load
        replay = Replay(MetadataUpdater(metadata), LogPositions(), load)
        try:
            if not self._read(replay, metadata):
                return
        except DataCorruptionError as error:
            self.findings.append(harmful("log", error.where, error.detail))
            return
        except (AssertionError, KeyError) as error:
            # The updater's own invariants: the operation is well-formed and does not fit what came
            # before it.
            place = f"container {self.container_id}, operation behind {metadata.sequence_number}"
            self.findings.append(harmful("log", place, f"replay cannot apply it: {error!r}"))
            return
        self.metadata = metadata
        for segment, offset in replay.missing():
            place = f"container {self.container_id}, segment {segment.name!r} offset {offset}"
            detail = f"neither Tier 2 (up to {segment.storage_length}) nor the log holds it"
            self.findings.append(harmful("missing-bytes", place, detail))
        self.findings += check_metadata(metadata)
        self.findings += note_garbage(metadata)

    def _load(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        if isinstance(self.loaded, LoadedSnapshot) and operation == self.snapshot:
            return self.loaded.metadata
        assert isinstance(self.loaded, DataCorruptionError), operation
        raise self.loaded

    def _read(self, replay: Replay, metadata: ContainerMetadata) -> bool:
        """Replay every frame; False if the log ends in corruption."""
        if isinstance(self.log, RemoteLog):
            frames, unit = self.log.frames(), self.log.unit
        elif read_state(self.log, self.disk) is None:
            return self._nothing_there(self.log)
        else:
            frames, unit = read_only_frames(self.log, self.disk), "offset"
        reader = DataFrameReader()
        for report in frames:
            place = f"{report.path} {unit} {report.position} frame {report.sequence}"
            if report.status == "corrupt":
                self.findings.append(harmful("log", place, report.detail))
                return False
            if report.status == "torn":
                self.findings.append(
                    note("torn-tail", place, f"{report.detail}; it was never acknowledged")
                )
            elif report.status == "ok":
                frame = LogFrame(report.address, report.sequence, report.epoch, report.payload)
                for record in reader.feed(frame):
                    self._apply(replay, metadata, record)
        reader.finish()
        return True

    def _apply(self, replay: Replay, metadata: ContainerMetadata, record: Record) -> None:
        first = not replay.operations
        operation = replay.apply(record.data, record.first_frame_address, record.last_frame_address)
        if first or not isinstance(operation, CheckpointOperation):
            return
        place = (
            f"log address {record.first_frame_address:#x} checkpoint {operation.sequence_number}"
        )
        try:
            different = differences(decode_checkpoint(operation.blob), metadata)
        except OperationFormatError as error:
            self.findings.append(harmful("checkpoint", place, str(error)))
            return
        if different:
            shown = ", ".join(different[:3]) + (
                f" and {len(different) - 3} more" if len(different) > 3 else ""
            )
            self.findings.append(
                harmful("checkpoint", place, f"it is not what the log adds up to: {shown}")
            )

    def _nothing_there(self, directory: str) -> bool:
        """A log that was never opened is empty; log files without the state record are not a log
        any more.
        """
        if self.disk.is_directory(directory) and any(
            file_number(name) is not None for name in self.disk.list_directory(directory)
        ):
            self.findings.append(
                harmful("log", directory, "there are log files, and the state record is missing")
            )
            return False
        return True


async def _check_tier2(
    storage: ObjectStorage,
    containers: Mapping[int, ContainerMetadata | None],
    snapshots: SnapshotCheck,
    tag: bytes,
    *,
    deep: bool,
) -> list[Finding]:
    findings: list[Finding] = []
    for container_id, metadata in containers.items():
        if metadata is None:
            continue
        chunks = chunks_by_object(metadata)
        names = list(metadata.objects)
        for start in range(0, len(names), OBJECTS_AT_ONCE):
            results = await gather_owned(
                *(
                    check_object(
                        storage,
                        container_id,
                        metadata.objects[name].record,
                        chunks.get(name, []),
                        deep=deep,
                    )
                    for name in names[start : start + OBJECTS_AT_ONCE]
                ),
                name="check object",
            )
            for result in results:
                findings += result.findings
    listing = Listing(containers, tag)
    async for page in storage.list():
        for stored in page:
            listing.add(stored)
            snapshots.add(stored)
    findings += await snapshots.findings(storage, deep=deep)
    findings += listing.findings()
    return findings
