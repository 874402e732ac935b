"""A recovery gives back what it read from, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.data_frame import ENTRY_HEADER, ENTRY_WHOLE
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.log_positions import LogPositions
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import encode_operation
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    Operation,
    SnapshotCheckpointOperation,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.recovery_processor import OPERATIONS_PREPARED, RecoveredLog, SnapshotLoad, recover
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from tests.recovery.test_replay import BASE, by_reference, upload
from tests.recovery.test_replay import Log as ReplayedLog


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
    placed_bytes_min = 4096

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


async def recovered(
    log: Log, home: Home, load: SnapshotLoad | None = None, *, into: ContainerMetadata | None = None
) -> tuple[RecoveredLog, list[Operation]]:
    updater = MetadataUpdater(into or ContainerMetadata(0))
    committed: list[Operation] = []
    recovery = await recover(log, updater, LogPositions(), committed.extend, home, load)
    return recovery, committed


def test_corruption_leaves_no_reader() -> None:
    async def scenario() -> None:
        log = await written(CreateOperation("no checkpoint before it", sequence_number=1))
        with pytest.raises(DataCorruptionError):
            await recovered(log, Home())
        assert log.readers == 0

    run_virtual(scenario())


def test_an_abandoned_recovery_leaves_no_reader() -> None:
    async def scenario() -> None:
        log = await written(*BASE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await recovered(log, Home(is_full=True))
        assert log.readers == 0

    run_virtual(scenario())


def test_a_log_that_begins_by_reference_is_recovered_from_the_snapshot_it_names() -> None:
    blob = encode_checkpoint(ReplayedLog().put(*BASE, upload(5, 0, 4)).metadata)
    operations = (
        by_reference(6),
        CreateOperation("c", sequence_number=7),
        by_reference(8),
        AppendOperation(7, 0, b"x", sequence_number=9),
    )

    async def load(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        await asyncio.sleep(5)  # a download
        assert operation == by_reference(6)
        return decode_checkpoint(blob)

    async def scenario() -> None:
        log, metadata = await written(*operations), ContainerMetadata(0)
        (report, snapshots), committed = await recovered(log, Home(), load, into=metadata)
        assert metadata.names == {"a": 2, "b": 3, "c": 7}
        assert committed == list(operations)
        assert snapshots == (by_reference(6), by_reference(8))
        assert (report.operations, report.operations_since_checkpoint) == (4, 1)
        with pytest.raises(DataCorruptionError, match="by reference to the metadata snapshot"):
            await recovered(log, Home())
        assert log.readers == 0

    run_virtual(scenario())


def test_a_snapshot_that_cannot_be_loaded_ends_a_recovery() -> None:
    async def load(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        raise TierUnavailableError("tier2", f"no answer for {operation.epoch}")

    async def scenario() -> None:
        log = await written(by_reference(5))
        with pytest.raises(TierUnavailableError, match="no answer"):
            await recovered(log, Home(), load)
        assert log.readers == 0
        # One that has all metadata in itself needs no loading.
        recovery, _ = await recovered(await written(*BASE), Home(), load)
        assert recovery.snapshots == ()

    run_virtual(scenario())


def test_operations_of_small_frames_are_prepared_together_before_they_are_replayed() -> None:
    """A checkpoint by reference is no beginning behind operations that are not replayed yet."""
    count = 2 * OPERATIONS_PREPARED

    async def main() -> None:
        first = by_number(CheckpointOperation(encode_checkpoint(ContainerMetadata(0))), 1)
        others: list[Operation] = [by_number(SnapshotCheckpointOperation(1, bytes(16)), 2)]
        others += [by_number(CreateOperation(f"s{number}"), number) for number in range(3, count)]
        updater, parts = MetadataUpdater(ContainerMetadata(0)), list[list[Operation]]()

        async def prepare(operations: Sequence[Operation]) -> None:
            assert updater.metadata.sequence_number == sum(map(len, parts))
            parts.append(list(operations))

        async def load(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
            raise AssertionError(operation)

        log = await written(first, *others)
        committed: list[Operation] = []
        await recover(
            log, updater, LogPositions(), committed.extend, Home(), load=load, prepare=prepare
        )
        assert [each.sequence_number for each in committed] == list(range(1, count))
        assert [each for part in parts for each in part] == committed
        assert len(parts) <= 4  # the log gives 256 frames at once
        assert len(updater.metadata.segments) == count - 3

    run_virtual(main())


def by_number(operation: Operation, number: int) -> Operation:
    operation.sequence_number = number
    return operation
