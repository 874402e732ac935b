"""A recovery gives back what it read from, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from durablelog.data_frame import ENTRY_HEADER, ENTRY_WHOLE
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.log_positions import LogPositions
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import encode_operation
from durablelog.operations import CreateOperation, Operation
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.recovery_processor import recover
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata
from tests.recovery.test_replay import BASE


class Log(MemoryDataLog):
    """Memory that counts its readers, as a log does that deletes nothing under them."""

    readers = 0

    async def read(
        self, start: LogAddress | None = None
    ) -> AsyncGenerator[Sequence[LogFrame], None]:
        self.readers += 1
        try:
            async with aclosing(super().read(start)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.readers -= 1


class Home:
    """Room for all at once; if it `is_full`, a caller that waits for more waits for ever."""

    room_bytes = 1 << 20

    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full

    async def wait_roomy(self) -> None:
        if self.is_full:
            await asyncio.Event().wait()


async def written(*operations: Operation) -> Log:
    log = Log(MemoryLogStore(), 0)
    await log.open()
    for operation in operations:
        record = b"".join(encode_operation(operation))
        await log.append([ENTRY_HEADER.pack(len(record), ENTRY_WHOLE) + record])
    return log


async def recovered(log: Log, home: Home) -> None:
    updater = MetadataUpdater(ContainerMetadata(0))
    await recover(log, updater, LogPositions(), lambda _: None, home)


def test_corruption_leaves_no_reader() -> None:
    async def scenario() -> None:
        log = await written(CreateOperation("no checkpoint before it", sequence_number=1))
        with pytest.raises(DataCorruptionError):
            await recovered(log, Home())
        assert log.readers == 0

    run_virtual(scenario())


def test_a_recovery_that_nobody_waits_for_any_more_leaves_no_reader() -> None:
    async def scenario() -> None:
        log = await written(*BASE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await recovered(log, Home(is_full=True))
        assert log.readers == 0

    run_virtual(scenario())
