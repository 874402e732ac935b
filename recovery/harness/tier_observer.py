"""Tier observer: reads both tiers of a store no process has open, and writes down what lies there.

It stands beside `recovery.store_check`, which is part of the product and says what is wrong: here
nothing is checked. Where a log lies is its caller's: a `LogProbe` gives its frames. Rules of this
file:

- nothing is written; the caller sees to it that no process has the store open;
- what cannot be read is left out: `store_check` reports it where it lies in files, and everywhere
  the next opening does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogFrame
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_state import read_state
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import AppendOperation, Operation, SnapshotCheckpointOperation
from recovery.consistency_check import chunks_by_object
from recovery.harness.history import History
from recovery.harness.seen_tiers import LoggedSegment, SeenChunk, SeenLog, SeenTiers, Span
from recovery.replay import Replay
from recovery.stopped_catalogs import StoppedCatalogs
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.block_header import BlockFormatError
from tier2.block_object import decode_extents, parse_block_header, parse_extent_table
from tier2.object_names import parse_object_name
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage

_UNREADABLE: Final = (DataCorruptionError, AssertionError, KeyError)
"""What replaying a log ends in that is not what an engine that keeps its rules has written."""


class LogContents(NamedTuple):
    """A log as it lies."""

    epoch: int
    """Of its newest owner, which may have written nothing yet; 0: it never had an owner."""
    frames: Iterable[LogFrame]
    """From the truncation point on.

    Going through them raises DataCorruptionError where they are none of a log, and OSError.
    """


LogProbe = Callable[[], LogContents]
"""Checks one log, now. May block, and raise what its frames do."""


def file_probe(directory: str, disk: Disk) -> LogProbe:
    """A check of the log in a folder."""
    return partial(_probe_files, directory, disk)


def _probe_files(directory: str, disk: Disk) -> LogContents:
    state = read_state(directory, disk)
    return LogContents(0 if state is None else state.epoch, _frames_of_files(directory, disk))


def _frames_of_files(directory: str, disk: Disk) -> Iterator[LogFrame]:
    for report in read_only_frames(directory, disk):
        if report.status == "corrupt":
            raise DataCorruptionError(report.path, report.detail)
        if report.status == "ok":
            yield LogFrame(report.address, report.sequence, report.epoch, report.payload)


async def observe_tiers(
    history: History,
    logs: Mapping[int, LogProbe],
    storage: ObjectStorage,
    catalogs: StoppedCatalogs,
    runtime: Runtime,
    *,
    deep: bool,
    late_puts: bool = False,
    settled: bool = False,
    in_doubt: bool = False,
    foreign_tag: bytes | None = None,
) -> SeenTiers:
    """Read everything and add it to the history; `deep`: the bytes of all chunks as well.

    `foreign_tag` is the tag of another store in the same place, whose objects are left out.

    `logs` has a check of each container's log, `catalogs` what one by reference begins with; what
    else cannot be seen is said as `SeenTiers` has it. Raises StorageUnavailableError,
    TierUnavailableError, OSError.
    """
    loop = asyncio.get_running_loop()
    executor = runtime.executor("tiers", 1)
    seen: dict[int, SeenLog] = {}
    try:
        for container_id, probe in logs.items():
            walk = _LogWalk(container_id, probe)
            first = await loop.run_in_executor(executor, walk.first_operation)
            if isinstance(first, SnapshotCheckpointOperation):
                try:
                    walk.loaded = (await catalogs.load(container_id, first, storage)).metadata
                except DataCorruptionError as error:
                    walk.lacks = str(error)
            if await loop.run_in_executor(executor, walk.run):
                seen[container_id] = walk.seen({})
                if deep:
                    seen[container_id] = walk.seen(await _contents(storage, walk.metadata))
    finally:
        executor.shutdown(wait=False)
    listed: dict[str, int] = {}
    async for page in storage.list():
        listed.update(
            {stored.name: stored.size for stored in page if _is_own(stored.name, foreign_tag)}
        )
    stamp = history.next_stamp()
    tiers = SeenTiers(stamp, seen, listed, late_puts=late_puts, settled=settled, in_doubt=in_doubt)
    history.tiers.append(tiers)
    return tiers


def _is_own(name: str, foreign_tag: bytes | None) -> bool:
    parts = parse_object_name(name)
    return parts is not None and (
        foreign_tag is None or not parts.unique_id.startswith(foreign_tag)
    )


class _LogWalk:
    """One log, replayed; `run` blocks."""

    def __init__(self, container_id: int, probe: LogProbe) -> None:
        self.metadata = ContainerMetadata(container_id)
        self.loaded: ContainerMetadata | None = None
        """What the log begins with, if it names that."""
        self.lacks = ""
        """Why that cannot be had."""
        self._probe = probe
        self._epoch = self._first = 0
        self._begins_with = ""
        self._held: dict[int, list[Span]] = {}

    def first_operation(self) -> Operation | None:
        """None if there is none that can be read. Raises OSError."""
        reader = DataFrameReader()
        try:
            for frame in self._probe().frames:
                for record in reader.feed(frame):
                    return Replay.decode(record.data, record.first_frame_address)
        except _UNREADABLE:
            pass
        return None

    def run(self) -> bool:
        """False if there is nothing, or nothing that can be replayed. Raises OSError."""
        replay = Replay(MetadataUpdater(self.metadata), LogPositions(), self._load)
        reader = DataFrameReader()
        try:
            looked = self._probe()
            self._epoch = looked.epoch
            for frame in looked.frames:
                for record in reader.feed(frame):
                    operation = Replay.decode(record.data, record.first_frame_address)
                    if not self._begins_with:
                        self._first, self._begins_with = (
                            operation.sequence_number,
                            type(operation).__name__,
                        )
                    if type(operation) is AppendOperation:
                        self._hold(operation)
                    replay.apply_operation(
                        operation,
                        len(record.data),
                        record.first_frame_address,
                        record.last_frame_address,
                    )
        except _UNREADABLE:
            # One that begins with no checkpoint is reported all the same: it is what a checker
            # searches for.
            return bool(self._begins_with) and not replay.operations
        return bool(self._begins_with)

    def _load(self, operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        if self.loaded is None:
            raise DataCorruptionError(str(operation.sequence_number), self.lacks)
        return self.loaded

    def _hold(self, append: AppendOperation) -> None:
        held = self._held.setdefault(append.segment_id, [])
        end = append.offset + len(append.data)
        if held and held[-1][1] == append.offset:
            held[-1] = (held[-1][0], end)
        else:
            held.append((append.offset, end))

    def seen(self, contents: Mapping[ChunkRecord, bytes]) -> SeenLog:
        """What was seen, after `run`."""
        metadata = self.metadata
        return SeenLog(
            container_id=metadata.container_id,
            epoch=self._epoch,
            first=self._first,
            begins_with=self._begins_with,
            lacks=self.lacks,
            segments={
                key: _segment(segment, contents) for key, segment in metadata.segments.items()
            },
            held=self._held,
            objects={name: live.record.size for name, live in metadata.objects.items()},
            garbage={name: garbage.record.size for name, garbage in metadata.garbage.items()},
        )


def _segment(segment: SegmentMetadata, contents: Mapping[ChunkRecord, bytes]) -> LoggedSegment:
    return LoggedSegment(
        segment_id=segment.segment_id,
        name=segment.name,
        start_offset=segment.start_offset,
        length=segment.length,
        storage_length=segment.storage_length,
        merges=[(merge.offset, merge.end_offset) for merge in segment.merges],
        chunks=[
            SeenChunk(chunk.start_offset, chunk.end_offset, chunk.object_name, contents.get(chunk))
            for chunk in segment.chunks
        ],
    )


async def _contents(
    storage: ObjectStorage, metadata: ContainerMetadata
) -> Mapping[ChunkRecord, bytes]:
    """What the block of each chunk holds. Reads every object once, whole."""
    found: dict[ChunkRecord, bytes] = {}
    for name, chunks in chunks_by_object(metadata).items():
        if name not in metadata.objects:
            continue
        try:
            data = memoryview(await storage.get_range(name, 0, metadata.objects[name].record.size))
        except (ObjectNotFoundError, InvalidRangeError):
            continue
        for chunk in chunks:
            try:
                found[chunk] = _payload(data[chunk.block_offset :], chunk)
            except BlockFormatError:
                continue
    return found


def _payload(block: memoryview, chunk: ChunkRecord) -> bytes:
    """The chunk's bytes in its block. Raises BlockFormatError."""
    header = parse_block_header(block)
    table = parse_extent_table(block[: header.prefix_length], header)
    payload = bytes(
        decode_extents(header, table, 0, block[header.prefix_length : header.block_length])
    )
    begin = chunk.block_start_offset - header.start_offset
    return payload[begin : begin + chunk.length]
