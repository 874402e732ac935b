"""From an opened (fenced) log to a container's state: read every frame, replay every operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import DurableDataLog
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import AppendOperation, Operation
from recovery.replay import Replay


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
    """Size of the last checkpoint met."""


async def recover(
    log: DurableDataLog,
    updater: MetadataUpdater,
    positions: LogPositions,
    on_commit: Callable[[Sequence[Operation]], None],
) -> RecoveryReport:
    """Replay the whole log; `on_commit` sees runs of operations, as it does of live ones.

    Raises DataCorruptionError (nothing was changed on disk by it). A log without operations leaves
    the metadata empty: the caller writes the first checkpoint.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    reader, replay, frames = DataFrameReader(), Replay(updater, positions), 0
    async for batch in log.read():
        for frame in batch:
            frames += 1
            appends: list[Operation] = []
            for record, first_address, last_address in reader.feed(frame):
                operation = replay.decode(record, first_address)
                is_append = type(operation) is AppendOperation
                if appends and not is_append:
                    # As live (`commit_runs`): what is told of an operation sees the metadata as of it.
                    on_commit(appends)
                    appends = []
                replay.apply_operation(operation, len(record), first_address, last_address)
                if is_append:
                    appends.append(operation)
                else:
                    on_commit((operation,))
            if appends:
                on_commit(appends)
    reader.finish()
    replay.finish()
    return RecoveryReport(
        operations=replay.operations,
        frames=frames,
        bytes=replay.bytes,
        seconds=loop.time() - started,
        operations_since_checkpoint=replay.operations_since_checkpoint,
        bytes_since_checkpoint=replay.bytes_since_checkpoint,
        checkpoint_bytes=replay.checkpoint_bytes,
    )
