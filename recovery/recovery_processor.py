"""From an opened (fenced) log to a container's state: read every frame, replay every operation.

The log is read faster than its bytes can be moved out of memory. Replay waits for them: dropped,
each of them would have to be searched for in the log once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
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


class HomeOfBytes(Protocol):
    """What keeps the bytes of replayed appends; the read index is one."""

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
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            parts: list[tuple[Operation, Record]] = []
            for frame in batch:
                frames += 1
                records: Sequence[Record] = reader.feed(frame)
                if load is not None and records and not (replay.operations or parts):
                    records = await _begin(records, replay, on_commit, load)
                parts += _decoded(records, replay, placed=log.reads_ranges)
                if len(parts) < OPERATIONS_PREPARED:
                    # Frames may be small, and what prepares them waits for a thread.
                    continue
                await _replay_parts(parts, replay, on_commit, home, prepare)
                parts = []
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


def _decoded(
    records: Sequence[Record], replay: Replay, *, placed: bool
) -> list[tuple[Operation, Record]]:
    """The operations of records; `placed`: say of appends where the log has their bytes."""
    parts: list[tuple[Operation, Record]] = []
    for each in records:
        record, first_address, *_ = each
        operation = replay.decode(record, first_address, copy=False)
        if placed and type(operation) is AppendOperation:
            begin = len(record) - len(operation.data)
            if begin == (
                append_data_start(operation) if operation.attributes else APPEND_HEAD_LENGTH
            ):
                operation.places = each.places_from(begin)
        parts.append((operation, each))
    return parts


async def _replay_parts(
    parts: Sequence[tuple[Operation, Record]],
    replay: Replay,
    on_commit: Callable[[Sequence[Operation]], None],
    home: HomeOfBytes,
    prepare: Prepare | None,
) -> None:
    """Replay the operations that ended with some frames."""
    if prepare is not None and parts:
        await prepare([operation for operation, _ in parts])
    appends: list[Operation] = []
    run_bytes, room_bytes = 0, home.room_bytes
    for operation, (record, first_address, last_address, *_) in parts:
        is_append = type(operation) is AppendOperation
        run_bytes += len(record)
        if appends and (not is_append or run_bytes > room_bytes):
            # As live (`commit_runs`): what is notified of an operation sees the metadata as of it.
            on_commit(appends)
            appends, run_bytes = [], len(record)
            await home.wait_roomy()
        replay.apply_operation(operation, len(record), first_address, last_address)
        if is_append:
            appends.append(operation)
        else:
            on_commit((operation,))
    if appends:
        on_commit(appends)
        await home.wait_roomy()
