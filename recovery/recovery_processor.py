"""From an opened (fenced) log to a container's state: read every frame, replay every operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import DurableDataLog
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import Operation
from recovery.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What one recovery did."""

    operations: int
    frames: int
    bytes: int
    """Of operations, without frame headers."""
    seconds: float


async def recover(
    log: DurableDataLog,
    updater: MetadataUpdater,
    positions: LogPositions,
    on_commit: Callable[[Sequence[Operation]], None],
) -> RecoveryReport:
    """Replay the whole log; `on_commit` sees the operations of each frame, as it does of live ones.

    Raises DataCorruptionError (nothing was changed on disk by it). A log without operations leaves
    the metadata empty: the caller writes the first checkpoint.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    reader, replay, frames = DataFrameReader(), Replay(updater, positions), 0
    async for batch in log.read():
        for frame in batch:
            frames += 1
            operations = [replay.apply(*record) for record in reader.feed(frame)]
            if operations:
                on_commit(operations)
    reader.finish()
    replay.finish()
    return RecoveryReport(
        operations=replay.operations, frames=frames, bytes=replay.bytes, seconds=loop.time() - started
    )
