"""From an opened (fenced) log to a container's state: read every frame, replay every operation.

The log is read faster than its bytes can be moved out of memory. Replay waits for them: dropped,
each of them would have to be searched for in the log once more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from durablelog.append_frames import LoggedAppends, whole_appends
from durablelog.data_frame import ENTRY_HEADER_LENGTH
from durablelog.data_frame_reader import DataFrameReader, Record
from durablelog.durable_data_log import DurableDataLog
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import APPEND_HEAD_LENGTH, append_data_start
from durablelog.operations import AppendOperation, Operation, SnapshotCheckpointOperation
from recovery.replay import Replay
from segmentstore.contracts.metadata import ContainerMetadata

OPERATIONS_PREPARED: Final = 512
"""Operations of several frames for which metadata are read together, about."""

SnapshotLoad: TypeAlias = Callable[[SnapshotCheckpointOperation], Awaitable[ContainerMetadata]]
"""Gives the metadata as of just before the operation from the snapshot it names.

Raises DataCorruptionError, TierUnavailableError.
"""

Prepare: TypeAlias = Callable[[Sequence[Operation]], Awaitable[None]]
"""Has what operations are about in memory, before they are replayed.

Raises DataCorruptionError, TierUnavailableError.
"""


class RecoveryReport(NamedTuple):
    """What one recovery did."""

    operations: int
    frames: int
    bytes: int
    """Of operations, without frame headers."""
    seconds: float
    operations_since_checkpoint: int
    bytes_since_checkpoint: int
    checkpoint_bytes: int
    """Size of the last checkpoint met, of either kind."""


class RecoveredLog(NamedTuple):
    """What `recover` gives."""

    report: RecoveryReport
    snapshots: tuple[SnapshotCheckpointOperation, ...]
    """Every checkpoint by reference met, in order; their snapshots may not be finished."""


_Part: TypeAlias = "LoggedAppends | tuple[Operation, Record]"
"""Appends, or any other operation with its record."""


class HomeOfBytes(Protocol):
    """What keeps the bytes of replayed appends; the read index is one."""

    @property
    def placed_bytes_min(self) -> int:
        """Appends from so many bytes on may be left in a log that `reads_ranges`."""

    @property
    def room_bytes(self) -> int:
        """What may be brought at one go after `wait_roomy`."""

    async def wait_roomy(self) -> None:
        """Return, without awaiting if they have room already, when what was brought has found room,
        or will find none.
        """


async def recover(
    log: DurableDataLog,
    updater: MetadataUpdater,
    positions: LogPositions,
    on_commit: Callable[[Sequence[Operation]], None],
    home: HomeOfBytes,
    load: SnapshotLoad | None = None,
    prepare: Prepare | None = None,
) -> RecoveredLog:
    """Replay the whole log; `on_commit` sees runs of operations, as it does of live ones, at the
    speed of `home`. `load` is awaited for a log that begins with a checkpoint by reference,
    `prepare` before each part of what follows.

    Raises DataCorruptionError (nothing was changed on disk by it), without `load` for such a log
    too; and what `load` and `prepare` raise. A log without operations leaves
    the metadata empty: the caller writes the first checkpoint.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    reader, replay, frames = DataFrameReader(), Replay(updater, positions), 0
    placed_min = home.placed_bytes_min if log.reads_ranges else sys.maxsize
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            parts: list[_Part] = []
            operations = 0
            for frame in batch:
                frames += 1
                found = None
                if reader.between_records:
                    found = whole_appends(frame.payload, frame.payload_address, placed_min)
                if found is None:
                    records: Sequence[Record] = reader.feed(frame)
                    if load is not None and records and not (replay.operations or parts):
                        records = await _begin(records, replay, on_commit, load)
                    parts += _decoded(records, placed_min)
                    operations += len(records)
                elif reader.accept_whole(frame):
                    length = len(frame.payload) - ENTRY_HEADER_LENGTH * len(found)
                    parts.append(LoggedAppends(found, length, frame.address))
                    operations += len(found)
                if operations < OPERATIONS_PREPARED:
                    # Frames may be small, and what prepares them waits for a thread.
                    continue
                await _replay_parts(parts, replay, on_commit, home, prepare)
                parts, operations = [], 0
            await _replay_parts(parts, replay, on_commit, home, prepare)
    reader.finish()
    replay.finish()
    report = RecoveryReport(
        operations=replay.operations,
        frames=frames,
        bytes=replay.bytes,
        seconds=loop.time() - started,
        operations_since_checkpoint=replay.operations_since_checkpoint,
        bytes_since_checkpoint=replay.bytes_since_checkpoint,
        checkpoint_bytes=replay.checkpoint_bytes,
    )
    return RecoveredLog(report, tuple(replay.snapshots))


async def _begin(
    records: Sequence[Record],
    replay: Replay,
    on_commit: Callable[[Sequence[Operation]], None],
    load: SnapshotLoad,
) -> Sequence[Record]:
    """Replay the log's first operation if it is a checkpoint by reference; what is left to
    replay.
    """
    record, first_address, last_address, *_ = records[0]
    operation = replay.decode(record, first_address)
    if not isinstance(operation, SnapshotCheckpointOperation):
        return records
    replay.begin_from(operation, await load(operation), len(record), first_address, last_address)
    on_commit((operation,))
    return records[1:]


def _decoded(records: Sequence[Record], placed_min: int) -> list[_Part]:
    """The operations of records. Appends of `placed_min` bytes and more get their places."""
    parts: list[_Part] = []
    for each in records:
        operation = Replay.decode(each.data, each.first_frame_address, copy=False)
        if type(operation) is AppendOperation:
            if len(operation.data) >= placed_min:
                _note_places(operation, each)
            parts.append(LoggedAppends((operation,), len(each.data), each.last_frame_address))
        else:
            parts.append((operation, each))
    return parts


def _note_places(append: AppendOperation, record: Record) -> None:
    begin = len(record.data) - len(append.data)
    if begin == (append_data_start(append) if append.attributes else APPEND_HEAD_LENGTH):
        append.places = record.places_from(begin)


async def _replay_parts(
    parts: Sequence[_Part],
    replay: Replay,
    on_commit: Callable[[Sequence[Operation]], None],
    home: HomeOfBytes,
    prepare: Prepare | None,
) -> None:
    """Replay the operations that ended with some frames."""
    if prepare is not None and parts:
        await prepare([*chain.from_iterable(map(_operations_of, parts))])
    for run in _runs(parts, home.room_bytes):
        if isinstance(run, list):
            replay.apply_appends(run)
            on_commit([*chain.from_iterable(part.appends for part in run)])
            await home.wait_roomy()
        else:
            operation, record = run
            first_address, last_address = record.first_frame_address, record.last_frame_address
            replay.apply_operation(operation, len(record.data), first_address, last_address)
            on_commit((operation,))


def _operations_of(part: _Part) -> Sequence[Operation]:
    return part.appends if isinstance(part, LoggedAppends) else part[:1]


def _runs(
    parts: Sequence[_Part], room_bytes: int
) -> Iterator[list[LoggedAppends] | tuple[Operation, Record]]:
    """Appends that follow each other, as many as there is room for; any other operation alone.

    As live (`commit_runs`): what is notified of an operation sees the metadata as of it.
    """
    run: list[LoggedAppends] = []
    run_bytes = 0
    for part in parts:
        if not isinstance(part, LoggedAppends):
            if run:
                yield run
            run, run_bytes = [], 0
            yield part
            continue
        for each in (part,) if part.length <= room_bytes else _one_by_one(part):
            run_bytes += each.length
            if run and run_bytes > room_bytes:
                yield run
                run, run_bytes = [], each.length
            run.append(each)
    if run:
        yield run


def _one_by_one(part: LoggedAppends) -> Iterator[LoggedAppends]:
    if len(part.appends) == 1:
        yield part
        return
    for each in part.appends:
        yield LoggedAppends((each,), append_data_start(each) + len(each.data), part.address)
